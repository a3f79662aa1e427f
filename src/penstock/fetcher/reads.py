"""Objects, or ranges of them, that go straight to whoever asks, and not to the disk."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import CacheError
from penstock.fetcher.elastic_threads import ElasticThreads
from penstock.fetcher.pieces import MOST_SMALL, PieceOwner, split
from penstock.storage.base import check_version
from penstock.storage.pieces import PIECE_BYTES
from penstock.storage.ranges import coalesce, cut_out, fitting_gap
from penstock.wire.item import Item, ItemPart, StoredFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.fetcher.counts import Counts
    from penstock.fetcher.open_editions import EditionWatch
    from penstock.fetcher.origin import Origin, Origins
    from penstock.fetcher.pieces import PiecePool
    from penstock.storage.base import ObjectInfo
    from penstock.types import Place, Span
    from penstock.wire.settings import CachedStream


class Reading(PieceOwner):
    """One question for objects or ranges, and how far its answer is: who asked first comes first."""

    def __init__(self) -> None:
        super().__init__(0.0, time.monotonic())
        self.total_bytes = 0
        self.future: Future[list[list[Buffer]]] = Future()


class ObjectReader:
    """Reads for everybody, as many at once as small pieces are read at once; others wait for their turn."""

    def __init__(self, pool: PiecePool, counts: Counts, origins: Origins, watch: EditionWatch) -> None:
        self._pool = pool
        self._counts = counts
        self._origins = origins
        self._watch = watch
        self._threads = ElasticThreads(MOST_SMALL, "penstock-read")

    def start(self, stream: CachedStream, places: Sequence[Place], edition: str, shards: Mapping[str, int]) -> Reading:
        """Read in the background; each object or range comes as a list of pieces."""
        reading = Reading()
        reading.future = self._threads.submit(self._read, reading, stream, places, edition, shards)
        return reading

    def close(self) -> None:
        """Begin nothing more, and let the threads end; what they wait for ends with the pool of pieces."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(
        self, reading: Reading, stream: CachedStream, places: Sequence[Place], edition: str, shards: Mapping[str, int]
    ) -> list[list[Buffer]]:
        """Give objects or ranges of them, all read at the same time: near ranges together, whole objects in pieces.

        `shards` numbers the objects that are shards of an edition: all that is ever read of one is of one version.
        """
        origin = self._origins.of(stream)
        wanted: dict[str, list[Span]] = {}
        for key, span in places:
            if span is not None:
                wanted.setdefault(key, []).append(span)
        ranges = {
            key: coalesce(spans, gap_bytes=fitting_gap(spans), most_bytes=PIECE_BYTES) for key, spans in wanted.items()
        }
        try:
            keys = [key for key, span in places if span is None]
            asked = [self._pool.submit(reading, 0, origin, key, partial(origin.store.stat, key)) for key in keys]
            whole: dict[str, ObjectInfo] = dict(zip(keys, self._pool.wait(asked), strict=True))
            pinned = {key: self._watch.tag(stream.directory, edition, key) for key in ranges}
            found, infos = self._read_all(origin, reading, ranges, pinned)
            for key, number in shards.items():
                if key in infos:
                    shard = Item((ItemPart(StoredFile(key, key, None)),), edition=edition, number=number)
                    self._watch.check(stream.directory, shard, [infos[key]], origin)
                    self._counts.add_ranges((stream.directory, shard.identity), sum(map(len, ranges[key])))
            objects = {key: split(info.num_bytes) for key, info in whole.items()}
            etags = {key: info.etag for key, info in whole.items()}
            complete, _ = self._read_all(origin, reading, objects, etags)
        except CancelledError as error:
            raise CacheError("the fetcher is closing") from error
        cut = {key: iter(cut_out(spans, ranges[key], found[key])) for key, spans in wanted.items()}
        return [complete[key] if span is None else [next(cut[key])] for key, span in places]

    def _read_all(
        self, origin: Origin, reading: Reading, wanted: Mapping[str, list[Span]], etags: Mapping[str, str | None]
    ) -> tuple[dict[str, list[Buffer]], dict[str, ObjectInfo]]:
        def read(key: str, span: Span) -> tuple[Buffer, ObjectInfo]:
            return origin.store.read_piece(key, span, etags[key])

        reading.total_bytes += sum(len(span) for spans in wanted.values() for span in spans)
        pieces = [
            self._pool.submit(reading, len(span), origin, key, partial(read, key, span))
            for key, spans in wanted.items()
            for span in spans
        ]
        answers = iter(self._pool.wait(pieces))
        self._counts.add("bytes", sum(piece.num_bytes for piece in pieces))
        found = {key: [next(answers) for _ in spans] for key, spans in wanted.items()}
        infos = {key: parts[0][1] for key, parts in found.items() if parts}
        for key, info in infos.items():
            for _, other in found[key]:
                check_version(origin.where(key), other, info.etag)
        return {key: [data for data, _ in parts] for key, parts in found.items()}, infos
