"""What every format of files that other programs write must do, told as tests that a pytest class inherits."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.base import ReadOptions
from penstock.formats.files import get_file_format
from penstock.index.model import FileInfo, IndexedShard, ObjectSpan, Part, ShardLayout
from penstock.testing.reading import ReadingContract, raises

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.codecs.stream import FrameStart
    from penstock.formats.base import ShardBytes, ShardReader
    from penstock.formats.files import FileFormat, ScannedFile
    from penstock.types import Sample, Span

_NAME = "folder/some.file"


class FileFormatContract(ReadingContract):
    """The tests of a format of files. A plug-in's own tests inherit them, under a name that pytest collects:

        class TestMyFiles(FileFormatContract):
            format_name = "mine"
            samples = [{"text": "one"}, {"text": "two"}, {"text": "three"}]

            def write(self, samples):
                return b"".join(sample["text"].encode() + b";" for sample in samples)

    Samples are at least three, no two of them alike, with the same columns, and together make one shard.

    Attributes:
        format_name: The name of the format, as it is registered.
        samples: Samples as they are read from what `write` gives for them.
        settings: What a user says of the files, such as `types`.
        read_options: Settings for reading, such as `image_decoder`.
    """

    format_name: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}

    def write(self, samples: Sequence[Sample]) -> bytes:
        """Return a file that holds some samples."""
        raise NotImplementedError

    def test_a_scan_finds_the_same_however_a_file_is_cut(self) -> None:
        """Chunks end anywhere, and no byte beyond the end is asked for."""
        data = self.write(self.samples)
        expected = self._scan(data)
        assert sum(shard.num_samples for shard in expected.shards) == len(self.samples)
        for chunk_bytes in (1, 7, 64, 4096):
            assert self._scan(data, chunk_bytes) == expected

    def test_shards_lie_one_behind_the_other_within_the_file(self) -> None:
        """Spans do not overlap, and what is fetched of a shard lies within its file."""
        data = self.write(self.samples)
        end = 0
        for shard in self._scan(data).shards:
            assert end <= shard.span.begin <= shard.span.end <= len(data)
            end = shard.span.end
        spans = self._format.spans(self._info(data, len(self.samples)), None)
        assert list(spans) == sorted(spans, key=lambda span: span.begin)
        assert all(span.end <= len(data) for span in spans)

    def test_files_that_are_cut_are_refused_or_read_in_part(self) -> None:
        """An error names the file; nothing else comes out of a file that ends too early."""
        data = self.write(self.samples)
        for end in np.linspace(0, len(data) - 1, 20).astype(int).tolist():
            try:
                scanned = self._scan(data[:end])
            except (CorruptShardError, ConfigError) as error:  # what is cut may lack what the settings name
                assert _NAME in str(error), f"{error} does not mention {_NAME}"  # noqa: PT017  it need not be one
            else:
                assert sum(shard.num_samples for shard in scanned.shards) <= len(self.samples)

    def test_it_is_never_written(self) -> None:
        """What writers ask for is refused."""
        with raises(ValueError, "can only be read"):
            self._format.infer(self.samples[0])

    # --- Tools ----------------------------------------------------------------------------------------------

    @property
    def _format(self) -> FileFormat:
        return get_file_format(self.format_name)

    def _scan(self, data: bytes, chunk_bytes: int = 1 << 20) -> ScannedFile:
        return self._format.scan(_File(_NAME, len(data), data, chunk_bytes), self.settings)

    def _info(self, data: bytes, num_samples: int) -> IndexedShard:
        scanned = self._scan(data)
        [shard] = scanned.shards
        layout = ShardLayout(format=self.format_name, columns=scanned.columns, settings=dict(scanned.settings))
        span = ObjectSpan(_NAME, shard.span.begin, len(shard.span), len(data))
        stored = FileInfo("shard", len(shard.span))
        if self._format.raw_version:
            part = Part(FileInfo("shard.raw", shard.raw_bytes, is_exact=shard.is_exact), stored, span)
        else:
            part = Part(stored, span=span)
        return IndexedShard(layout, num_samples, (part,), shard.details)

    def _parts(self, samples: Sequence[Sample]) -> list[bytes]:
        data = self.write(samples)
        info = self._info(data, len(samples))
        [span] = [part.span for part in info.parts]
        assert span is not None
        if not self._format.raw_version:
            return [data[span.offset : span.offset + span.num_bytes]]
        out = BytesIO()
        self._format.unpack(info, None, _Fetched(_NAME, len(data), data, self._format.spans(info, None)), out)
        return [out.getvalue()]

    def _open(self, parts: Sequence[ShardBytes], num_samples: int, **options: Any) -> ShardReader:
        info = self._info(self.write(self.samples), num_samples)
        return self._format.open(parts, info, ReadOptions(**{**self.read_options, **options}))


@dataclass
class _File:
    """A file as a scan sees it."""

    name: str
    num_bytes: int
    data: bytes
    chunk_bytes: int
    is_compressed: bool = False
    seek_bytes: int = 1 << 20
    frame_starts: tuple[FrameStart, ...] = ()

    def read(self, begin: int, end: int) -> bytes:
        assert 0 <= begin <= end <= self.num_bytes, "a scan asks for bytes that are not there"
        return self.data[begin:end]

    def chunks(self) -> Iterator[bytes]:
        for begin in range(0, self.num_bytes, self.chunk_bytes):
            yield self.data[begin : begin + self.chunk_bytes]


@dataclass
class _Fetched:
    """What was fetched of a file."""

    name: str
    num_bytes: int
    data: bytes
    spans: tuple[Span, ...]

    def read(self, begin: int, end: int) -> memoryview:
        assert any(span.begin <= begin <= end <= span.end for span in self.spans), "bytes that were not to be fetched"
        return memoryview(self.data)[begin:end]
