"""The cache as a dataset sees it: lease a shard, say what comes next, read a few bytes."""

from __future__ import annotations

import json
import logging
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.cache.client import Client, Group, shared_client
from penstock.cache.lease import Lease, Paths, find_damaged, try_lease
from penstock.cache.local_line import local_line
from penstock.cache.progress import wait_line
from penstock.cache.shares import ShareListeners
from penstock.cache.stats import CacheCounts
from penstock.cachedir.editions import Edition, OpenEdition
from penstock.cachedir.folder import uncounted_bytes
from penstock.cachedir.items import item_of_index, item_of_object, item_of_shard, raw_files, resolved
from penstock.cachedir.layout import pin_path
from penstock.cachedir.once import keep_index
from penstock.cachedir.presence import tries
from penstock.errors import CacheError, CacheTooSmallError, ConfigError, CorruptShardError, FetcherError, StoreError
from penstock.files import atomic_write, os_errors
from penstock.index.catalog import parse_index_file
from penstock.index.paths import INDEX_NAME, is_shard_name
from penstock.processes import PerProcess
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.ranges import PIECE_BYTES, join_neighbours
from penstock.thread_times import waiting
from penstock.units import format_bytes
from penstock.wire.ahead import NOTHING, pack_ahead
from penstock.wire.item import Item, Want
from penstock.wire.messages import Expect, Fetch, GetStats, GetStreamCounts, LeaseAcquired, Read, Released
from penstock.wire.quota import UNHEARD
from penstock.wire.settings import CachedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from penstock.cache.local_line import LocalLine
    from penstock.cache.shares import ShareListener
    from penstock.cache.stats import CacheStats
    from penstock.index.model import Index
    from penstock.types import Place
    from penstock.wire.messages import Fetched, GroupUpdate

    Line: TypeAlias = Client | LocalLine
    _Numbers: TypeAlias = Mapping[str, int] | None

__all__ = ["Cache", "CachedStream"]

_log = logging.getLogger("penstock.cache")
_LONG_WAIT_S = 2.0
_ALONE_S = 10.0


class _ProcessState:
    """What one process has of a cache."""

    def __init__(self, streams: Sequence[CachedStream]) -> None:
        self.paths = [Paths(stream.directory) for stream in streams]
        self.opened: list[tuple[OpenEdition, Index] | None] = [None for _ in streams]
        self.lock = threading.Lock()
        self.groups: dict[Line, Group] = {}  # by what is asked: two if some streams are in the memory of this process
        self.listeners = ShareListeners()
        self.alone_until = 0.0  # there is no line to the fetcher, and none is tried for so long


class Cache:
    """The local copies of some streams, shared with every process of the node.

    Each stream is read in the edition that `open_index` found, from then on and in every process that gets the cache:
    a shard counts as here only if it is the shard of that edition. It pickles as its settings and may be used in
    forked children: each process makes its own connection on first use. Safe for threads.
    """

    def __init__(
        self, streams: Sequence[CachedStream], *, limit_bytes: int | None = None, counts: CacheCounts | None = None
    ) -> None:
        if limit_bytes is not None and limit_bytes <= 0:
            raise ConfigError(f"cache_limit is {limit_bytes} bytes, too small for any shard: raise it")
        self.streams = tuple(resolved(stream) for stream in streams)
        self.limit_bytes = limit_bytes
        self.indexes: list[tuple[str, Index] | None] = [None] * len(self.streams)
        self.revisions: list[str | None] = [None] * len(self.streams)  # the commits that were opened
        self.has_ranges = [True] * len(self.streams)  # whether parts of its objects can be fetched
        self._counts = counts or CacheCounts([str(number) for number in range(len(streams))])
        self._process = PerProcess(partial(_ProcessState, self.streams))

    # --- Editions -------------------------------------------------------------------------------------------

    def open_index(self, stream: int) -> Index:
        """Fetch the index of a stream, since the data may have been written anew, and read that edition from now on.

        If the store is away, the edition that was opened last serves, with a warning.
        """
        settings, item = self.streams[stream], item_of_index(self.streams[stream].files)
        where = f"{shown_url(settings.store.url).rstrip('/')}/{item.name}"
        for _ in tries():
            answer = self._fetch(stream, item, is_urgent=True)
            edition = Edition(settings.directory, answer.edition)
            opened = OpenEdition(edition)
            if not opened.hold():
                continue  # a newer edition was opened at the same moment, and this one removed
            path = edition.index_path
            try:
                num_bytes = path.stat().st_size
                index = keep_index(edition.name, num_bytes, partial(parse_index_file, path, where))
            except FileNotFoundError:
                opened.close()
                continue
            if answer.away is not None:
                text = f"cannot read {where}, so penstock uses the copy that it fetched last, in {settings.directory}"
                warnings.warn(f"{text}. The error was: {answer.away}", stacklevel=7)
            self.indexes[stream], self.revisions[stream] = (edition.name, index), answer.revision
            self.has_ranges[stream] = answer.has_ranges
            self._process.get().opened[stream] = opened, index
            return index
        raise CacheError(f"{where} was replaced again and again while it was being opened: try again later")

    def _opened(self, stream: int) -> tuple[OpenEdition, Index]:
        """Return the edition that is read and its index, opening it if it is not open yet."""
        state = self._process.get()
        found = state.opened[stream]
        if found is not None:
            return found
        known = self.indexes[stream]
        if known is None:
            self.open_index(stream)
            return self._opened(stream)
        name, index = known
        found = state.opened[stream] = OpenEdition(Edition(self.streams[stream].directory, name)), index
        return found

    # --- Shards ---------------------------------------------------------------------------------------------

    def lease(self, stream: int, shard: int, what: str | None = None) -> Lease:
        """Return a shard, by its number, that stays while the lease is open, waiting for it if it is not here yet.

        `what` says what is being waited for, such as `shard 12/873`.
        """
        state = self._process.get()
        lease = self._try_lease(stream, shard)
        if lease is not None:
            self._counts.add(stream, hits=1)
            if state.listeners:
                self._listen(stream)
            return lease
        begin = time.monotonic_ns()
        item = self._item(stream, shard)
        try:
            with waiting:
                return self._wait_for(stream, shard, item, what)
        finally:
            waited_ns = time.monotonic_ns() - begin
            self._counts.add(stream, waits=1, waiting_ns=waited_ns)
            if waited_ns > _LONG_WAIT_S * 1e9:
                _log.info("waited %.1f s for %s", waited_ns / 1e9, item.name)

    def is_present(self, stream: int, shard: int) -> bool:
        """Return True if a shard is here now. Only a lease keeps it here."""
        state = self._process.get()
        opened, index = state.opened[stream] or self._opened(stream)
        entry = opened.entry(shard)
        if entry is None:
            return False
        name, num_bytes = raw_files(index.shards[shard], self.streams[stream].columns)[0]
        return entry.is_first_at(state.paths[stream](opened.edition.name_of(name, entry)), num_bytes)

    def expect(self, wanted: Sequence[tuple[int, int, int]]) -> None:
        """Announce which shards will be wanted, as (stream, shard, batches ahead), soonest first.

        Replaces what was said before. Absent shards are fetched meanwhile, and none of them is evicted before its
        time if that can be avoided. Never waits for a download.
        """
        plans: dict[Line, list[Want]] = {}
        for stream, shard, ahead in wanted:
            want = Want(stream, self._item(stream, shard), ahead, self.is_present(stream, shard))
            plans.setdefault(self._line(stream), []).append(want)
        groups = self._process.get().groups
        for line in {*plans, *groups}:
            wants = plans.get(line, [])
            is_all_there = all(want.is_present for want in wants)
            if is_all_there and (line not in groups or not line.is_connected):
                continue
            group = self._group(line)
            group.plan = Expect(group.number, tuple(wants))
            if line.is_connected:
                line.note(group.plan)
            elif not is_all_there:
                line.request(group.plan)

    def warm(self, stream: int, shards: Sequence[int], on_shard: Callable[[], None] | None = None) -> None:
        """Fetch shards now and wait until all are here together; `on_shard` is called as each one is."""
        index = self._opened(stream)[1]
        needed = sum(part.raw.num_bytes for shard in shards for part in index.shards[shard].parts)
        if self.limit_bytes is not None and needed > self.limit_bytes:
            raise CacheTooSmallError(
                f"{len(shards)} shards take {format_bytes(needed)}, more than the cache limit of"
                f" {format_bytes(self.limit_bytes)}: raise cache_limit, or warm fewer shards",
                needed=needed,
                limit=self.limit_bytes,
            )
        self.expect([(stream, shard, 0) for shard in shards])
        for shard in shards:
            if not self.is_present(stream, shard):
                self._fetch(stream, self._item(stream, shard), is_urgent=False)
            if on_shard is not None:
                on_shard()

    def pin(self, stream: int, shards: Sequence[int]) -> None:
        """Keep shards from being evicted, in this job and in later ones, until they are unpinned."""
        for name, path in self._pins(stream, shards):
            with os_errors(path), atomic_write(path) as part:
                part.write_text(json.dumps(name))

    def unpin(self, stream: int, shards: Sequence[int]) -> None:
        """Let shards be evicted again."""
        for _, path in self._pins(stream, shards):
            with os_errors(path):
                path.unlink(missing_ok=True)
        self._released()

    def _pins(self, stream: int, shards: Sequence[int]) -> Iterator[tuple[str, Path]]:
        index, directory = self._opened(stream)[1], self.streams[stream].directory
        for shard in shards:
            name = raw_files(index.shards[shard], self.streams[stream].columns)[0][0]
            yield name, pin_path(directory, name)

    # --- Other objects --------------------------------------------------------------------------------------

    def fetch_object(
        self, stream: int, key: str, name: str | None = None, *, refresh: bool = False, num_bytes: int | None = None
    ) -> Path:
        """Bring an object that is no shard to the directory, and return its path.

        It is counted and evicted like a shard. With `refresh` it is fetched even if it is here.
        """
        name = key if name is None else name
        if not is_shard_name(name):
            raise ConfigError(f"{name!r} cannot be the name of a file in a dataset: pass another one as `local`")
        edition = self._opened(stream)[0].edition.name
        item = item_of_object(key, name, num_bytes, edition=edition, refresh=refresh)
        answer = self._fetch(stream, item, is_urgent=True)
        return Path(self._process.get().paths[stream](answer.name))

    def read_many(
        self, stream: int, places: Sequence[Place], shards: _Numbers = None, on_asked: Callable[[], None] = lambda: None
    ) -> list[bytes]:
        """Return several ranges of objects, or whole ones, read at the same time, without touching the disk.

        `shards` numbers the objects that are shards: whatever is read of one, now and later, is of one version.
        `on_asked` is called while they are being read: what it says to expect comes after them.
        """
        if not places:
            return []
        edition = self._opened(stream)[0].edition.name
        names = {key for key, _ in places}
        what = f"parts of {places[0][0]}" if len(names) == 1 else f"parts of {len(names)} shards"
        begin = time.monotonic_ns()
        stretches = join_neighbours(places, most_bytes=PIECE_BYTES)
        wanted = tuple(place for place, _ in stretches)
        with wait_line(what, self._described(stream, what)) as show:
            line, group = self._asked(stream)
            message = Read(group.number, stream, wanted, edition, dict(shards or {}))
            came, payload = line.request(message, on_progress=show, on_asked=on_asked)
        found = [payload] if len(places) == 1 else _cut(payload, came.sizes, [sizes for _, sizes in stretches])
        self._counts.add(stream, waiting_ns=time.monotonic_ns() - begin, downloaded_bytes=sum(map(len, found)))
        return found

    def keep(self, listener: ShareListener) -> None:
        """Limit what a listener, which must be held elsewhere, may keep open between uses from now on."""
        self._process.get().listeners.add(listener)

    def stats(self) -> CacheStats:
        """Return the counts of this cache in this process."""
        self.refresh_counts()
        return self._counts.read()

    def refresh_counts(self) -> None:
        """Count now what was fetched for this process; without being asked, the fetcher tells it a moment later."""
        for line, group in list(self._process.get().groups.items()):
            if line.is_connected:
                group.on_update(line.request(GetStreamCounts(group.number))[0])

    @property
    def index_bytes(self) -> int:
        """What the indexes take that lie beside the shards."""
        indexes = {stream.directory / INDEX_NAME for stream in self.streams}
        return sum(path.stat().st_size for path in indexes if path.is_file())

    def node_stats(self) -> dict[str, Any]:
        """Return the counts of the fetcher, which serves all processes of this user; empty if none runs."""
        lines = sorted(self._process.get().groups, key=lambda line: line.name)  # the fetcher comes first
        counts = next((asdict(line.request(GetStats())[0]) for line in lines if line.is_connected), {})
        num_bytes = sum(map(uncounted_bytes, {stream.directory for stream in self.streams}))
        return counts and {**counts, "uncounted_bytes": num_bytes}

    def close(self) -> None:
        """Hang up. Leases stay; using the cache again connects anew, and goes on with the same editions."""
        state = self._process.made
        if state is None:
            return
        with state.lock:
            groups = list(state.groups.items())
            state.groups.clear()
        state.listeners.forget()
        for found in state.opened:
            if found is not None:
                found[0].close()
        for line, group in groups:
            line.leave(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        process = getattr(self, "_process", None)  # none if its settings were refused
        if process is not None and process.made is not None and process.made.groups:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_process"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._process = PerProcess(partial(_ProcessState, self.streams))

    # --- Inside ---------------------------------------------------------------------------------------------

    def _item(self, stream: int, shard: int) -> Item:
        (opened, index), settings = self._opened(stream), self.streams[stream]
        edition = opened.edition.name
        return item_of_shard(index.shards[shard], shard, edition, settings.validate_hash, settings.columns)

    def _try_lease(self, stream: int, shard: int) -> Lease | None:
        state = self._process.get()
        opened, index = state.opened[stream] or self._opened(stream)
        entry = opened.entry(shard)
        if entry is None:
            return None
        raw = raw_files(index.shards[shard], self.streams[stream].columns)
        path_of, name_of = state.paths[stream], opened.edition.name_of
        paths = [path_of(name_of(name, entry)) for name, _ in raw]
        lease = try_lease(paths, [num_bytes for _, num_bytes in raw], entry, self._released)
        if lease is None or self.streams[stream].validate_hash is None or opened.edition.is_checked(shard, entry):
            return lease
        item = self._item(stream, shard)
        damaged = find_damaged(zip(lease.paths, (part.raw for part in item.parts), strict=True))
        if damaged is None:
            with suppress(StoreError):  # the disk is full: it is checked again the next time
                opened.edition.note_checked(shard, entry)
            return lease
        lease.close()
        self.fetch_again(stream, item, damaged)
        return None  # who waits for it finds the new one

    def _wait_for(self, stream: int, shard: int, item: Item, what: str | None) -> Lease:
        for _ in tries():
            self._fetch(stream, item, is_urgent=True, what=what)
            opened, _ = self._opened(stream)
            if opened.is_lost():
                opened.close()  # the cache was deleted: the fetcher has made a new table
            lease = self._try_lease(stream, shard)
            if lease is not None:
                line, group = self._asked(stream)
                line.note(LeaseAcquired(group.number, stream, item.identity))
                return lease
        raise CacheError(
            f"{item.name} was deleted from {self.streams[stream].directory} as soon as it was fetched,"
            " again and again: find out what else deletes files there",
            name=item.name,
        )

    def _fetch(self, stream: int, item: Item, *, is_urgent: bool, what: str | None = None) -> Fetched:
        with wait_line(what, self._described(stream, what or item.name)) as show:
            line, group = self._asked(stream)
            ahead = NOTHING
            if item.is_index and not line.is_connected:  # the streams before it have been opened
                ahead = pack_ahead(item.parts[0].raw.key, self.streams[stream:])
            message = Fetch(group.number, stream, item, is_urgent)
            answer = line.request(message, on_progress=show, ahead=ahead)[0]
        _warn(answer.warnings)
        return answer

    def fetch_again(self, stream: int, item: Item, damaged: Path) -> None:
        """Replace a file that changed in the cache, or on its disk, without a new time."""
        _log.warning("%s does not have the digest that the index says: it is fetched again", damaged)
        try:
            self._fetch(stream, item._replace(refresh=True), is_urgent=True)
        except StoreError as error:
            raise CorruptShardError(
                f"{damaged} does not have the digest that the index says: it was damaged after it was fetched, and"
                f" cannot be fetched again ({error}): make its store available, or delete the file",
                path=str(damaged),
            ) from error

    def _listen(self, stream: int) -> None:
        """Connect to the fetcher, which may ask for shards that are kept open; without a line, none are."""
        state = self._process.get()
        if time.monotonic() < state.alone_until:
            return
        try:
            line, _ = self._asked(stream)
            if not line.is_connected:
                line.connect()
        except (FetcherError, ConfigError) as error:
            _log.warning("there is no fetcher, so shards are closed after each use, which is slower: %s", error)
            state.alone_until = time.monotonic() + _ALONE_S
            state.listeners.tell(Client.name, UNHEARD)

    def _described(self, stream: int, what: str) -> str:
        return f"{what} from {shown_url(self.streams[stream].store.url)}"

    def _released(self) -> None:
        state = self._process.get()
        if self.limit_bytes is None and not state.listeners.is_bound:
            return  # no other process waits for it
        for line in list(state.groups):
            line.note(Released())

    def _line(self, stream: int) -> Line:
        """Return what is asked for a stream: the node's fetcher, or this process for stores that live in it."""
        is_local = url_scheme(self.streams[stream].store.url) == "memory"
        return local_line.get() if is_local else shared_client.get()

    def _asked(self, stream: int) -> tuple[Line, Group]:
        line = self._line(stream)
        return line, self._group(line)

    def _group(self, line: Line) -> Group:
        """Return this cache as a line knows it."""
        state = self._process.get()
        group = state.groups.get(line)
        if group is None:
            with state.lock:
                group = state.groups.get(line)
                if group is None:
                    group = Group(
                        self.streams, self.limit_bytes, partial(_hear, state.listeners, line.name, self._counts)
                    )
                    line.join(group)
                    state.groups[line] = group
        return group


def _cut(payload: bytes, came: Iterable[int], wanted: Iterable[Sequence[int | None]]) -> list[bytes]:
    """Cut what came, stretch after stretch, into the ranges of each; None: the rest of it."""
    found, begin = [], 0
    for sizes, num_bytes in zip(wanted, came, strict=True):
        end = begin + num_bytes
        for size in sizes:
            found.append(payload[begin : end if size is None else min(begin + size, end)])
            begin += len(found[-1])
        begin = end
    return found


def _hear(listeners: ShareListeners, source: str, counts: CacheCounts, update: GroupUpdate) -> None:
    """Take what a cache is told unasked. It must not hold the cache itself, which is closed when it is dropped."""
    if update.quota is not None:
        listeners.tell(source, update.quota)
    for stream, caused in update.counts.items():
        counts.add(stream, downloads=caused.downloads, downloaded_bytes=caused.num_bytes, downloads_again=caused.again)
    if update.warnings:
        _warn(update.warnings)


def _warn(texts: Iterable[str]) -> None:
    for text in texts:
        warnings.warn(text, UserWarning, stacklevel=4)
