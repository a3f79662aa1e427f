"""Takes what everybody asks for and expects, and has it fetched, the most urgent first, by a bounded set of threads.

It knows nothing of sockets: the fetcher process serves it to others, and stores that live in the memory of one process
run it in that process. Its lock is never held during IO, nor while a directory is waited for: whoever asks, withdraws
or looks in comes back at once. Only `register`, `unregister` and `expect` may take their time.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

from penstock.cachedir.folder import prepare_folder
from penstock.cachedir.items import names_of
from penstock.cachedir.lock import Stripes
from penstock.errors import CacheError
from penstock.fetcher.budget import DiskBudget
from penstock.fetcher.counts import FetcherCounts
from penstock.fetcher.dispatcher import Dispatcher
from penstock.fetcher.downloader import Downloader
from penstock.fetcher.origin import Origins
from penstock.fetcher.pieces import PiecePool
from penstock.fetcher.queue import ItemKey, ItemQueue, QueuedItem, Request, State, ahead_in
from penstock.fetcher.reads import ObjectReader
from penstock.fetcher.share_board import ShareBoard
from penstock.storage.retry import RetryHooks
from penstock.wire.messages import NodeCounts, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.errors import StoreError
    from penstock.fetcher.counts import GroupKey
    from penstock.fetcher.reads import Reading
    from penstock.types import Place
    from penstock.wire.ahead import IndexesAhead
    from penstock.wire.item import Item, Want
    from penstock.wire.messages import StreamCounts
    from penstock.wire.settings import CachedStream
    from penstock.wire.share import Share

_NOT_ANNOUNCED = "a client asked the fetcher about a stream that it had not announced"
_MANY = 1000  # entries of a plan that are looked at before others have their turn


class Scheduler:
    """Safe for threads. Every wish ends: with the item, with an error, or with the client that made it."""

    def __init__(self, ahead: IndexesAhead | None = None) -> None:
        self._lock = threading.RLock()
        self._queue = ItemQueue()
        self._plans: dict[GroupKey, dict[ItemKey, int]] = {}  # replaced as a whole, never changed
        self._groups: dict[GroupKey, tuple[CachedStream, ...]] = {}
        self._counts = FetcherCounts()
        self._pool = PiecePool(self._counts.add_arrived)
        stripes = Stripes()
        self._budget = DiskBudget(stripes)
        self._shares = ShareBoard(self._budget)
        origins = Origins(
            RetryHooks(
                sleep=self._pool.pause,
                on_retry=self._note_retry,
                on_bytes=self._pool.note_bytes,
                on_life=self._pool.note_life,
            )
        )
        self._downloader = Downloader(
            stripes=stripes, budget=self._budget, pool=self._pool, counts=self._counts, origins=origins, ahead=ahead
        )
        self._reader = ObjectReader(self._pool, self._counts, origins, self._downloader.watch)
        self._dispatcher = Dispatcher(
            self._lock,
            self._queue,
            downloader=self._downloader,
            budget=self._budget,
            shares=self._shares,
            counts=self._counts,
        )

    # --- Clients --------------------------------------------------------------------------------------------

    def register(
        self,
        group: GroupKey,
        streams: Sequence[CachedStream],
        limit_bytes: int | None,
        on_share: Callable[[Share], None] = lambda _: None,
        on_caused: Callable[[int, StreamCounts], None] = lambda *_: None,
    ) -> list[str]:
        """Learn of a group of directories; gives warnings to show to its user.

        `on_share` hears at once, and whenever it changes, what the group may keep open, and `on_caused` of each
        download that one of its streams has caused. They must not wait for anything.
        """
        risks = [prepare_folder(stream.directory, is_private=stream.is_private) for stream in streams]
        warnings = [text for texts in risks for text in texts]
        warnings += self._budget.open(
            group,
            [stream.directory for stream in streams],
            limit_bytes,
            copies=[stream.directory for stream in streams if stream.copies_local_files],
        )
        too_full = self._budget.trim()
        with self._lock:
            self._groups[group] = tuple(streams)
            self._counts.open(group, on_caused)
            self._shares.join(group, on_share)
            self._dispatcher.note_too_full(too_full)
        self._shares.tell()
        return warnings

    def unregister(self, group: GroupKey) -> None:
        """Forget a group, its plan and its requests."""
        with self._lock:
            streams = self._groups.pop(group, ())
            for key in self._plans.pop(group, {}):
                self._unplan(group, key)
            gone = [request for queued in self._queue.items.values() for request in queued.requests]
            for request in gone:
                if request.group == group:
                    self.withdraw(request)
            self._shares.leave(group)
            self._counts.close(group)
            left = {str(stream.directory) for other in self._groups.values() for stream in other}
            self._cancel(queued for queued in self._queue.items.values() if queued.key[0] not in left)
        self._budget.close(group)
        self._protect(streams)
        self.released()
        self._shares.tell()

    def drop_client(self, client: int) -> None:
        """Forget all groups of a client that left."""
        with self._lock:
            groups = [group for group in self._groups if group[0] == client]
        for group in groups:
            self.unregister(group)

    # --- Wishes ---------------------------------------------------------------------------------------------

    def ask(self, group: GroupKey, stream: int, item: Item, *, is_urgent: bool = True) -> Request:
        """Request an item; the future of the request gives what was done, or the error."""
        settings = self._stream(group, stream)
        key = str(settings.directory), item.identity
        request = Request(group, stream, is_urgent, settings.timeout_s, key)
        with self._lock:
            queued = self._queue.get(key, lambda: QueuedItem(settings.directory, item, settings))
            if item.refresh and not queued.item.refresh:
                queued.item = item
            queued.requests.append(request)
            self._queue.update(queued)
            self._dispatcher.wake()
        return request

    def withdraw(self, request: Request) -> None:
        """Take a request back."""
        with self._lock:
            self._queue.forget(request)
            queued = self._queue.items.get(request.key)
            if queued is not None and request in queued.requests:
                queued.requests.remove(request)
                self._queue.reconsider(queued)
            request.future.cancel()

    def expect(self, group: GroupKey, wants: Sequence[Want]) -> None:
        """Replace a group's plan: bring what is absent, soonest first, and keep what is there."""
        plan: dict[ItemKey, int] = {}
        try:
            streams = self._groups[group]
            directories = [str(stream.directory) for stream in streams]
            for want in wants:
                key = directories[want.stream], want.item.identity
                plan[key] = min(want.ahead, plan.get(key, want.ahead))
        except (KeyError, IndexError) as error:
            raise CacheError(_NOT_ANNOUNCED) from error
        with self._lock:
            old, self._plans[group] = self._plans.get(group, {}), plan
            for key in old.keys() - plan.keys():
                self._unplan(group, key)
        absent = (want for want in wants if not want.is_present)
        while some := list(islice(absent, _MANY)):
            with self._lock:
                if group not in self._groups:
                    return
                for want in some:
                    self._prefetch(group, want, streams[want.stream])
                self._dispatcher.wake()
        self._protect(streams)
        self.released()

    def released(self) -> None:
        """Note that there may be room now where there was none."""
        with self._lock:
            self._queue.unpark()
            self._dispatcher.wake()

    def take_notice(self, group: GroupKey, stream: int) -> str | None:
        """Give what the user of a stream should be warned of, once."""
        return self._budget.take_notice(self._stream(group, stream).directory)

    def taken(self, group: GroupKey, stream: int, identity: str) -> None:
        """Note that the reader of an item has locked it itself."""
        self._budget.taken(self._stream(group, stream).directory, names_of(identity))

    def read(
        self, group: GroupKey, stream: int, places: Sequence[Place], edition: str, shards: Mapping[str, int]
    ) -> Reading:
        """Read objects or ranges of them, each in pieces, without touching the disk."""
        return self._reader.start(self._stream(group, stream), places, edition, shards)

    # --- Looking in -----------------------------------------------------------------------------------------

    def _note_retry(self, error: StoreError) -> None:
        self._counts.add("retries")
        self._pool.note_retry(error)

    def progress(self, request: Request) -> Progress:
        """Say how far the request is that somebody waits for."""
        with self._lock:
            queued = self._queue.items.get(request.key)
            if queued is None or request not in queued.requests:
                return Progress()
            transfer = queued.transfer
            total = queued.item.packed_bytes or queued.item.raw_bytes if transfer is None else transfer.total_bytes
            done = 0 if transfer is None else transfer.num_bytes_done
            return Progress(
                name=queued.item.name,
                num_bytes=min(done, total) if total else done,  # what was cut or damaged came more than once
                total_bytes=total,
                bytes_per_s=self._counts.rate(),
                position=self._queue.position(queued),
                num_wanted=len(self._queue),
                state=queued.state.name.lower(),
                reason="" if transfer is None else transfer.retry_reason,
            )

    def progress_of_read(self, reading: Reading) -> Progress:
        """Say how far a read is; one whose store hangs has failed then."""
        self._reader.look_at(reading)
        return Progress(
            name="ranges",
            num_bytes=min(reading.num_bytes_done, reading.total_bytes),
            total_bytes=reading.total_bytes,
            bytes_per_s=self._counts.rate(),
            num_wanted=1,
            state="reading",
            reason=reading.retry_reason,
        )

    def stats(self) -> NodeCounts:
        """Give counts since the start, and what goes on now."""
        with self._lock:
            num_running = sum(queued.state is State.RUNNING for queued in self._queue.items.values())
            return NodeCounts(
                **self._counts.totals(),
                evictions=self._budget.num_evictions,
                evicted_bytes=self._budget.evicted_bytes,
                in_flight=num_running,
                queued=len(self._queue) - num_running,
                pieces_in_flight=self._pool.num_running,
                concurrency=self._pool.limit,
                bytes_per_s=self._counts.rate(),
                directories=self._budget.usage(),
                groups=len(self._groups),
            )

    def close(self) -> None:
        """Stop. What is on its way is given up; its temporary files are removed as its threads notice."""
        with self._lock:
            self._cancel(self._queue.items.values())
            for queued in self._queue.items.values():
                for request in queued.requests:
                    request.future.cancel()
            self._dispatcher.close()
        self._pool.close()
        self._downloader.close()
        self._budget.close_folders()

    def join(self, timeout_s: float) -> bool:
        """Wait until the threads have ended that work on items, and tell whether they have."""
        return self._dispatcher.join(timeout_s)

    # --- Keeping the books (under the lock) -----------------------------------------------------------------

    def _stream(self, group: GroupKey, stream: int) -> CachedStream:
        with self._lock:
            try:
                return self._groups[group][stream]
            except (KeyError, IndexError) as error:
                raise CacheError(_NOT_ANNOUNCED) from error

    def _prefetch(self, group: GroupKey, want: Want, settings: CachedStream) -> None:
        key = str(settings.directory), want.item.identity
        if self._dispatcher.has_just_failed(key):
            return
        queued = self._queue.get(key, lambda: QueuedItem(settings.directory, want.item, settings))
        before = queued.soonest()
        is_new = not queued.is_wanted
        queued.ahead[group, want.stream] = want.ahead
        if is_new or queued.soonest() != before:
            self._queue.update(queued)

    def _unplan(self, group: GroupKey, key: ItemKey) -> None:
        queued = self._queue.items.get(key)
        if queued is not None:
            queued.ahead = {whose: ahead for whose, ahead in queued.ahead.items() if whose[0] != group}
            self._queue.reconsider(queued)

    def _cancel(self, items: Iterable[QueuedItem]) -> None:
        for transfer in [queued.transfer for queued in items]:
            if transfer is not None:
                transfer.is_cancelled = True
                self._pool.cancel_all_of(transfer)

    def _protect(self, streams: Iterable[CachedStream]) -> None:
        """Without the lock: tell the directories that may have to evict something what is expected of them."""
        directories = {str(stream.directory): stream.directory for stream in streams}
        evicting = {name: directory for name, directory in directories.items() if self._budget.may_evict(directory)}
        if not evicting:
            return
        with self._lock:
            plans = list(self._plans.values())
        merged = ahead_in(evicting, plans)
        for name, directory in evicting.items():
            self._budget.expect(directory, merged[name])
