"""One item to its directory, from top to bottom: room, lock, the right copy, bytes, digest, unpacking, name."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.cachedir.editions import Edition
from penstock.cachedir.layout import apart_name, new_part_path, stripe_of
from penstock.cachedir.ledger import Record, boot_id
from penstock.cachedir.presence import stamp_of
from penstock.cachedir.versions import lasting_tag
from penstock.codecs.unpack import map_file, release, unpack_to_file
from penstock.errors import (
    CacheError,
    CorruptShardError,
    ObjectChangedError,
    ObjectNotFoundError,
    PenstockError,
    StoreError,
    StoreTimeoutError,
)
from penstock.failpoints import failpoint
from penstock.fetcher.budget import Reservation
from penstock.fetcher.copies import Copy, CopyResolver, EditionWatch, confirm, digest_of
from penstock.fetcher.pieces import PartFile, PieceOwner, StoreHandles
from penstock.fetcher.unpacking import FormatUnpacker, place_spans
from penstock.files import flush_file, make_folders, os_errors
from penstock.index.paths import resolve_inside
from penstock.outside_text import Bounded
from penstock.storage.base import CopiesPieces, ReadsFirst, check_version
from penstock.types import Span
from penstock.units import format_bytes
from penstock.wire.ahead import FIRST_BYTES
from penstock.wire.messages import Fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.cachedir.lock import Held, Stripes
    from penstock.fetcher.copies import KeptFile
    from penstock.fetcher.counts import FetcherCounts
    from penstock.fetcher.pieces import PiecePool, RangeRead, StoreHandle
    from penstock.fetcher.queue import QueuedItem
    from penstock.fetcher.rooms import Rooms
    from penstock.fetcher.unpacking import PlacedSpan, ShardUnpacking
    from penstock.index.model import Index
    from penstock.storage.base import ObjectInfo
    from penstock.wire.ahead import IndexesAhead
    from penstock.wire.item import Item, ItemPart, StoredFile

T = TypeVar("T")
Steps: TypeAlias = "Generator[None, None, Fetched | None]"

_log = logging.getLogger("penstock.cache")
_PATIENCE = 10  # with another process that brings the same, as a multiple of that with the store
_DELETED_TRIES = 5  # how often a directory may be deleted under one download
_MD5 = Bounded(r'"?([0-9a-f]{32})"?', 34)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Tools:
    """What all transfers share. Safe for threads."""

    def __init__(
        self,
        stripes: Stripes,
        rooms: Rooms,
        pool: PiecePool,
        counts: FetcherCounts,
        open_index: Callable[[Path], Index],
        ahead: IndexesAhead | None = None,
    ) -> None:
        self.stripes, self.rooms, self.pool, self.counts, self.ahead = stripes, rooms, pool, counts, ahead
        self.handles = StoreHandles(pool.hooks())
        self.unpacking = threading.Semaphore(max(2, os.cpu_count() or 2))
        self.copies = CopyResolver(self.unpacking)
        self.watch = EditionWatch()
        self.unpacker = FormatUnpacker(self.unpacking, open_index)


class Transfer(PieceOwner):
    """An item while it is fetched: that does not change; who wants it does, which its place in the queue knows."""

    def __init__(self, queued: QueuedItem) -> None:
        self.describe(queued.item)
        super().__init__()
        self.queued = queued  # whose demand says who wants it now
        self.key, self.directory, self.stream = queued.key, queued.directory, queued.stream
        self.reservation: Reservation | None = None  # its room, given back when it ends
        self.has_room = False  # or needs none
        self.arrived: Record | None = None  # what has taken that room
        self.total_bytes = self.packed_bytes or self.raw_bytes  # 0: not known yet
        self.is_cancelled = False  # for good: a new wish begins another

    def describe(self, item: Item) -> None:
        """Take down what is fetched, once more when its size is known."""
        self.item, self.name, self.raw_bytes, self.packed_bytes = item, item.name, item.raw_bytes, item.packed_bytes
        self.is_sized = item.parts[0].stored.num_bytes is not None

    @property
    def rank(self) -> tuple[float, ...]:
        """How urgent it is now."""
        return self.queued.demand.rank

    def begin(self, total_bytes: int) -> None:
        """Count from the beginning, now that it is known how many will come."""
        with self._lock:
            self.num_bytes_done, self.total_bytes = 0, total_bytes

    def check_wanted(self) -> None:
        """Raise once it is no longer wanted."""
        if self.is_cancelled:
            raise CancelledError


# --- From top to bottom -------------------------------------------------------------------------------------


def transfer(tools: Tools, job: Transfer) -> Steps:
    """Bring an item to its directory, unless it is there; None: there is no room for it now.

    Of those that compete for room one has its turn after the other, so that what is needed later never takes the room
    of what is needed sooner. The turn ends where this yields; nothing is waited for before that.
    """
    beginning = None
    job.check_wanted()
    copy = tools.copies.known(tools.rooms.folders[job.key[0]], job.item)
    if copy is not None:
        return _found(tools, job, copy)
    if job.item.format is not None:  # which says how much it takes, fetched and unpacked
        job.describe(tools.unpacker.resolve(job.directory, job.item))
    is_name_free = job.is_sized and not os.path.lexists(job.directory / job.name)
    if is_name_free and not _reserve(tools, job):  # else it is only known later what room it needs
        return None
    try:
        yield
        if not job.is_sized:
            beginning = learn_size(tools, job)
        return again_if_deleted(job, lambda: _bring(Download(tools, job, beginning)))
    finally:
        if job.reservation is not None:
            tools.rooms.claim(job.reservation, job.arrived, hand_over=job.queued.demand.is_requested)


def _bring(download: Download) -> Fetched | None:
    """Fetch unless the right copy is there, maybe brought by another fetcher."""
    tools, job, folder, item = download.tools, download.job, download.folder, download.item
    with holding(tools, job, job.name):
        copy = tools.copies.find(folder, item, download.handle, partial(tools.rooms.evict, job.directory, is_held=True))
        if copy.is_right:
            return _found(tools, job, copy)
        if job.reservation is None and not _reserve(tools, job):
            return None
        cause, num_bytes = job.queued.demand.cause, job.packed_bytes or job.raw_bytes
        job.begin(num_bytes)
        record = job.arrived = download.run(copy)
        # Where items are evicted, one that came before was. Before readers find it: a later look at counts misses none.
        is_again = tools.counts.has_come(job.key) and tools.rooms.may_evict(job.directory)
        tools.counts.add_download(cause, num_bytes, job.key, is_again=is_again)
        confirm(folder, item, record.files, is_apart=copy.is_apart)
        if item.validates and item.number is not None:
            edition = Edition(job.directory, item.edition)
            edition.note_checked(item.number, edition.entry(item.number))
    return Fetched(copy.name, num_bytes)


def _reserve(tools: Tools, job: Transfer) -> bool:
    stays, temporary = job.raw_bytes, job.packed_bytes
    if job.stream.keep_zip:
        stays, temporary = stays + temporary, 0
    demand = job.queued.demand
    job.reservation = tools.rooms.reserve(
        Reservation(str(job.directory), job.name, stays, temporary),
        is_urgent=demand.is_urgent,
        fail_if_disk_full=time.monotonic() >= demand.fail_if_disk_full_at,
    )
    job.has_room = job.reservation is not None
    return job.has_room


def _found(tools: Tools, job: Transfer, copy: Copy) -> Fetched:
    tools.rooms.found(job.directory, copy.name, copy.record, hand_over=job.queued.demand.is_requested)
    job.has_room = True
    return Fetched(copy.name)


def holding(tools: Tools, job: Transfer, name: str) -> Held:
    """Hold a name of a directory. Others who have it may be bringing it over a slow network, and return up in time."""
    timeout_s = _PATIENCE * job.stream.timeout_s
    return tools.stripes.take(job.directory, name, timeout_s, should_stop=lambda: job.is_cancelled)


def again_if_deleted(job: Transfer, bring: Callable[[], T]) -> T:
    """Try again if the directory is deleted meanwhile."""
    for _ in range(_DELETED_TRIES - 1):
        try:
            return bring()
        except FileNotFoundError as error:
            below = f"{job.directory}{os.sep}"
            if isinstance(error, PenstockError) and not str(error.facts.get("path", "")).startswith(below):
                raise  # it is an object of the store that is missing, not one of our own files
            _log.info("%s was deleted while %s was being fetched, trying again", job.directory, job.name)
    with os_errors(job.directory):
        return bring()


def learn_size(tools: Tools, job: Transfer) -> Beginning | None:
    """Learn the size of an object that came without one: room cannot be made for the unknown.

    One question for its beginning answers that too, and of a small object it is all.
    """
    item = job.item
    (part,) = item.parts
    handle, key = tools.handles.of(job.stream), part.raw.key

    def ask() -> tuple[ObjectInfo, Beginning | None]:
        if not isinstance(handle.store, ReadsFirst):
            return handle.store.stat(key), None
        ahead = None if tools.ahead is None or not item.is_index else tools.ahead.take(job.stream.store, key)
        data, info = ahead or handle.store.read_first(key, FIRST_BYTES)
        return info, Beginning(data, info)

    found: list[tuple[ObjectInfo, Beginning | None]] = tools.pool.wait([tools.pool.submit(job, 0, handle, key, ask)])
    ((info, beginning),) = found
    job.describe(item._replace(parts=(part._replace(raw=part.raw._replace(num_bytes=info.num_bytes)),)))
    return beginning


# --- Its bytes ----------------------------------------------------------------------------------------------


class Beginning(NamedTuple):
    """The first bytes of an object, read to learn what it is."""

    data: Buffer
    info: ObjectInfo


class Ready(NamedTuple):
    """A file of an item that lies under a temporary name, or where it was before, and the name that it is to have."""

    path: Path
    name: str


class FetchedPart(NamedTuple):
    """What one part of an item has become: its raw file, the compressed one if that is kept, and what it is made of."""

    raw: Ready
    packed: Ready | None
    version: str | None
    info: ObjectInfo | None  # None: the compressed file lay there already


class Scanned(Protocol):
    """An object that a scan has read, and need not be asked for again."""

    info: ObjectInfo

    def copy(self, span: Span, write: Callable[[bytes, int], None]) -> None:
        """Hand over a span, piece by piece, each with its place in the span."""


class Download:
    """How the bytes of one item come, are checked and get their names. Its name is held, but for an index."""

    def __init__(
        self,
        tools: Tools,
        job: Transfer,
        beginning: Beginning | None = None,
        *,
        item: Item | None = None,  # another one than that of the job
        scanned: Scanned | None = None,
    ) -> None:
        self.tools, self.job, self.folder = tools, job, tools.rooms.folders[job.key[0]]
        self.item, self.name = (job.item, job.name) if item is None else (item, item.name)
        self.handle: StoreHandle = tools.handles.of(job.stream)
        self._is_read_in_one = self.handle.is_read_in_one
        self._beginning = beginning  # of the item's first part, if it was read already
        self._scanned = scanned
        # Raises if the dataset was written again: then that is why an object is wrong.
        self._explain = partial(tools.watch.explain, job.directory, self.item.edition, self.handle)
        self._file_mode = 0o600 if job.stream.is_private else 0o666
        self._unpacks: ShardUnpacking | None = None  # how its format unpacks the item, if that does
        if self.item.format is not None:
            self._unpacks = tools.unpacker.of(job.directory, self.item)

    def run(self, copy: Copy) -> Record:
        """Fetch what is missing, unpack it, write it down and publish it; return what was written down."""
        with self._temporary_files(self.name) as new_file, self._disk_errors():
            parts = [self._prepare(part, copy, new_file) for part in self.item.parts]
            infos = [part.info for part in parts if part.info is not None]
            if len(infos) == len(parts):
                self.tools.watch.check(self.folder.directory, self.item, infos, self.handle)
            record = self._record(parts)
            self.folder.ledger.begin()
            self.folder.ledger.put(record)
            self._publish(parts)
            return record

    @contextmanager
    def fetched_index(self, held: str) -> Iterator[tuple[Path, ObjectInfo]]:
        """Fetch the index to a temporary name of the stripe of a name that is held; it is gone afterwards."""
        (part,) = self.item.parts
        with self._temporary_files(held) as new_file:
            with self._disk_errors():
                found = self._fetch_vouched(part.raw, new_file)
            yield found

    # --- One part -------------------------------------------------------------------------------------------

    def _prepare(self, part: ItemPart, copy: Copy, new_file: Callable[[], Path]) -> FetchedPart:
        """Make a part ready under temporary names."""
        name = self._name_of(part.raw, copy)
        if part.packed is None:
            path, info = self._fetch_checked(part.raw, new_file)
            return FetchedPart(Ready(path, name), None, lasting_tag(info, time.time_ns()), info)
        raw = Ready(new_file(), name)
        kept: KeptFile | None = self.tools.copies.kept(self.folder, self.item, part.packed)
        if kept is not None:
            self._unpack(kept.path, raw.path, part)
            stays = Ready(kept.path, part.packed.name) if kept.is_ours else None
            return FetchedPart(raw, stays, kept.version, None)
        packed, info = self._fetch_checked(part.packed, new_file)
        self._unpack(packed, raw.path, part)
        version = lasting_tag(info, time.time_ns())
        if self.job.stream.keep_zip:
            return FetchedPart(raw, Ready(packed, self._name_of(part.packed, copy)), version, info)
        packed.unlink()
        return FetchedPart(raw, None, version, info)

    def _name_of(self, file: StoredFile, copy: Copy) -> str:
        return apart_name(self.item.edition, file.name) if copy.is_apart else file.name

    def _unpack(self, packed: Path, raw: Path, part: ItemPart) -> None:
        failpoint("unpack.started")
        where = self.handle.where(part.stored.key)
        if self._unpacks is not None:
            self._unpacks.run(packed, raw, where)
        else:
            with self.tools.unpacking:
                data = map_file(packed)
                try:
                    unpack_to_file(data, self.item.compression or "", part.raw.num_bytes or 0, raw, where)
                finally:
                    release(data)
        raw.chmod(self._file_mode & raw.stat().st_mode)
        failpoint("unpack.done")

    def _fetch_checked(self, file: StoredFile, new_file: Callable[[], Path]) -> tuple[Path, ObjectInfo]:
        """Fetch a file until its digest fits: a damaged transfer is not the store's last word."""
        for attempt in range(self.handle.retry + 1):
            path, info = self._fetch(file, new_file, is_first=attempt == 0)
            name, _, expected = (file.digest or "").partition(":")
            if file.digest is None or self._digest(path, name) == expected:
                return path, info
            path.unlink()
            self._explain(file.key)
            if attempt < self.handle.retry:
                self.tools.counts.add("retries")
        raise CorruptShardError(
            f"{self.handle.where(file.key)} does not have the {name} digest that the index says, after"
            f" {self.handle.retry + 1} attempts: the object is damaged, so write it again",
            key=file.key,
            digest=file.digest,
        )

    def _fetch_vouched(self, file: StoredFile, new_file: Callable[[], Path]) -> tuple[Path, ObjectInfo]:
        """Fetch the index, which says what all else must be, though nothing says what it must be itself.

        Many stores tag an object with its MD5. A tag that looks so and does not fit is either of another kind, as for
        some encrypted objects, or the transfer was damaged: then two transfers that agree are believed.
        """
        came: set[str] = set()
        for attempt in range(self.handle.retry + 2):
            path, info = self._fetch(file, new_file, is_first=attempt == 0)
            tag = _MD5.fullmatch(info.etag or "")
            if tag is None:
                return path, info
            found = self._digest(path, "md5")
            if found == tag[1] or found in came:
                return path, info
            came.add(found)
            path.unlink()
            self.tools.counts.add("retries")
        raise StoreError(
            f"{self.handle.where(file.key)} arrived with different bytes in each of {len(came)} attempts:"
            " something in the network damages data",
            key=file.key,
        )

    def _digest(self, path: Path, name: str) -> str:
        with self.tools.unpacking:
            return digest_of(path, name)

    # --- One object -----------------------------------------------------------------------------------------

    def _fetch(self, file: StoredFile, new_file: Callable[[], Path], *, is_first: bool) -> tuple[Path, ObjectInfo]:
        failpoint("download.started")
        num_bytes = self._size(file)
        out = PartFile(new_file(), self._file_mode)
        try:
            if self._scanned is not None and file.span is not None:
                span = Span(file.span.offset, file.span.offset + num_bytes)
                self._scanned.copy(span, partial(self._write, out=out))
                info = self._scanned.info
            else:
                info = self._copy_all(file, num_bytes, out, self._beginning if is_first else None)
        except BaseException:
            out.discard()
            raise
        out.close()
        failpoint("download.done")
        return out.path, info

    def _copy_all(self, file: StoredFile, num_bytes: int, out: PartFile, beginning: Beginning | None) -> ObjectInfo:
        """Read all pieces side by side; each tells the version that it is of, and they must agree."""
        expected = num_bytes if file.span is None else file.span.object_bytes
        spans = place_spans(file, num_bytes, self._unpacks, in_one=self._is_read_in_one)
        found = [] if beginning is None else self._use_beginning(beginning, spans[0].span, out)
        pieces = [
            self._submit(file.key, len(each.span), partial(self._copy, file, each, out)) for each in spans[len(found) :]
        ]
        try:
            found += self.tools.pool.wait(pieces)
        except StoreTimeoutError:
            raise
        except ObjectNotFoundError:
            self._explain(file.key)
            raise
        except StoreError as error:
            # A read beyond the end fails in the words of each store: see whether the object has another size.
            now = None
            with suppress(StoreError):
                now = self.handle.store.stat(file.key)
            if now is not None and expected not in (None, now.num_bytes):
                raise self._other_size(file, now, expected) from error
            raise
        for info in found:
            if expected not in (None, info.num_bytes):
                raise self._other_size(file, info, expected)
            if info.etag != found[0].etag:
                check_version(self.handle.where(file.key), info, found[0].etag)
            if file.span is not None and file.span.version not in (None, info.version):
                raise ObjectChangedError(
                    f"{self.handle.where(file.key)} changed after it was indexed: open the dataset again",
                    key=file.key,
                )
        return found[0]

    def _use_beginning(self, beginning: Beginning, span: Span, out: PartFile) -> list[ObjectInfo]:
        """Use what was read already instead of the first piece, if it is long enough."""
        if memoryview(beginning.data).nbytes < len(span):
            return []
        self._write(memoryview(beginning.data)[: len(span)], 0, out)
        self.job.add_bytes(len(span))
        return [beginning.info]

    def _size(self, file: StoredFile) -> int:
        if file.num_bytes is not None:
            return file.num_bytes
        store = self.handle.store
        (info,) = self.tools.pool.wait([self._submit(file.key, 0, lambda: store.stat(file.key))])
        return int(info.num_bytes)

    def _copy(self, file: StoredFile, piece: PlacedSpan, out: PartFile) -> ObjectInfo:
        span, place = piece
        store = self.handle.store
        if isinstance(store, CopiesPieces):  # what comes is handed over at once: it is in memory once, and not for long
            info = store.copy_piece(file.key, span, None, lambda chunk, at: self._write(chunk, place + at, out))
        else:
            data, info = store.read_piece(file.key, span, None)
            if memoryview(data).nbytes != len(span):
                raise StoreError(
                    f"{self.handle.where(file.key)}: the store sent another number of bytes than the {len(span)}"
                    " that were requested"
                )
            out.write(data, place)
        self.job.check_wanted()
        failpoint("download.half")  # with more than one piece, others are still under way
        return info

    def _write(self, data: Buffer, begin: int, out: PartFile) -> None:
        """Write while the store is sending, and let no error of the disk be taken for one of the network."""
        try:
            out.write(data, begin)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise self._no_space(error) from error
            raise CacheError(f"cannot write {out.path}: {error.strerror}", path=str(out.path)) from error

    def _submit(self, key: str, num_bytes: int, action: Callable[[], object]) -> RangeRead:
        return self.tools.pool.submit(self.job, num_bytes, self.handle, key, action)

    def _other_size(self, file: StoredFile, info: ObjectInfo, expected: int | None) -> ObjectChangedError:
        """Return the error for an object of another size, unless a rewritten dataset is the reason, which is raised."""
        self._explain(file.key)
        return ObjectChangedError(
            f"{self.handle.where(file.key)} has {info.num_bytes} bytes, but the index says {expected}: the object"
            " was changed or cut after the index was written",
            key=file.key,
            num_bytes=info.num_bytes,
            expected=expected,
        )

    # --- Names ----------------------------------------------------------------------------------------------

    def _record(self, parts: Sequence[FetchedPart]) -> Record:
        """Describe the files as they will be published; where the system does not name its boots, they are flushed."""
        ready = [part.raw for part in parts] + [part.packed for part in parts if part.packed is not None]
        if boot_id() is None:
            for file in ready:
                flush_file(file.path)
        stored = [part.packed or part.raw for part in self.item.parts]
        return Record(
            files=tuple(stamp_of(name, path.stat()) for path, name in ready),
            url=self.handle.name,
            keys=tuple(file.key for file in stored),
            stored_bytes=tuple(
                (file.num_bytes or 0) if part.info is None or file.span is not None else part.info.num_bytes
                for file, part in zip(stored, parts, strict=True)
            ),
            versions=tuple(part.version for part in parts),
            digests=tuple(file.digest for file in stored),
            edition=self.item.edition,
            boot=boot_id(),
        )

    def _publish(self, parts: Sequence[FetchedPart]) -> None:
        """Return all files their names: the first part last, since its name stands for all."""
        files = [file for part in reversed(parts) for file in (part.packed, part.raw) if file is not None]
        folder_mode = self._file_mode | (self._file_mode & 0o444) >> 2  # those who may read a file may look for it
        for number, (temporary, name) in enumerate(files):
            path = resolve_inside(self.folder.directory, name)
            if path.parent != self.folder.directory:
                make_folders(path.parent, folder_mode)
            failpoint("publish.between_parts" if number else "publish.before")
            temporary.replace(path)
        failpoint("publish.after")

    @contextmanager
    def _temporary_files(self, held: str) -> Iterator[Callable[[], Path]]:
        """Make names for unfinished files, of the stripe of a name; those that have got no other are removed."""
        made: list[Path] = []

        def new_file() -> Path:
            path = new_part_path(self.folder.directory, stripe_of(held))  # beside the lock that is held
            made.append(path)
            return path

        try:
            yield new_file
        finally:
            for path in made:
                with suppress(FileNotFoundError):
                    path.unlink()

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StoreError) as error:
            for cause in (error, error.__cause__):  # an unpacked file translates its own
                if isinstance(cause, OSError) and cause.errno in _NO_SPACE:
                    raise self._no_space(cause) from cause
            raise

    def _no_space(self, error: OSError) -> CacheError:
        directory, needed = self.folder.directory, self.item.raw_bytes + self.item.packed_bytes
        return CacheError(
            f"not enough disk space in {directory} for {self.name}, which needs {format_bytes(needed)}"
            f" ({error.strerror}): free some space, or set a cache_limit that leaves room",
            path=str(directory),
            num_bytes=needed,
        )
