"""Objects, or ranges of them, that go straight to the client, and not to the disk."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from penstock.cachedir.versions import was_there_before
from penstock.errors import CacheError
from penstock.fetcher.pieces import MOST_AT_ONCE, SMALL_BYTES, PieceOwner
from penstock.storage.base import check_version
from penstock.storage.ranges import PIECE_BYTES, RANGES_AT_ONCE, bundle, coalesce, cut_object, cut_out, fitting_gap
from penstock.wire.item import Item, ItemPart, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.fetcher.counts import FetcherCounts
    from penstock.fetcher.pieces import PiecePool, RangeRead, StoreHandle, StoreHandles
    from penstock.storage.base import ObjectInfo
    from penstock.types import Place, Span
    from penstock.wire.settings import CachedStream

T = TypeVar("T")
Steps: TypeAlias = "Generator[Sequence[RangeRead], list[Any], T]"  # each gives what it waits for
_Found: TypeAlias = "tuple[dict[str, list[Buffer]], dict[str, ObjectInfo]]"  # by key: all ranges, and the version

_WORTH_A_BUNDLE = 3  # ranges of an object: two take two threads in either way


class VersionWatch(Protocol):
    """Knows which versions of objects belong to an edition."""

    def tag(self, directory: Path, edition: str, key: str) -> str | None:
        """Return the version that a ranged read of an object has to be of, if it was read before."""

    def check(self, directory: Path, item: Item, infos: Sequence[ObjectInfo], handle: StoreHandle) -> None:
        """Raise if the objects of a shard are not of its edition."""


class ObjectReader:
    """Reads for all clients. No thread waits: each reading is a row of steps, done by threads that read last pieces."""

    def __init__(self, pool: PiecePool, counts: FetcherCounts, handles: StoreHandles, watch: VersionWatch) -> None:
        self.pool, self.counts, self.handles, self.watch = pool, counts, handles, watch

    def start(self, stream: CachedStream, places: Sequence[Place], edition: str, shards: Mapping[str, int]) -> Reading:
        """Read in the background; each object or range comes as a list of pieces."""
        reading = Reading(self, stream, edition)
        reading.go_on(reading.read(places, shards), None, None)
        return reading


class Reading(PieceOwner):
    """One question for objects or ranges, and how far its answer is: who asked first comes first."""

    def __init__(self, reader: ObjectReader, stream: CachedStream, edition: str) -> None:
        super().__init__(0.0, time.monotonic())
        self.total_bytes = 0
        self.future: Future[list[list[Buffer]]] = Future()
        self.pieces: Sequence[RangeRead] = ()  # being read now
        self._pool, self._counts, self._watch = reader.pool, reader.counts, reader.watch
        self._handle, self._directory, self._edition = reader.handles.of(stream), stream.directory, edition

    def go_on(self, steps: Steps[list[list[Buffer]]], found: Any, error: BaseException | None) -> None:
        """Do the next step with what the last one has asked for."""
        if error is None:
            self._counts.add("bytes", sum(piece.num_bytes for piece in self.pieces))
        try:
            self.pieces = steps.throw(error) if error is not None else steps.send(found)
        except StopIteration as end:
            self.future.set_result(end.value)
        except CancelledError as closing:
            failure = CacheError("the fetcher is closing")
            failure.__cause__ = closing
            self.future.set_exception(failure)
        except BaseException as failure:  # noqa: BLE001  raised where the answer is waited for
            self.future.set_exception(failure)
        else:
            AwaitedPieces(self._pool, self.pieces, partial(self.go_on, steps))

    def read(self, places: Sequence[Place], shards: Mapping[str, int]) -> Steps[list[list[Buffer]]]:
        """Return objects or ranges of them, all read at the same time: near ranges together, whole objects in pieces.

        `shards` numbers the objects that are shards of an edition: all that is ever read of one is of one version.
        """
        wanted: dict[str, list[Span]] = {}
        for key, span in places:
            if span is not None:
                wanted.setdefault(key, []).append(span)
        ranges = {
            key: coalesce(spans, gap_bytes=fitting_gap(spans), most_bytes=PIECE_BYTES) for key, spans in wanted.items()
        }
        keys, store = [key for key, span in places if span is None], self._handle.store
        described = yield [self._submit(key, 0, partial(store.stat, key)) for key in keys]
        whole: dict[str, ObjectInfo] = dict(zip(keys, described, strict=True))
        pinned = {key: self._watch.tag(self._directory, self._edition, key) for key in ranges}
        found, infos = yield from self._read_spans(ranges, pinned)
        if shards:
            yield [self._submit(next(iter(shards)), 0, partial(self._check, shards, infos, ranges))]
        objects = {key: cut_object(info.num_bytes) for key, info in whole.items()}
        complete, _ = yield from self._read_spans(objects, {key: info.etag for key, info in whole.items()})
        cut = {key: iter(cut_out(spans, ranges[key], found[key])) for key, spans in wanted.items()}
        return [complete[key] if span is None else [next(cut[key])] for key, span in places]

    def _check(
        self, shards: Mapping[str, int], infos: Mapping[str, ObjectInfo], ranges: Mapping[str, list[Span]]
    ) -> None:
        """Raise if shards are not of their edition; this may ask their store."""
        for key, number in shards.items():
            if key in infos:
                shard = Item((ItemPart(StoredFile(key, key, None)),), edition=self._edition, number=number)
                self._watch.check(self._directory, shard, [infos[key]], self._handle)
                self._counts.add_ranges((str(self._directory), shard.identity), sum(map(len, ranges[key])))

    def _read_spans(self, wanted: Mapping[str, list[Span]], etags: Mapping[str, str | None]) -> Steps[_Found]:
        """Read spans, each by a thread; of more than there are threads, many small ones of one object by one.

        Such calls do not tell which version they read. So the first range of the object is read after them, by itself:
        if that is of the version of before, or was written long before, all that came in between is of this version.
        """
        store = self._handle.store
        apart, together = _sort_out(self._handle, wanted)
        pinned, found, infos = dict(etags), dict[str, "list[Buffer]"](), dict[str, "ObjectInfo"]()
        while apart or together:
            begun_ns = time.time_ns()
            pieces = []
            for key, bundles in together.items():
                calls = _BundledCalls(store, key, wanted[key][0], pinned[key], len(bundles))
                self.total_bytes += len(wanted[key][0])
                pieces += [self._submit(key, sum(map(len, spans)), partial(calls.read, spans)) for spans in bundles]
            for key, spans in apart.items():
                read = partial(store.read_piece, key, etag=pinned[key])
                pieces += [self._submit(key, len(span), partial(read, span)) for span in spans]
            left = iter((yield pieces))
            for key, bundles in list(together.items()):
                parts = [next(left) for _ in bundles]
                ((first, info),) = [end for _, end in parts if end is not None]
                self._counts.add("bytes", len(wanted[key][0]))
                if pinned[key] is not None or info.etag is None or was_there_before(info, begun_ns):
                    found[key], infos[key] = [first, *(data for datas, _ in parts for data in datas)], info
                    del together[key]
                else:
                    pinned[key] = info.etag
            for key, spans in apart.items():
                answers = [next(left) for _ in spans]
                found[key], infos[key] = [data for data, _ in answers], answers[0][1]
                for _, info in answers:
                    check_version(self._handle.where(key), info, infos[key].etag)
            apart = {}
        return found, infos

    def _submit(self, key: str, num_bytes: int, action: Callable[[], object]) -> RangeRead:
        self.total_bytes += num_bytes
        return self._pool.submit(self, num_bytes, self._handle, key, action)


class AwaitedPieces:
    """Pieces that are wanted together: `then` is told once that all have come, or that one has failed.

    The thread that reads the last of them tells it. A failure ends the others.
    """

    def __init__(
        self, pool: PiecePool, pieces: Sequence[RangeRead], then: Callable[[list[Any], BaseException | None], None]
    ) -> None:
        self._pool, self._pieces, self._then = pool, pieces, then
        self._lock = threading.Lock()
        self._num_left = len(pieces)
        for piece in pieces:
            piece.future.add_done_callback(self._note)
        if not pieces:
            then([], None)

    def _note(self, future: Future[Any]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        with self._lock:
            if self._num_left == 0:  # one had failed before
                return
            self._num_left = 0 if error is not None else self._num_left - 1
            if self._num_left:
                return
        if error is not None:
            self._pool.cancel(self._pieces)
        self._then([] if error is not None else [piece.future.result() for piece in self._pieces], error)


class _BundledCalls:
    """Ranges of one object that are read by several calls: the one that ends last reads the first range, too."""

    def __init__(self, store: Any, key: str, first: Span, etag: str | None, num_calls: int) -> None:
        self._store, self._key, self._first, self._etag = store, key, first, etag
        self._lock, self._num_left = threading.Lock(), num_calls

    def read(self, spans: Sequence[Span]) -> tuple[list[Buffer], tuple[Buffer, ObjectInfo] | None]:
        """Return these ranges, and perhaps the first one with its version."""
        found = self._store.read_ranges(self._key, spans)
        with self._lock:
            self._num_left -= 1
            is_last = self._num_left == 0
        return found, self._store.read_piece(self._key, self._first, self._etag) if is_last else None


def _sort_out(
    handle: StoreHandle, wanted: Mapping[str, list[Span]]
) -> tuple[Mapping[str, list[Span]], dict[str, list[list[Span]]]]:
    """Return the ranges that are read one by one, and those read together, but for the first of each object."""
    num_ranges = sum(map(len, wanted.values()))
    if num_ranges <= MOST_AT_ONCE or not handle.reads_together:
        return wanted, {}
    # All threads together ask for so many at once. If there are more, fewer calls with more rounds take as many trips.
    num_rounds = -(-num_ranges // (MOST_AT_ONCE * RANGES_AT_ONCE))
    together = {
        key: bundle(spans[1:], most_bytes=SMALL_BYTES, num_rounds=num_rounds)
        for key, spans in wanted.items()
        if len(spans) >= _WORTH_A_BUNDLE and max(map(len, spans)) <= SMALL_BYTES // 2
    }
    return {key: spans for key, spans in wanted.items() if key not in together}, together
