"""One object as a scan reads it: its end at once, any range, or all of it, decompressed on the way."""

from __future__ import annotations

import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cachedir.versions import tag_of
from penstock.errors import CorruptShardError, ObjectChangedError, StoreError
from penstock.storage.pieces import cut_span
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.base import ObjectInfo, Store

_CHUNK_BYTES = 4 << 20
_AHEAD = 4  # pieces of one object that are read at once
_MOST_CONTENT = 1 << 36  # of one compressed object, which makes one shard


class ScannedObject:
    """Reads an object in the version that was listed; another one is an `ObjectChangedError`."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        compression: str | None = None,
        on_bytes: Callable[[int], None] = lambda _: None,
        scratch: Path | None = None,
    ) -> None:
        self.name = info.key
        self.num_bytes = info.num_bytes
        self.is_compressed = compression is not None
        self._store, self._info, self._compression = store, info, compression
        self._on_bytes, self._scratch = on_bytes, scratch
        self._tail = Span(0, 0), b""

    def fetch_tail(self, num_bytes: int) -> None:
        """Read the end of the object, for whoever asks for any of it."""
        span = Span(max(0, self.num_bytes - num_bytes), self.num_bytes)
        self._tail = span, self._piece(span)

    def read(self, begin: int, end: int) -> bytes:
        """Give a range."""
        if self.is_compressed or not 0 <= begin <= end <= self.num_bytes:
            raise CorruptShardError(
                f"{self.name} has {self.num_bytes} bytes, and none at {begin} to {end}: it is cut, or of another format"
            )
        span, data = self._tail
        if span.begin <= begin and end <= span.end:
            return data[begin - span.begin : end - span.begin]
        return b"".join(self._pieces(Span(begin, end)))

    def chunks(self) -> Iterator[bytes]:
        """Give all of it, in order; of a compressed object, its content."""
        stored = self._pieces(Span(0, self.num_bytes))
        if self._compression is None:
            yield from stored
            return
        num_bytes = 0
        for chunk in decompressed(stored, self._compression, self.name, self._scratch):
            num_bytes += len(chunk)
            if num_bytes > _MOST_CONTENT:
                raise CorruptShardError(
                    f"{self.name} holds more than {_MOST_CONTENT >> 30} GB, and what is compressed cannot be split:"
                    " compress it in smaller files"
                )
            yield chunk

    def _pieces(self, span: Span) -> Iterator[bytes]:
        """Give a span in pieces, some of them read ahead."""
        spans = deque(cut_span(span, _CHUNK_BYTES))
        if len(spans) <= 1:
            yield from map(self._piece, spans)
            return
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="penstock-scan") as threads:
            running = deque(threads.submit(self._piece, spans.popleft()) for _ in range(min(_AHEAD, len(spans))))
            try:
                while running:
                    data = running.popleft().result()
                    if spans:
                        running.append(threads.submit(self._piece, spans.popleft()))
                    yield data
            finally:
                for each in running:
                    each.cancel()

    def _piece(self, span: Span) -> bytes:
        if not len(span):
            return b""
        data, info = self._store.read_piece(self.name, span, None)
        if info.num_bytes != self.num_bytes or tag_of(info) != tag_of(self._info):
            raise ObjectChangedError(
                f"{self.name} was written again while it was being indexed: wait until it is done", key=self.name
            )
        data = bytes(data)
        if len(data) != len(span):
            raise StoreError(f"{self.name}: {len(span)} bytes were asked for, and {len(data)} came")
        self._on_bytes(len(data))
        return data


# --- Decompression -------------------------------------------------------------------------------------------


def decompressed(stored: Iterator[bytes], compression: str, name: str, scratch: Path | None) -> Iterator[bytes]:
    """Give the content of a compressed object, some MB at a time."""
    decoder = _DECODERS.get(compression)
    if decoder is None:
        yield from _through_files(stored, compression, name, scratch)
        return
    current: Any = None
    try:
        for chunk in stored:
            data = chunk
            while data:
                if current is None:
                    current = decoder()
                yield from _feed(current, data)
                data = current.unused_data if current.eof else b""
                if current.eof:
                    current = None
                    data = data.lstrip(b"\0")  # tapes and xz pad the end
    except (OSError, EOFError, ValueError) as error:
        raise _broken(name, compression, error) from error
    except Exception as error:
        if type(error).__module__ in ("zlib", "_lzma", "lzma"):
            raise _broken(name, compression, error) from error
        raise
    if current is not None:
        raise _broken(name, compression, "it ends too early")


def _feed(decoder: Any, data: bytes) -> Iterator[bytes]:
    """Give what a decoder makes of some bytes, no more at a time than a chunk."""
    out = decoder.decompress(data, _CHUNK_BYTES)
    yield out
    while not decoder.eof and (out := decoder.decompress(getattr(decoder, "unconsumed_tail", b""), _CHUNK_BYTES)):
        yield out


def _gzip_decoder() -> Any:
    import zlib

    return zlib.decompressobj(31)


def _bz2_decoder() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _xz_decoder() -> Any:
    import lzma

    return lzma.LZMADecompressor()


_DECODERS = {"gz": _gzip_decoder, "bz2": _bz2_decoder, "xz": _xz_decoder}


def _through_files(stored: Iterator[bytes], compression: str, name: str, scratch: Path | None) -> Iterator[bytes]:
    """Decompress from one file to another, for codecs that cannot be fed by pieces."""
    import cramjam

    module = {"zstd": cramjam.zstd, "br": cramjam.brotli}[compression]
    with tempfile.TemporaryDirectory(prefix=".scan-", suffix=".part", dir=scratch) as folder:
        packed, raw = Path(folder) / "packed", Path(folder) / "raw"
        with packed.open("wb") as out:
            for chunk in stored:
                out.write(chunk)
        try:
            module.decompress_into(cramjam.File(str(packed)), cramjam.File(str(raw)))
        except Exception as error:
            raise _broken(name, compression, error) from error
        with raw.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def _broken(name: str, compression: str, error: object) -> CorruptShardError:
    return CorruptShardError(f"{name} is no whole {compression} file: {error}. Write it again", name=name)
