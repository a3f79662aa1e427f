"""One open tar, or a span of one: a table of where the members of each sample are."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.blocks.block import join_columns
from penstock.codecs.unpack import check_whole, drop_pages, release, sliceable
from penstock.errors import CorruptShardError
from penstock.formats.column_errors import decode_all
from penstock.formats.gather import FoundLayout, FoundRows
from penstock.formats.rows import check_rows
from penstock.formats.webdataset.decode import KEY, URL, member_encoding
from penstock.formats.webdataset.headers import group_members, walk
from penstock.thread_times import decoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from penstock.formats.base import ReadOptions, Rows
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.files import FileBytes
    from penstock.index.model import IndexedShard
    from penstock.types import Columns, Int64Array, Sample

    T = TypeVar("T")


class MappedTar:
    """The bytes of a shard, for a walk along its headers."""

    def __init__(self, data: FileBytes) -> None:
        self._num_bytes = len(data)
        self._slices, self._shift = sliceable(data)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from one place to another."""
        return self._slices[begin + self._shift : min(end, self._num_bytes) + self._shift]

    def reaches(self, end: int) -> bool:
        """Return whether the shard has so many bytes."""
        return end <= self._num_bytes


class TarTable:
    """Where the members of all samples are, by extension; -1: a sample has none."""

    def __init__(self, tar: MappedTar, info: IndexedShard, where: str) -> None:
        samples = list(group_members(walk(tar, where), where))
        if len(samples) != info.num_samples:
            raise CorruptShardError(
                f"{info.name} holds {len(samples)} samples, but the index says {info.num_samples}: index the"
                " file again, or fetch it again",
                shard=info.name,
            )
        self.keys = [sample.key.encode("utf-8", "surrogateescape") for sample in samples]
        extensions = [column.name for column in info.layout.columns if column.name not in (KEY, URL)]
        self.begins = {name: np.full(len(samples), -1, np.int64) for name in extensions}
        self.ends = {name: np.full(len(samples), -1, np.int64) for name in extensions}
        for row, sample in enumerate(samples):
            for extension, member in sample.members.items():
                if extension not in self.begins:
                    raise CorruptShardError(
                        f"{info.name} has a member {member.name[:200]!r} of a kind that is not in its index: make"
                        " the index again",
                        shard=info.name,
                    )
                self.begins[extension][row], self.ends[extension][row] = member.data, member.end

    @property
    def is_uniform(self) -> bool:
        """Whether every sample has a member of every kind."""
        return all(bool((begins >= 0).all()) for begins in self.begins.values())


class TarMembers(NamedTuple):
    """The members of an open tar, by the extensions of their names."""

    name: str
    tar: MappedTar
    table: TarTable
    url: bytes
    held: memoryview | None = None  # keeps the bytes in place, also when the tar is closed

    def pieces(self, name: str, rows: Int64Array) -> list[bytes]:
        """Copy the members of one kind, which all of these rows have."""
        if name == KEY:
            return [self.table.keys[row] for row in rows.tolist()]
        if name == URL:
            return [self.url] * len(rows)
        begins, ends = self.table.begins[name][rows].tolist(), self.table.ends[name][rows].tolist()
        return list(map(self.tar.read, begins, ends))


class TarReader:
    """One open tar, whose samples may lack some columns."""

    def __init__(
        self, data: FileBytes, tar: MappedTar, table: TarTable, info: IndexedShard, options: ReadOptions
    ) -> None:
        self._data, self._table = data, table
        self.name = info.name
        self._num_samples = info.num_samples
        span = info.parts[0].span
        url = (info.name if span is None else span.basename).encode("utf-8", "surrogateescape")
        self._members = TarMembers(info.name, tar, table, url)
        columns = {column.name: column.encoding for column in info.layout.columns}
        wanted = tuple(columns) if options.columns is None else options.columns
        self.encodings: dict[str, Encoding] = {
            name: member_encoding(name, columns[name], options.image_decoder) for name in wanted
        }

    def __len__(self) -> int:
        return self._num_samples

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order; each has the columns that it has members for."""
        numbers = self._check(rows)
        with decoding:
            columns = {
                name: self._decode(name, numbers, encoding.decode_many) for name, encoding in self.encodings.items()
            }
        samples = join_columns(tuple(columns), list(columns.values()), len(numbers))
        return [{name: value for name, value in sample.items() if value is not _MISSING} for sample in samples]

    def read_columns(self, rows: Rows) -> Columns:
        """Return the same by column; None where a sample has no such member."""
        numbers = self._check(rows)
        with decoding:
            return {name: self._column(name, encoding, numbers) for name, encoding in self.encodings.items()}

    def drop_pages(self) -> None:
        """Take the shard's pages out of memory."""
        drop_pages(self._data)

    def close(self) -> None:
        """Unmap the shard."""
        self._num_samples = 0
        self._members = self._members._replace(tar=MappedTar(b""))
        release(self._data)

    def _check(self, rows: Rows) -> Int64Array:
        numbers = check_rows(rows, self._num_samples, self.name)
        check_whole(self._data, self.name)
        return numbers

    def _column(self, name: str, encoding: Encoding, rows: Int64Array) -> Any:
        if self._has_all(name, rows):
            return decode_all(encoding.to_column, self._members.pieces(name, rows), rows, self.name, name)
        values = self._decode(name, rows, encoding.decode_many)
        return [None if value is _MISSING else value for value in values]

    def _decode(self, name: str, rows: Int64Array, decode: Callable[[Sequence[bytes]], list[Any]]) -> list[Any]:
        """Decode the members of one column, where there are any."""
        if self._has_all(name, rows):
            return decode_all(decode, self._members.pieces(name, rows), rows, self.name, name)
        places = np.flatnonzero(self._table.begins[name][rows] >= 0)
        values = [_MISSING] * len(rows)
        present = rows[places]
        found = decode_all(decode, self._members.pieces(name, present), present, self.name, name)
        for place, value in zip(places.tolist(), found, strict=True):
            values[place] = value
        return values

    def _has_all(self, name: str, rows: Int64Array) -> bool:
        return name in (KEY, URL) or bool((self._table.begins[name][rows] >= 0).all())


class UniformTarReader(TarReader):
    """One open tar whose samples have all columns: stored values of several such are decoded together."""

    def row_layout(self) -> FoundLayout:
        """Return which members the samples have."""
        return FoundLayout(tuple(self.encodings.items()), TarRows)

    def memory(self) -> TarMembers:
        """Return what is open, to find rows of several tars at once."""
        check_whole(self._data, self.name)
        return self._members._replace(held=memoryview(self._data))

    def find(self, rows: Int64Array) -> TarRows:
        """Find the values of some rows, all of them in range."""
        return TarRows(self.row_layout(), [self.memory()], [len(rows)], rows, None)

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        numbers = self._check(rows)
        with decoding:
            columns = [self._decode(name, numbers, encoding.decode_many) for name, encoding in self.encodings.items()]
            return join_columns(tuple(self.encodings), columns, len(numbers))


class TarRows(FoundRows):
    """Some rows of several tars."""

    def pieces(self, name: str) -> list[bytes]:
        """Copy the members of one kind."""
        rows_of_shards = np.split(self.rows, np.cumsum(self.counts)[:-1])
        pairs = zip(self.shards, rows_of_shards, strict=True)
        pieces = list(chain.from_iterable(shard.pieces(name, rows) for shard, rows in pairs))
        return pieces if self.order is None else list(map(pieces.__getitem__, self.order.tolist()))


_MISSING: Any = object()
