"""WebDataset: tar files, each cut into spans of whole samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError
from penstock.formats.files import FileFormat, ScannedFile, ScannedShard
from penstock.formats.webdataset.decode import KEY, URL, kind_of, member_encoding
from penstock.formats.webdataset.headers import group_members, walk
from penstock.formats.webdataset.reader import MappedTar, SparseTarReader, TarMembers, TarReader, TarTable
from penstock.index.model import Column
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.formats.base import ReadOptions
    from penstock.formats.files import FileBytes, StoredObject
    from penstock.index.model import IndexedShard, ShardLayout

SPAN_BYTES = 64 << 20
_SMALLEST_SPAN_BYTES = SPAN_BYTES // 4
_MOST_COLUMNS = 1000
_FIRST_LOOK_READS = 8  # so many headers tell how large members are
_SEEK_READ_BYTES = 16 << 10


class WebDatasetFormat(FileFormat):
    """Scans and opens tar files."""

    suffixes = (".tar",)
    magic = b"ustar"
    magic_at = 257
    has_schema = False  # samples may lack some kinds of members

    def scan(self, file: StoredObject, settings: Mapping[str, Any]) -> ScannedFile:  # noqa: ARG002
        """Walk along the headers, and cut where a sample begins."""
        if not file.num_bytes:
            raise CorruptShardError(f"{file.name} is empty, so it is not a tar file", path=file.name)
        tar = StoredTar(file)
        extensions: dict[str, None] = {}
        begins: list[int] = []
        for sample in group_members(walk(tar, file.name), file.name):
            begins.append(sample.begin)
            if not sample.members.keys() <= extensions.keys():
                extensions.update(dict.fromkeys(sample.members))
                if len(extensions) > _MOST_COLUMNS:
                    raise CorruptShardError(
                        f"{file.name} has members of more than {_MOST_COLUMNS} kinds: it is not a WebDataset, where the"
                        " part of a name before the first dot is the sample and the rest is the kind",
                        path=file.name,
                    )
        num_bytes = tar.finish()
        names = {KEY: "str", URL: "str"} | {name: kind_of(name) for name in extensions}
        spans = [(0, num_bytes, len(begins))] if file.is_compressed else cut_samples(begins, num_bytes)
        shards = [ScannedShard(count, Span(begin, end), end - begin) for begin, end, count in spans if count]
        return ScannedFile(tuple(Column(name, kind) for name, kind in names.items()), tuple(shards))

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Refuse unknown kinds of members, and columns that are not there."""
        for column in layout.columns:
            member_encoding(column.name, column.encoding, options.image_decoder)
        super().check(layout, options)

    def open(self, parts: Sequence[FileBytes], info: IndexedShard, options: ReadOptions) -> TarReader:
        """Open a tar, or a span of one."""
        self.check(info.layout, options)
        span = info.parts[0].span
        where, tar = info.name if span is None else span.basename, MappedTar(parts[0])
        members = TarMembers(tar, TarTable(tar, info, where), where.encode("utf-8", "surrogateescape"))
        return (TarReader if members.table.is_uniform else SparseTarReader)(parts[0], members, info, options)


def cut_samples(begins: Sequence[int], num_bytes: int) -> list[tuple[int, int, int]]:
    """Cut a file where samples begin: give where each span begins and ends, and how many samples it has."""
    spans: list[tuple[int, int, int]] = []
    first = 0
    for number, begin in enumerate(begins):
        if begin - begins[first] >= SPAN_BYTES and num_bytes - begin >= _SMALLEST_SPAN_BYTES:
            spans.append((begins[first], begin, number - first))
            first = number
    if begins:
        spans.append((begins[first], num_bytes, len(begins) - first))
    return spans


class StoredTar:
    """A tar file that is being scanned: read from its beginning or, once its members are large, around its headers."""

    def __init__(self, file: StoredObject) -> None:
        self._file = file
        self._chunks: Iterator[bytes] = file.chunks()
        self._chunk, self._begin = b"", 0  # what is at hand, and where it begins
        self._num_reads = 0
        self._seeks = False

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from one place to another, which are not before those asked for last."""
        self._num_reads += 1
        if end > self._begin + len(self._chunk):
            self._seeks = self._seeks or self._has_large_members(begin)
            if self._seeks:
                self._seek(begin, end)
            else:
                self._read_on(begin, end)
        return self._chunk[begin - self._begin : end - self._begin]

    def _seek(self, begin: int, end: int) -> None:
        """Read a place and a little more, where there may be more headers."""
        self._chunks = iter(())
        num_bytes = self._file.num_bytes
        self._begin = min(begin, num_bytes)
        self._chunk = self._file.read(self._begin, min(max(end, begin + _SEEK_READ_BYTES), num_bytes))

    def _read_on(self, begin: int, end: int) -> None:
        if not self._skip_to(begin):
            self._chunk, self._begin = b"", self._begin + len(self._chunk)
            return
        self._chunk, self._begin = self._chunk[begin - self._begin :], begin
        while len(self._chunk) < end - begin and (chunk := next(self._chunks, b"")):
            self._chunk += chunk

    def reaches(self, end: int) -> bool:
        """Return whether the file has so many bytes."""
        return self._skip_to(end) if self._file.is_compressed else end <= self._file.num_bytes

    def finish(self) -> int:
        """Return the size of the content, which shows only at its end if it is compressed."""
        if not self._file.is_compressed:
            return self._file.num_bytes
        while self._skip_to(self._begin + len(self._chunk) + 1):
            pass
        return self._begin + len(self._chunk)

    def _has_large_members(self, position: int) -> bool:
        """Return whether asking for each header takes less time than reading everything."""
        return not self._file.is_compressed and position > self._file.seek_bytes * max(
            _FIRST_LOOK_READS, self._num_reads
        )

    def _skip_to(self, position: int) -> bool:
        """Let go of what lies before a place; tell whether the file goes so far."""
        while self._begin + len(self._chunk) < position:
            chunk = next(self._chunks, b"")
            if not chunk:
                return False
            self._begin += len(self._chunk)
            self._chunk = chunk
        return True
