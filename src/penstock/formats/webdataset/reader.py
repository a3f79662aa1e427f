"""One open tar, or a span of one: a table of where the members of each sample are."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.codecs.unpack import sliceable
from penstock.errors import CorruptShardError
from penstock.formats.encodings.base import OrNone
from penstock.formats.gather import FoundLayout, FoundRows, FoundRowsReader
from penstock.formats.webdataset.decode import KEY, URL, member_encoding
from penstock.formats.webdataset.headers import group_members, walk

if TYPE_CHECKING:
    from penstock.formats.base import ReadOptions, Rows
    from penstock.formats.files import FileBytes
    from penstock.index.model import IndexedShard
    from penstock.types import Int64Array, Sample


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
        # Whether every sample has a member of every kind.
        self.is_uniform = all(bool((begins >= 0).all()) for begins in self.begins.values())


class TarMembers(NamedTuple):
    """The members of an open tar, by the extensions of their names."""

    tar: MappedTar
    table: TarTable
    url: bytes

    def pieces(self, name: str, rows: Int64Array) -> list[bytes]:
        """Copy the members of one kind; None where a sample has none."""
        if name == KEY:
            return [self.table.keys[row] for row in rows.tolist()]
        if name == URL:
            return [self.url] * len(rows)
        begins, ends = self.table.begins[name][rows].tolist(), self.table.ends[name][rows].tolist()
        if self.table.is_uniform or min(begins, default=0) >= 0:
            return list(map(self.tar.read, begins, ends))
        found = zip(begins, ends, strict=True)
        return [self.tar.read(begin, end) if begin >= 0 else None for begin, end in found]  # type: ignore[misc]


class TarRows(FoundRows):
    """Some rows of several tars."""

    def pieces(self, name: str) -> list[bytes]:
        """Copy the members of one kind."""
        if len(self.shards) == 1:
            pieces = self.shards[0].opened.pieces(name, self.rows)
        else:
            pairs = zip(self.shards, np.split(self.rows, np.cumsum(self.counts, dtype=np.int64)[:-1]), strict=False)
            pieces = list(chain.from_iterable(shard.opened.pieces(name, rows) for shard, rows in pairs))
        return pieces if self.order is None else list(map(pieces.__getitem__, self.order.tolist()))


class TarReader(FoundRowsReader):
    """One open tar whose samples have all columns."""

    def __init__(self, data: FileBytes, members: TarMembers, info: IndexedShard, options: ReadOptions) -> None:
        columns = {column.name: column.encoding for column in info.layout.columns}
        wanted = tuple(columns) if options.columns is None else options.columns
        encodings = [(name, member_encoding(name, columns[name], options.image_decoder)) for name in wanted]
        if not members.table.is_uniform:
            encodings = [(name, how if name in (KEY, URL) else OrNone(how)) for name, how in encodings]
        super().__init__(data, info, FoundLayout(tuple(encodings), TarRows), members)


class SparseTarReader(TarReader):
    """One open tar whose samples may lack some columns: None in `read_columns`, and nothing in samples."""

    row_layout = None  # type: ignore[assignment]  # samples of several tars together would have all columns

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order; each has the columns that it has members for."""
        samples = super().read(rows)
        numbers = np.asarray(rows, np.int64)
        for name in set(self.layout.names) - {KEY, URL}:
            for place in np.flatnonzero(self._opened.table.begins[name][numbers] < 0).tolist() if samples else ():
                del samples[place][name]
        return samples
