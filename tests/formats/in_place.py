"""Files of other programs in memory: scanned as a store would give them, opened shard by shard."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError
from penstock.formats.base import ReadOptions, ShardReader
from penstock.formats.files import ScannedFile, get_file_format
from penstock.index.model import FileInfo, IndexedShard, ObjectSpan, Part, ShardLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.codecs.stream import FrameStart
    from penstock.types import Columns, Sample, Span


@dataclass
class MemoryFile:
    """A file as a scan sees it, cut into chunks anywhere."""

    name: str
    data: bytes
    chunk_bytes: int = 1 << 22
    is_compressed: bool = False
    num_bytes: int = 0
    seek_bytes: int = 1 << 20
    frame_starts: Sequence[FrameStart] = ()

    def __post_init__(self) -> None:
        self.num_bytes = len(self.data)

    def read(self, begin: int, end: int) -> bytes:
        assert 0 <= begin <= end <= len(self.data)
        assert not self.is_compressed
        return self.data[begin:end]

    def chunks(self) -> Iterator[bytes]:
        for begin in range(0, len(self.data), self.chunk_bytes):
            yield self.data[begin : begin + self.chunk_bytes]


@dataclass
class _Fetched:
    """Some spans of a file; any other byte was not fetched."""

    file: MemoryFile
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        self.name, self.num_bytes = self.file.name, self.file.num_bytes

    def read(self, begin: int, end: int) -> memoryview:
        if not any(span.begin <= begin <= end <= span.end for span in self.spans):
            raise CorruptShardError(f"bytes {begin} to {end} of {self.name} were not fetched")
        return memoryview(self.file.data)[begin:end]


@dataclass
class InPlace:
    """A scanned file and its shards."""

    format: str
    file: MemoryFile
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.form = get_file_format(self.format)
        self.scanned: ScannedFile = self.form.scan(self.file, self.settings)
        self.layout = ShardLayout(
            format=self.format, columns=self.scanned.columns, settings=dict(self.scanned.settings)
        )

    @property
    def infos(self) -> list[IndexedShard]:
        infos = []
        for shard in self.scanned.shards:
            num_bytes = len(shard.span)
            span = ObjectSpan(self.file.name, shard.span.begin, num_bytes, self.file.num_bytes)
            name = f"{self.file.name}@{shard.span.begin}"
            if self.form.raw_version:
                raw = FileInfo(f"{name}.raw", shard.raw_bytes, is_exact=shard.is_exact)
                part = Part(raw, FileInfo(name, num_bytes), span)
            else:
                assert num_bytes == shard.raw_bytes
                part = Part(FileInfo(name, num_bytes), span=span)
            infos.append(IndexedShard(self.layout, shard.num_samples, (part,), shard.details))
        return infos

    def raw(self, info: IndexedShard, columns: tuple[str, ...] | None = None) -> bytes:
        """Return what readers open, unpacked from no other bytes than the format asks for."""
        span = info.parts[0].span
        assert span is not None
        if not self.form.raw_version:
            return self.file.data[span.offset : span.offset + span.num_bytes]
        out = BytesIO()
        self.form.unpack(info, columns, _Fetched(self.file, self.form.spans(info, columns)), out)
        return out.getvalue()

    @contextmanager
    def opened(self, **options: Any) -> Iterator[list[ShardReader]]:
        wanted = ReadOptions(**options)
        readers = [self.form.open([self.raw(info, wanted.columns)], info, wanted) for info in self.infos]
        yield readers
        for reader in readers:
            reader.close()

    def samples(self, **options: Any) -> list[Sample]:
        with self.opened(**options) as readers:
            return [sample for reader in readers for sample in reader.read(range(len(reader)))]

    def columns(self, **options: Any) -> list[Columns]:
        with self.opened(**options) as readers:
            return [reader.read_columns(range(len(reader))) for reader in readers]


def scan_and_read(format_name: str, data: bytes, name: str = "a.file", chunk_bytes: int = 1 << 22) -> list[Sample]:
    return InPlace(format_name, MemoryFile(name, data, chunk_bytes)).samples()
