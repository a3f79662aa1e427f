"""One object as a scan reads it: its end at once, any range, or all of it, decompressed on the way."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.codecs.stream import decompress_stream
from penstock.errors import CorruptShardError, ObjectChangedError, StoreError
from penstock.storage.local import LocalStore
from penstock.storage.ranges import cut_span
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.codecs.stream import FrameStart
    from penstock.storage.base import ObjectInfo, Store

_CHUNK_BYTES = 4 << 20
_AHEAD = 4  # pieces of one object that are read at once, unless it is said otherwise
# A store answers after 30 ms or so, and then gives some 100 MB/s. A file is opened in 50 µs, and gives 1 GB/s and more.
_SEEK_BYTES = 8 << 20
_SEEK_BYTES_HERE = 128 << 10
# What is compressed so may be cut where frames begin; others have padding between them, or no frames.
_CUT_AT_FRAMES = ("zstd", "gz", "bz2")
_FRAME_BYTES = 1 << 20


class MissingBytes(Exception):  # noqa: N818  not an error: the scan gets them and begins anew
    """Says which bytes of an object a scan needs next."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


class ScannedObject:
    """Reads an object in the version that was listed; another one is an `ObjectChangedError`."""

    def __init__(
        self,
        store: Store,
        info: ObjectInfo,
        compression: str | None = None,
        on_bytes: Callable[[bytes, int], None] = lambda _, __: None,
        ahead: int = _AHEAD,
    ) -> None:
        self.name = info.key
        self.num_bytes = info.num_bytes
        self.is_compressed = compression is not None
        self.seek_bytes = _SEEK_BYTES_HERE if isinstance(store, LocalStore) else _SEEK_BYTES
        self._store, self._info, self._compression = store, info, compression
        self._ahead = ahead
        self._on_bytes = on_bytes  # hears of bytes, and where in the object they stand
        self._held: list[tuple[Span, bytes]] = []
        self._most_missing = 0
        self.frame_starts: list[FrameStart] = []

    def local_path(self) -> Path | None:
        """Return the path of the object, if it is a local file still in the version that was listed."""
        if not isinstance(self._store, LocalStore):
            return None
        self._check(self._store.stat(self.name))
        return self._store.root / self.name

    def fetch_tail(self, num_bytes: int) -> None:
        """Read the end of the object, before any of it is asked for."""
        span = self.tail(num_bytes)
        self._held.append((span, self._piece(span)))

    def tail(self, num_bytes: int) -> Span:
        """Return where the last bytes are, so many or all."""
        return Span(max(0, self.num_bytes - num_bytes), self.num_bytes)

    def hold(self, span: Span, data: Buffer, info: ObjectInfo) -> None:
        """Take what was read of the object elsewhere, before any of it is asked for."""
        self._held.append((span, self._checked(span, data, info)))

    def miss(self, most_bytes: int) -> None:
        """From now on, raise `MissingBytes` instead of reading a range of at most so many bytes."""
        self._most_missing = most_bytes

    def read(self, begin: int, end: int) -> bytes:
        """Return a range."""
        if self.is_compressed or not 0 <= begin <= end <= self.num_bytes:
            raise CorruptShardError(
                f"{self.name} has {self.num_bytes} bytes, so there are no bytes {begin} to {end}: it was cut off, or"
                " has another format"
            )
        for span, data in self._held:
            if span.begin <= begin and end <= span.end:
                return data[begin - span.begin : end - span.begin]
        if begin < end <= begin + self._most_missing:
            raise MissingBytes(Span(begin, end))
        return b"".join(self._pieces(Span(begin, end)))

    def chunks(self, begin: int = 0) -> Iterator[bytes]:
        """Return all of it, in order, or what is stored from a byte on; of a compressed object, its content."""
        stored = self._pieces(Span(min(begin, self.num_bytes), self.num_bytes))
        if self._compression is None:
            return stored
        self.frame_starts = []
        return decompress_stream(stored, self._compression, self.name, self._note_frame)

    def _note_frame(self, start: FrameStart) -> None:
        """Keep the beginnings of frames, but not those of many small ones."""
        last = self.frame_starts[-1] if self.frame_starts else None
        is_apart = last is not None and start.content - last.content >= _FRAME_BYTES
        if last is None or (is_apart and self._compression in _CUT_AT_FRAMES):
            self.frame_starts.append(start)

    def _pieces(self, span: Span) -> Iterator[bytes]:
        """Yield a span in pieces, some of them read ahead."""
        spans = deque(cut_span(span, _CHUNK_BYTES))
        if len(spans) <= 1:
            yield from map(self._piece, spans)
            return
        with ThreadPoolExecutor(self._ahead, thread_name_prefix="penstock-scan") as threads:
            running = deque(threads.submit(self._piece, spans.popleft()) for _ in range(min(self._ahead, len(spans))))
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
        return self._checked(span, *self._store.read_piece(self.name, span, None))

    def _checked(self, span: Span, data: Buffer, info: ObjectInfo) -> bytes:
        self._check(info)
        data = bytes(data)
        if len(data) != len(span):
            raise StoreError(f"{self.name}: asked for {len(span)} bytes, got {len(data)}")
        self._on_bytes(data, span.begin)
        return data

    def _check(self, info: ObjectInfo) -> None:
        if info.num_bytes != self.num_bytes or info.version != self._info.version:
            raise ObjectChangedError(
                f"{self.name} changed while it was being indexed: try again when it is no longer being written",
                key=self.name,
            )
