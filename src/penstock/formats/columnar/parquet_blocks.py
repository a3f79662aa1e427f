"""Blocks of a Parquet file from a row on: row groups that are not needed are not read, the next one is read ahead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from penstock.blocks.block import Block
from penstock.blocks.worker_threads import WorkerThreads
from penstock.errors import ConfigError
from penstock.extras import require
from penstock.formats.columnar.arrow_types import pyarrow
from penstock.formats.columnar.blocks import block_of, rows_at_once
from penstock.formats.columnar.checks import checked, naming
from penstock.formats.columnar.inputs import SpansInput, open_for_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.formats.columnar.inputs import LocalObject

_TAIL_BYTES = 64 << 10
_PIECES_OF_GROUP = 4


def read_footer(opened: LocalObject, where: str) -> Any:
    """Read the footer of a file."""
    with naming(where):
        opened.fetch_tail(_TAIL_BYTES)
        return _parquet().read_metadata(SpansInput(opened))


def as_condition(given: Any) -> Any:
    """Take a condition as pyarrow writes it, or as a list of comparisons."""
    if given is None:
        return None
    parquet = require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files by a condition")
    try:
        return parquet.filters_to_expression(given)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"filter={given!r} is not a condition: pass pc.field('score') > 0.5 with pyarrow.compute as pc, or"
            " [('score', '>', 0.5)]"
        ) from error


@dataclass(frozen=True, slots=True)
class ParquetReading:
    """Reads rows of one file.

    Args:
        open: Opens the file.
        where: What it is called in errors.
        footer: Its footer.
        columns: The columns that are read; None for all.
        condition: The condition that rows have to fit, if there is one.
    """

    open: Callable[[], LocalObject]
    where: str
    footer: Any
    columns: Sequence[str] | None = None
    condition: Any = None

    def blocks(self, groups: Sequence[int], row: int) -> Iterator[tuple[Block, int]]:
        """Read blocks of some row groups from a row on, each with how many stored rows it was made of."""
        ends = list(accumulate(self.footer.row_group(group).num_rows for group in range(self.footer.num_row_groups)))
        parts = [partial(self._group, group, ends) for group in groups if ends[group] > row]
        with naming(self.where):
            for begin, batch in read_ahead(parts):
                end = begin + batch.num_rows
                if begin > row:  # these are in groups that do not fit
                    yield Block(), begin - row
                if end > row:
                    part = checked(batch, begin, self.where).slice(max(0, row - begin))
                    yield block_of(part, self.condition, self.columns), part.num_rows
                    row = end
            if row < self.footer.num_rows:
                yield Block(), self.footer.num_rows - row

    def fitting_groups(self) -> Sequence[int]:
        """Find the row groups that may have rows which fit the condition, by what the footer tells of their values."""
        if self.condition is None:
            return range(self.footer.num_row_groups)
        dataset = require("pyarrow.dataset", extra="parquet", purpose="reading Parquet files by a condition")
        opened = self.open()
        with naming(self.where):
            opened.fetch_tail(_TAIL_BYTES)
            stored = pyarrow().PythonFile(SpansInput(opened), mode="r")
            fragment = dataset.ParquetFileFormat().make_fragment(stored)
            try:
                found = fragment.subset(self.condition, schema=self.footer.schema.to_arrow_schema()).row_groups
            except pyarrow().ArrowException as error:
                raise ConfigError(
                    f"filter={self.condition} does not fit {self.where}: {error}", path=self.where
                ) from error
        return [group.id for group in found]

    def _group(self, group: int, ends: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Read the record batches of a row group, whose columns are fetched together, and the first row of each."""
        wanted = None if self.columns is None else [*self.columns, *self._filtered()]
        stored = open_for_arrow(self.open())
        options = {"pre_buffer": isinstance(stored, SpansInput), "page_checksum_verification": True}
        reading = naming(self.where, f", row group {group},")
        with reading, _parquet().ParquetFile(stored, metadata=self.footer, **options) as reader:
            about = self.footer.row_group(group)
            num_rows = rows_at_once(about.total_byte_size, about.num_rows)
            begin = ends[group] - about.num_rows
            for batch in reader.iter_batches(num_rows, row_groups=[group], columns=wanted):
                yield begin, batch
                begin += batch.num_rows

    def _filtered(self) -> list[str]:
        """Name the columns that the condition may need and that are not read anyway."""
        if self.condition is None:
            return []
        text, columns = str(self.condition), self.columns or ()
        return [name for name in self.footer.schema.to_arrow_schema().names if name in text and name not in columns]


def cut_groups(groups: Sequence[tuple[int, float]], num_bytes: int) -> list[int]:
    """Return the rows where parts begin, of row groups of so many rows and bytes each.

    A part within a group costs reading all of the group, so a group is not cut into many.
    """
    cuts: list[int] = []
    row, filled = 0, math.inf  # the first row is a cut
    for num_rows, size in groups:
        pieces = max(1, min(_PIECES_OF_GROUP, num_rows, int(size // num_bytes)))
        if pieces > 1 or filled + size > num_bytes:
            cuts += [row + num_rows * piece // pieces for piece in range(pieces)]
            filled = 0.0
        filled += size / pieces
        row += num_rows
    return cuts


def read_ahead(parts: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    """Yield the items of several iterators, one after the other, while a thread already begins the next one."""
    if len(parts) < 2:
        for part in parts:
            yield from part()
        return
    threads = WorkerThreads(1, "penstock-row-group")
    try:
        ahead = threads.submit(_begin, parts[0])
        for following in (*parts[1:], None):
            begun = ahead.result()
            if following is not None:
                ahead = threads.submit(_begin, following)
            yield from begun
    finally:
        threads.shutdown()


def _begin(part: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begin an iterator, so that what its first item takes is done."""
    items = part()
    first = [item for item in (next(items, None),) if item is not None]
    return chain(first, items)


def _parquet() -> Any:
    return require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files")
