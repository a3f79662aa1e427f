"""Sources of Parquet and Arrow files."""

from __future__ import annotations

import math
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.formats.columnar.arrow_types import pyarrow
from penstock.sources.files.arrow_batches import batches_from, count_rows, schema_of
from penstock.sources.files.arrow_columns import rows_of
from penstock.sources.files.arrow_rows import (
    ArrowInput,
    BatchIterator,
    check_alike,
    check_columns,
    checked,
    naming,
    open_for_arrow,
)
from penstock.sources.files.base import FileShardedSource, as_names
from penstock.sources.iterators import check_row
from penstock.sources.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.scan.patterns import Given
    from penstock.sources.columns import Rows
    from penstock.sources.files.found import FoundFiles
    from penstock.sources.iterators import SampleIterator, State

# Rows that are read at once: as many as fill these bytes, within bounds.
_BATCH_BYTES = 4 << 20
_FEWEST_ROWS, _MOST_ROWS = 16, 2048
_TAIL_BYTES = 64 << 10
_FOOTERS_AT_ONCE = 16
_PIECES_OF_GROUP = 4


class ParquetShardedSource(FileShardedSource):
    """Parquet files, each of them a shard. Lists of numbers come as arrays.

    Opening a shard at a row does not read the row groups before it. The length is known from the footers.

    Args:
        data_files: A path or URL, a glob, a folder, or a list of them.
        storage_options: Credentials and settings of the store.
        columns: Read these columns only. One that a file does not have is an error, before any data is read.
        filter: A condition of `pyarrow.compute`, such as `pc.field("score") > 0.5`, or `[("score", ">", 0.5)]`. Row
            groups that cannot fit it are not read. Rows are numbered as they are stored; the length is not known then.
    """

    format = "parquet"

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,  # noqa: A002
    ) -> None:
        self._columns = as_names(columns)
        self._filter = _as_condition(filter)
        self._footers: dict[int, Any] = {}
        super().__init__(data_files, storage_options)

    def shard_lengths(self) -> list[int] | None:
        """Return the rows of all files, from their footers, which are read many at a time."""
        if self._filter is not None:
            return None
        _read_together(self._footer, [number for number in range(len(self._files)) if number not in self._footers])
        return [self._footer(number).num_rows for number in range(len(self._files))]

    def shard_cuts(self, shard_name: str, num_bytes: int) -> list[State]:
        """Find row groups where a file can be cut into pieces of about so many stored bytes; large groups are cut."""
        if self._filter is not None:
            return []
        number = self._number(shard_name)
        footer = self._footer(number)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        scale = self._files[number].info.num_bytes / max(1, sum(group.total_byte_size for group in groups))
        rows = cut_groups([(each.num_rows, each.total_byte_size * scale) for each in groups], num_bytes)
        return [{"row": row} for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": {}}

    def _settings(self) -> tuple[object, ...]:
        columns = None if self._columns is None else list(self._columns)
        return columns, None if self._filter is None else str(self._filter)

    def _in_place(self) -> dict[str, Any] | None:
        return None if self._filter is not None else {"format": "parquet", "columns": self._columns}

    def _num_rows(self, number: int) -> int | None:
        return None if self._filter is not None else int(self._footer(number).num_rows)

    def _open(self, number: int, row: int) -> SampleIterator:
        footer = self._footer(number)
        name = self._files[number].url
        check_row(name, row, footer.num_rows)
        schema = footer.schema.to_arrow_schema()
        check_columns(self._columns, schema.names, name)
        if number:
            first = self._footer(0).schema.to_arrow_schema()
            check_alike(first, schema, self._columns, (self._files[0].url, name))
        groups = range(footer.num_row_groups) if self._filter is None else self._fitting_groups(number)
        return BatchIterator(partial(self._batches, number, groups), row, footer.num_rows)

    def _fitting_groups(self, number: int) -> Sequence[int]:
        """Give the row groups that may have rows which fit the condition, by what the footer tells of their values."""
        dataset = require("pyarrow.dataset", extra="parquet", purpose="reading Parquet files by a condition")
        file = self._files[number]
        opened = file.open()
        with naming(file.url):
            opened.fetch_tail(_TAIL_BYTES)
            stored = pyarrow().PythonFile(ArrowInput(opened), mode="r")
            fragment = dataset.ParquetFileFormat().make_fragment(stored)
            schema = self._footer(number).schema.to_arrow_schema()
            try:
                found = fragment.subset(self._filter, schema=schema).row_groups
            except pyarrow().ArrowException as error:
                raise ConfigError(f"filter={self._filter} does not fit {file.url}: {error}", path=file.url) from error
        return [group.id for group in found]

    def _footer(self, number: int) -> Any:
        if number not in self._footers:
            parquet = require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files")
            file = self._files[number]
            opened = file.open()
            with naming(file.url):
                opened.fetch_tail(_TAIL_BYTES)
                self._footers[number] = parquet.read_metadata(ArrowInput(opened))
        return self._footers[number]

    def _batches(self, number: int, groups: Sequence[int], row: int) -> Iterator[tuple[Rows, int]]:
        """Give rows, and how many stored ones they were made of, from a row on."""
        footer = self._footer(number)
        ends = list(accumulate(footer.row_group(group).num_rows for group in range(footer.num_row_groups)))
        parts = [partial(self._group, number, group, ends) for group in groups if ends[group] > row]
        with naming(self._files[number].url):
            for begin, batch in read_ahead(parts):
                end = begin + batch.num_rows
                if begin > row:  # these are in groups that do not fit
                    yield [], begin - row
                if end > row:
                    batch = checked(batch, begin, self._files[number].url)
                    part = batch.slice(max(0, row - begin))
                    yield rows_of(part, self._filter, self._columns), part.num_rows
                    row = end
            if row < footer.num_rows:
                yield [], footer.num_rows - row

    def _group(self, number: int, group: int, ends: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Give the record batches of a row group, whose columns are fetched together, and the first row of each."""
        parquet = require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files")
        footer = self._footer(number)
        wanted = None if self._columns is None else [*self._columns, *self._filtered(footer)]
        stored = open_for_arrow(self._files[number].open())
        options = {"pre_buffer": isinstance(stored, ArrowInput), "page_checksum_verification": True}
        where = self._files[number].url
        with naming(where, f", row group {group},"), parquet.ParquetFile(stored, metadata=footer, **options) as reader:
            about = footer.row_group(group)
            num_rows = _rows_at_once(about.total_byte_size, about.num_rows)
            begin = ends[group] - about.num_rows
            for batch in reader.iter_batches(num_rows, row_groups=[group], columns=wanted):
                yield begin, batch
                begin += batch.num_rows

    def _filtered(self, footer: Any) -> list[str]:
        """Give the columns that the condition may need and nobody asked for."""
        if self._filter is None:
            return []
        text = str(self._filter)
        return [name for name in footer.schema.to_arrow_schema().names if name in text and name not in self._columns]  # type: ignore[operator]


def _read_together(read: Callable[[int], object], numbers: Sequence[int]) -> None:
    """Read something of several files, many at a time."""
    if len(numbers) > 1:
        threads = WorkerThreads(min(_FOOTERS_AT_ONCE, len(numbers)), "penstock-footer")
        try:
            for future in [threads.submit(read, number) for number in numbers]:
                future.result()
        finally:
            threads.shutdown()


def _as_condition(given: Any) -> Any:
    """Take a condition as pyarrow writes it, or as a list of comparisons."""
    if given is None:
        return None
    parquet = require("pyarrow.parquet", extra="parquet", purpose="reading Parquet files by a condition")
    try:
        condition = parquet.filters_to_expression(given)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"filter={given!r} is not a condition: pass pc.field('score') > 0.5 with pyarrow.compute as pc, or"
            " [('score', '>', 0.5)]"
        ) from error
    return condition


def cut_groups(groups: Sequence[tuple[int, float]], num_bytes: int) -> list[int]:
    """Give the rows where pieces begin, of row groups of so many rows and bytes each.

    A piece within a group costs reading all of the group, so a group is not cut into many.
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


def _rows_at_once(num_bytes: int, num_rows: int) -> int:
    """Give how many rows are read at once, where so many rows have so many bytes."""
    return min(_MOST_ROWS, max(_FEWEST_ROWS, _BATCH_BYTES * num_rows // max(1, num_bytes)))


def read_ahead(parts: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    """Give the items of several iterators, one after the other, while a thread already begins the next one."""
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


class ArrowShardedSource(FileShardedSource):
    """Arrow files, of the file format or the stream format, as `datasets` writes them. Lists of numbers come as arrays.

    The length is known from the head of each record batch; those of a stream are found one after another.

    Args:
        data_files: A path or URL, a glob, a folder, or a list of them.
        storage_options: Credentials and settings of the store.
        columns: Read these columns only. One that a file does not have is an error, before any data is read.
    """

    format = "arrow"

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._columns = as_names(columns)
        self._first_schema: Any = None
        self._lengths: dict[int, int] = {}
        super().__init__(data_files, storage_options)

    def shard_lengths(self) -> list[int]:
        """Return the rows of all files, which are read many at a time."""
        _read_together(self._num_rows, [number for number in range(len(self._files)) if number not in self._lengths])
        return [self._num_rows(number) for number in range(len(self._files))]

    def _settings(self) -> tuple[object, ...]:
        return (None if self._columns is None else list(self._columns),)

    def _in_place(self) -> dict[str, Any] | None:
        return {"format": "arrow", "columns": self._columns}

    def _num_rows(self, number: int) -> int:
        if number not in self._lengths:
            file = self._files[number]
            with naming(file.url):
                self._lengths[number] = count_rows(file.open())
        return self._lengths[number]

    def _open(self, number: int, row: int) -> SampleIterator:
        return BatchIterator(partial(self._batches, number), row)

    def _batches(self, number: int, row: int) -> Iterator[tuple[Rows, int]]:
        file = self._files[number]
        if number:
            self._check_schema(number)
        with naming(file.url):
            for batch in batches_from(file.open(), row, self._columns, file.url):
                size = _rows_at_once(batch.nbytes, batch.num_rows)
                for begin in range(0, batch.num_rows, size):
                    part = batch.slice(begin, size)
                    yield rows_of(part, columns=self._columns), part.num_rows

    def _check_schema(self, number: int) -> None:
        """Refuse a file that is not like the first one."""
        first, file = self._files[0], self._files[number]
        if self._first_schema is None:
            with naming(first.url):
                self._first_schema = schema_of(first.open())
        with naming(file.url):
            schema = schema_of(file.open())
        check_columns(self._columns, schema.names, file.url)
        check_alike(self._first_schema, schema, self._columns, (first.url, file.url))
