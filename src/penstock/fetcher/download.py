"""One item to its directory: fetched in pieces, checked, unpacked, and only then given its name."""

from __future__ import annotations

import errno
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.cachedir.layout import new_part_path, stripe_of
from penstock.cachedir.ledger import Record, boot_id, flush_file
from penstock.cachedir.presence import stamp_of
from penstock.cachedir.versions import lasting_tag, tag_of
from penstock.codecs.unpack import map_file, release, unpack_to_file
from penstock.errors import (
    CacheError,
    CorruptShardError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
)
from penstock.failpoints import reach
from penstock.fetcher.disk import PartFile
from penstock.fetcher.open_editions import digest_of
from penstock.fetcher.unpacking import place_spans
from penstock.files import make_folders
from penstock.index.paths import resolve_inside
from penstock.outside_text import Bounded
from penstock.storage.base import check_version
from penstock.types import Span
from penstock.units import format_bytes

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.cachedir.ledger import Ledger
    from penstock.fetcher.copies import KeptFile
    from penstock.fetcher.origin import Origin
    from penstock.fetcher.pieces import Piece, PieceOwner, PiecePool
    from penstock.fetcher.unpacking import PlacedSpan, ShardUnpacking
    from penstock.scan.kept_bytes import KeptBytes
    from penstock.storage.base import ObjectInfo
    from penstock.wire.item import Item, ItemPart, StoredFile

_MD5 = Bounded(r'"?([0-9a-f]{32})"?', 34)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """How one item comes to one directory. Whoever calls holds the item's name, but for an index."""

    item: Item
    directory: Path
    origin: Origin
    keep_zip: bool
    pool: PiecePool
    owner: PieceOwner
    unpacking: threading.Semaphore
    on_bytes: Callable[[int], None]  # hears of those that were there already; of others the pool does
    check_wanted: Callable[[], None]  # raises once nobody wants the item any more
    on_retry: Callable[[], None]
    beginning: Beginning | None  # of the item's first part, if somebody has read it already
    ledger: Ledger
    name_of: Callable[[str], str]  # where a file of the item is to lie
    kept: Callable[[StoredFile], KeptFile | None]  # finds a compressed file that need not be fetched
    check: Callable[[Sequence[ObjectInfo]], None]  # raises if objects are not of the item's edition
    explain: Callable[[str], None]  # raises if the dataset was written again: then that is why an object is wrong
    file_mode: int
    unpacks: ShardUnpacking | None = None  # how its format unpacks the item, if that does
    scanned: KeptBytes | None = None  # the object, if it need not be asked for again

    def run(self) -> Record:
        """Fetch what is missing, unpack it, write it down and publish it; give what was written down."""
        with self._temporary_files(stripe_of(self.item.name)) as new_file, self._disk_errors():
            parts = [self._prepare(part, new_file) for part in self.item.parts]
            infos = [part.info for part in parts if part.info is not None]
            if len(infos) == len(parts):
                self.check(infos)
            record = self._record(parts)
            self.ledger.begin()
            self.ledger.put(record)
            self._publish(parts)
            return record

    @contextmanager
    def fetched_index(self, stripe: int) -> Iterator[tuple[Path, ObjectInfo]]:
        """Fetch the index to a temporary name of a stripe that is held; it is gone afterwards."""
        (part,) = self.item.parts
        with self._temporary_files(stripe) as new_file:
            with self._disk_errors():
                found = self._fetch_vouched(part.raw, new_file)
            yield found

    # --- One part -------------------------------------------------------------------------------------------

    def _prepare(self, part: ItemPart, new_file: Callable[[], Path]) -> FetchedPart:
        """Make a part ready under temporary names."""
        if part.packed is None:
            path, info = self._fetch_checked(part.raw, new_file)
            return FetchedPart(Ready(path, self.name_of(part.raw.name)), None, lasting_tag(info, time.time_ns()), info)
        raw = Ready(new_file(), self.name_of(part.raw.name))
        kept = self.kept(part.packed)
        if kept is not None:
            self._unpack(kept.path, raw.path, part)
            stays = Ready(kept.path, part.packed.name) if kept.is_ours else None
            return FetchedPart(raw, stays, kept.version, None)
        packed, info = self._fetch_checked(part.packed, new_file)
        self._unpack(packed, raw.path, part)
        version = lasting_tag(info, time.time_ns())
        if self.keep_zip:
            return FetchedPart(raw, Ready(packed, self.name_of(part.packed.name)), version, info)
        packed.unlink()
        return FetchedPart(raw, None, version, info)

    def _unpack(self, packed: Path, raw: Path, part: ItemPart) -> None:
        reach("unpack.started")
        where = self.origin.where(part.stored.key)
        if self.unpacks is not None:
            self.unpacks.run(packed, raw, where)
        else:
            with self.unpacking:
                data = map_file(packed)
                try:
                    unpack_to_file(data, self.item.compression or "", part.raw.num_bytes or 0, raw, where)
                finally:
                    release(data)
        raw.chmod(self.file_mode & raw.stat().st_mode)
        reach("unpack.done")

    def _fetch_checked(self, file: StoredFile, new_file: Callable[[], Path]) -> tuple[Path, ObjectInfo]:
        """Fetch a file until its digest fits: a damaged transfer is not the store's last word."""
        for attempt in range(self.origin.retry + 1):
            path, info = self._fetch(file, new_file, is_first=attempt == 0)
            name, _, expected = (file.digest or "").partition(":")
            if file.digest is None or self._digest(path, name) == expected:
                return path, info
            path.unlink()
            self.explain(file.key)
            if attempt < self.origin.retry:
                self.on_retry()
        raise CorruptShardError(
            f"{self.origin.where(file.key)} does not have the {name} digest that the index says, after"
            f" {self.origin.retry + 1} attempts: the object is damaged, so write it again",
            key=file.key,
            digest=file.digest,
        )

    def _fetch_vouched(self, file: StoredFile, new_file: Callable[[], Path]) -> tuple[Path, ObjectInfo]:
        """Fetch the index, which says what all else must be, though nothing says what it must be itself.

        Many stores tag an object with its MD5. A tag that looks so and does not fit is either of another kind, as for
        some encrypted objects, or the transfer was damaged: then two transfers that agree are believed.
        """
        came: set[str] = set()
        for attempt in range(self.origin.retry + 2):
            path, info = self._fetch(file, new_file, is_first=attempt == 0)
            tag = _MD5.fullmatch(info.etag or "")
            if tag is None:
                return path, info
            found = self._digest(path, "md5")
            if found == tag[1] or found in came:
                return path, info
            came.add(found)
            path.unlink()
            self.on_retry()
        raise StoreError(
            f"{self.origin.where(file.key)} arrived with different bytes in each of {len(came)} attempts:"
            " something in the network damages data",
            key=file.key,
        )

    def _digest(self, path: Path, name: str) -> str:
        with self.unpacking:
            return digest_of(path, name)

    # --- One object -----------------------------------------------------------------------------------------

    def _fetch(self, file: StoredFile, new_file: Callable[[], Path], *, is_first: bool) -> tuple[Path, ObjectInfo]:
        reach("download.started")
        num_bytes = self._size(file)
        out = PartFile(new_file(), self.file_mode)
        try:
            if self.scanned is not None and file.span is not None:
                self.scanned.copy(Span(file.span.offset, file.span.offset + num_bytes), partial(self._write, out=out))
                info = self.scanned.info
            else:
                info = self._copy_all(file, num_bytes, out, self.beginning if is_first else None)
        except BaseException:
            out.discard()
            raise
        out.close()
        reach("download.done")
        return out.path, info

    def _copy_all(self, file: StoredFile, num_bytes: int, out: PartFile, beginning: Beginning | None) -> ObjectInfo:
        """Read all pieces side by side; each tells the version that it is of, and they must agree."""
        spans = place_spans(file, num_bytes, self.unpacks, in_one=self.origin.is_read_in_one)
        found = [] if beginning is None else self._use_beginning(beginning, spans[0].span, out)
        pieces = [
            self._submit(file.key, len(each.span), partial(self._copy, file, each, out)) for each in spans[len(found) :]
        ]
        try:
            found += self.pool.wait(pieces)
        except StoreTimeoutError:
            raise
        except ObjectNotFoundError:
            self.explain(file.key)
            raise
        except StoreError as error:
            self._explain(file, num_bytes, error)
            raise
        for info in found:
            self._check_size(file, info, num_bytes)
            check_version(self.origin.where(file.key), info, found[0].etag)
            self._check_pinned(file, info)
        return found[0]

    def _check_pinned(self, file: StoredFile, info: ObjectInfo) -> None:
        """Raise if an object is not the version that was indexed."""
        if file.span is not None and file.span.version not in (None, tag_of(info)):
            raise ObjectChangedError(
                f"{self.origin.where(file.key)} changed after it was indexed: open the dataset again",
                key=file.key,
            )

    def _use_beginning(self, beginning: Beginning, span: Span, out: PartFile) -> list[ObjectInfo]:
        """Use what was read already instead of the first piece, if it is long enough."""
        if memoryview(beginning.data).nbytes < len(span):
            return []
        self._write(memoryview(beginning.data)[: len(span)], 0, out)
        self.on_bytes(len(span))
        return [beginning.info]

    def _size(self, file: StoredFile) -> int:
        if file.num_bytes is not None:
            return file.num_bytes
        store = self.origin.store
        (info,) = self.pool.wait([self._submit(file.key, 0, lambda: store.stat(file.key))])
        return int(info.num_bytes)

    def _copy(self, file: StoredFile, piece: PlacedSpan, out: PartFile) -> ObjectInfo:
        span, place = piece
        copy_piece = getattr(self.origin.store, "copy_piece", None)
        if copy_piece is not None:  # what comes is handed over at once: it is in memory once, and not for long
            info: ObjectInfo = copy_piece(file.key, span, None, lambda chunk, at: self._write(chunk, place + at, out))
        else:
            data, info = self.origin.store.read_piece(file.key, span, None)
            if memoryview(data).nbytes != len(span):
                raise StoreError(
                    f"{self.origin.where(file.key)}: the store sent another number of bytes than the {len(span)}"
                    " that were requested"
                )
            out.write(data, place)
        self.check_wanted()
        reach("download.half")  # with more than one piece, others are still under way
        return info

    def _write(self, data: Buffer, begin: int, out: PartFile) -> None:
        """Write while the store is sending, and let no error of the disk be taken for one of the network."""
        try:
            out.write(data, begin)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise self._no_space(error) from error
            raise CacheError(f"cannot write {out.path}: {error.strerror}", path=str(out.path)) from error

    def _submit(self, key: str, num_bytes: int, action: Callable[[], object]) -> Piece:
        return self.pool.submit(self.owner, num_bytes, self.origin, key, action)

    def _explain(self, file: StoredFile, num_bytes: int, error: StoreError) -> None:
        """A read beyond the end fails in the words of each store: see whether the object has another size."""
        try:
            info = self.origin.store.stat(file.key)
        except StoreError:
            return
        self._check_size(file, info, num_bytes, error)

    def _check_size(
        self, file: StoredFile, info: ObjectInfo, num_bytes: int, cause: BaseException | None = None
    ) -> None:
        expected = num_bytes if file.span is None else file.span.object_bytes
        if expected not in (None, info.num_bytes):
            self.explain(file.key)
            raise ObjectChangedError(
                f"{self.origin.where(file.key)} has {info.num_bytes} bytes, but the index says {expected}: the object"
                " was changed or cut after the index was written",
                key=file.key,
                num_bytes=info.num_bytes,
                expected=expected,
            ) from cause

    # --- Names ----------------------------------------------------------------------------------------------

    def _record(self, parts: list[FetchedPart]) -> Record:
        """Describe the files as they will be published; where the system does not name its boots, they are flushed."""
        ready = [part.raw for part in parts] + [part.packed for part in parts if part.packed is not None]
        if boot_id() is None:
            for file in ready:
                flush_file(file.path)
        stored = [part.stored for part in self.item.parts]
        return Record(
            files=tuple(stamp_of(name, path.stat()) for path, name in ready),
            url=self.origin.name,
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

    def _publish(self, parts: list[FetchedPart]) -> None:
        """Give all files their names: the first part last, since its name stands for all."""
        files = [file for part in reversed(parts) for file in (part.packed, part.raw) if file is not None]
        folder_mode = self.file_mode | (self.file_mode & 0o444) >> 2  # whoever may read a file may look for it
        for number, (temporary, name) in enumerate(files):
            path = resolve_inside(self.directory, name)
            make_folders(path.parent, folder_mode)
            reach("publish.between_parts" if number else "publish.before")
            temporary.replace(path)
        reach("publish.after")

    @contextmanager
    def _temporary_files(self, stripe: int) -> Iterator[Callable[[], Path]]:
        """Give names for files on their way; those that have got no other name are removed at the end."""
        made: list[Path] = []

        def new_file() -> Path:
            path = new_part_path(self.directory, stripe)
            make_folders(path.parent, 0o700)
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
        needed = self.item.raw_bytes + self.item.packed_bytes
        return CacheError(
            f"not enough disk space in {self.directory} for {self.item.name}, which needs {format_bytes(needed)}"
            f" ({error.strerror}): free some space, or set a cache_limit that leaves room",
            path=str(self.directory),
            num_bytes=needed,
        )
