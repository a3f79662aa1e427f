"""Sources of Parquet and Arrow files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.blocks.stage import check_row
from penstock.formats.columnar.arrow import arrow_blocks, count_rows, schema_of
from penstock.formats.columnar.arrow_types import check_alike, check_columns, naming
from penstock.formats.columnar.format import BatchBlocks
from penstock.formats.columnar.parquet import ParquetReading, as_condition, cut_groups, read_footer
from penstock.sources.files.base import FileShardedSource, as_names
from penstock.threads import call_all
from penstock.units import checks_making

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.blocks.block import Block
    from penstock.blocks.stage import State
    from penstock.scan.patterns import Given
    from penstock.sources.files.found import FoundFiles

_FOOTERS_AT_ONCE = 16


class _ColumnarFiles(FileShardedSource):
    """Files of columns, which must be alike."""

    def __init__(
        self,
        data_files: Given | FoundFiles,
        storage_options: Mapping[str, Any] | None,
        columns: Sequence[str] | None,
    ) -> None:
        self._columns = as_names(columns)
        self._known: dict[int, Any] = {}  # footers, or lengths
        super().__init__(data_files, storage_options)

    def shard_lengths(self) -> list[int] | None:
        """Return the rows of all files; what tells them is read of many files at a time."""
        missing = [number for number in range(len(self._files)) if number not in self._known]
        if len(missing) > 1:
            call_all([partial(self._num_rows, number) for number in missing], _FOOTERS_AT_ONCE, "penstock-footer")
        return [self._num_rows(number) or 0 for number in range(len(self._files))]

    def _settings(self) -> tuple[object, ...]:
        return (None if self._columns is None else list(self._columns),)

    def _in_place(self) -> dict[str, Any] | None:
        return {"format": self.format, "columns": self._columns}

    def _check(self, schema: Any, number: int, first: Any) -> None:
        """Refuse a file that lacks columns, or is not like the first one."""
        name = self._files[number].url
        check_columns(self._columns, schema.names, name)
        if number:
            check_alike(first, schema, self._columns, (self._files[0].url, name))


@checks_making
class ParquetShardedSource(_ColumnarFiles):
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
        self._filter = as_condition(filter)
        super().__init__(data_files, storage_options, columns)

    def shard_lengths(self) -> list[int] | None:
        """Return the rows of all files, from their footers; they are not known where a filter leaves some out."""
        return None if self._filter is not None else super().shard_lengths()

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
        return {**self.__dict__, "_known": {}}

    def _settings(self) -> tuple[object, ...]:
        return *super()._settings(), None if self._filter is None else str(self._filter)

    def _in_place(self) -> dict[str, Any] | None:
        return None if self._filter is not None else super()._in_place()

    def _num_rows(self, number: int) -> int | None:
        return None if self._filter is not None else int(self._footer(number).num_rows)

    def _open(self, number: int, row: int) -> BatchBlocks:
        footer, file = self._footer(number), self._files[number]
        check_row(file.url, row, footer.num_rows)
        schema = footer.schema.to_arrow_schema()
        self._check(schema, number, self._footer(0).schema.to_arrow_schema() if number else schema)
        reading = ParquetReading(file.open, file.url, footer, self._columns, self._filter)
        return BatchBlocks(partial(reading.blocks, reading.fitting_groups()), row, footer.num_rows)

    def _footer(self, number: int) -> Any:
        if number not in self._known:
            self._known[number] = read_footer(self._files[number].open(), self._files[number].url)
        return self._known[number]


@checks_making
class ArrowShardedSource(_ColumnarFiles):
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
        self._first_schema: Any = None
        super().__init__(data_files, storage_options, columns)

    def _num_rows(self, number: int) -> int:
        if number not in self._known:
            file = self._files[number]
            with naming(file.url):
                self._known[number] = count_rows(file.open())
        return int(self._known[number])

    def _open(self, number: int, row: int) -> BatchBlocks:
        return BatchBlocks(partial(self._blocks, number), row)

    def _blocks(self, number: int, row: int) -> Iterator[tuple[Block, int]]:
        file = self._files[number]
        if number:
            if self._first_schema is None:
                self._first_schema = self._schema(0)
            self._check(self._schema(number), number, self._first_schema)
        with naming(file.url):
            yield from arrow_blocks(file.open(), row, self._columns, file.url)

    def _schema(self, number: int) -> Any:
        file = self._files[number]
        with naming(file.url):
            return schema_of(file.open())
