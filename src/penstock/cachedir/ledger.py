"""What we brought into a cache directory, and how we left it: only that may be replaced or deleted.

The ledger is a file of lines. A line is written before the file that it speaks of gets its name. So a file without a
line is not ours, whichever process died when.

Neither a file that was brought nor its line is flushed before the file gets its name: that would make every download
wait for the disk. Instead a line says in which boot a file came, until it is flushed, and a directory says, flushed
once in each boot, since when files were brought to it. So what a loss of power may have spoilt is known: files of an
earlier boot that were not flushed, and files of that time of which the ledger knows nothing.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cachedir.layout import boots_path, ledger_path
from penstock.cachedir.lock import Descriptor, try_hold_file, wait_for_lock
from penstock.cachedir.presence import FileStamp
from penstock.files import atomic_write, flush_file, make_folders
from penstock.index.paths import INDEX_NAME, is_plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage.base import ObjectInfo
    from penstock.wire.item import Item, StoredFile

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux alone tells
_FEW_LINES = 1024  # below that, rewriting the file would not pay
_log = logging.getLogger("penstock.cache")
# How long after it came a file is flushed: by then the system has written most of it by itself, and to hurry it along
# would take the disk from what comes next.
_FLUSHED_AFTER_S = 10.0
_LAST_FILES_S = 2.0
_PATIENCE_S = 60.0  # a line is written in no time, and the whole file in a few seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Files that were brought together, in the order in which they are to be deleted; the first names them all."""

    files: tuple[FileStamp, ...]
    url: str  # of the store, without secrets
    keys: tuple[str, ...]  # the objects that they were made from
    stored_bytes: tuple[int, ...]  # the sizes of these
    versions: tuple[str | None, ...]  # their versions; None: the store gave none that proves anything
    digests: tuple[str | None, ...]  # their digests, as `name:hex`, if they were checked
    edition: str  # of the dataset for which they were brought
    boot: str | None  # the boot in which they came and were not yet flushed; None: they are on the disk

    @property
    def name(self) -> str:
        """The name that stands for all files."""
        return self.files[0].name

    @property
    def is_index(self) -> bool:
        """Whether it is the index of a dataset, which lies beside the shards for other readers."""
        return self.name == INDEX_NAME

    @property
    def num_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.num_bytes for file in self.files)

    def is_settled_by_index(self, item: Item, source: str) -> bool | None:
        """Return from the index alone whether these are what an item asks for; None: only the store can say."""
        if self.url != source or self.keys != tuple(part.stored.key for part in item.parts):
            return False
        known = zip(item.parts, self.stored_bytes, self.digests, self.versions, strict=True)
        answers = [_compare(part.stored, num_bytes, digest, version) for part, num_bytes, digest, version in known]
        if False in answers:
            return False
        return None if None in answers else True

    def is_settled_by_store(self, found: Iterable[ObjectInfo | None]) -> bool:
        """Return whether the objects that a store has now are those that these were made from."""
        return all(
            info is not None and num_bytes == info.num_bytes and version is not None and version == info.version
            for info, num_bytes, version in zip(found, self.stored_bytes, self.versions, strict=True)
        )


def _compare(wanted: StoredFile, num_bytes: int, known: str | None, version: str | None) -> bool | None:
    if wanted.num_bytes not in (None, num_bytes):
        return False
    if wanted.span is not None and wanted.span.version is not None:
        return wanted.span.version == version
    if wanted.digest is None or known is None or known.partition(":")[0] != wanted.digest.partition(":")[0]:
        return None
    return known == wanted.digest


def read_lines(data: bytes, records: dict[str, Record]) -> int:
    """Bring records up to date by further lines, and count these. A line that a crash cut short says nothing."""
    lines = data.splitlines()
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            _apply(records, json.loads(line))
    return len(lines)


def _apply(records: dict[str, Record], value: Any) -> None:
    if "gone" in value:
        records.pop(value["gone"], None)
    elif "flushed" in value:
        known = records.get(value["flushed"])
        if known is not None and known.files[0].inode == value["inode"]:  # else it was fetched again meanwhile
            records[known.name] = replace(known, boot=None)
    else:
        record = _load(value)
        records[record.name] = record


def _load(value: dict[str, Any]) -> Record:
    files = tuple(FileStamp(**file) for file in value.pop("files"))
    if not files or not all(is_plain_name(file.name) for file in files):
        raise ValueError("a name that we never gave")
    lists: dict[str, Any] = {name: tuple(value.pop(name)) for name in ("keys", "stored_bytes", "versions", "digests")}
    return Record(files=files, **lists, **value)


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


class Ledger:
    """The ledger of one directory, as this process knows it. Safe for threads, and for other processes beside it.

    A name is written about by the process that holds its stripe.
    """

    def __init__(self, directory: Path) -> None:
        self._path, self._boots_path = ledger_path(directory), boots_path(directory)
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._read_to = 0
        self._num_lines = 0
        self._inode: int | None = None
        self._held: Descriptor | None = None
        self._has_begun = False
        self._has_written = False

    def get(self, name: str) -> Record | None:
        """Return what is written about a name."""
        with self._lock:
            self._refresh()
            return self._records.get(name)

    def all(self) -> list[Record]:
        """Return every record."""
        with self._lock:
            self._refresh()
            if self._num_lines > 2 * len(self._records) + _FEW_LINES:
                self._rewrite()
            return list(self._records.values())

    def put(self, record: Record) -> None:
        """Write down files that are about to get their names."""
        self._append(asdict(record))

    def begin(self) -> None:
        """Flush a note that files are brought here in this boot; to be called before the first gets its name."""
        if self._has_begun:
            return
        boots = _boots(self._boots_path)
        if not boots or boots[-1][0] != boot_id():
            make_folders(self._boots_path.parent, 0o700)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            with Descriptor(os.open(self._boots_path, flags, 0o600)) as file:
                os.write(file.number, _dump([boot_id(), time.time_ns()]))
                os.fsync(file.number)
        self._has_begun = True

    def note_flushed(self, record: Record) -> None:
        """Write down that the files of a record are on the disk."""
        self._append({"flushed": record.name, "inode": record.files[0].inode})

    def drop(self, name: str) -> None:
        """Write down that files are gone, or are no longer ours."""
        self._append({"gone": name})

    def close(self) -> None:
        """Close the file; the next question opens it anew."""
        with self._lock:
            self._forget()

    # --- The file -------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Read what was written since the last look, by any process."""
        try:
            size = self._size()
        except (FileNotFoundError, NotADirectoryError):
            self._forget()
            return
        if size == self._read_to or self._held is None:
            return
        data = os.pread(self._held.number, size - self._read_to, self._read_to)
        end = data.rfind(b"\n") + 1  # another process may be in the middle of a line
        self._num_lines += read_lines(data[:end], self._records)
        self._read_to += end

    def _size(self) -> int:
        """Return the size of the file; if it is another one by now, what was read of the old one is forgotten.

        It is kept open, so that a file that comes after it cannot have its inode.
        """
        status = self._path.stat()
        held = self._held
        if held is not None and held.number >= 0 and status.st_ino == self._inode and status.st_size >= self._read_to:
            return status.st_size
        self._forget()
        self._held = Descriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        status = os.fstat(self._held.number)
        self._inode = status.st_ino
        return status.st_size

    def _forget(self) -> None:
        self._records, self._read_to, self._num_lines, self._inode = {}, 0, 0, None
        if self._held is not None:
            self._held.close()
        self._held = None

    def _append(self, value: dict[str, Any]) -> None:
        line = _dump(value)
        with self._open(is_shared=True) as held:
            number = held.number
            if not self._has_written:
                self._has_written = True
                size = os.fstat(number).st_size
                if size and os.pread(number, 1, size - 1) != b"\n":
                    os.write(number, b"\n")  # the last line was cut short: it must not spoil the next
            os.write(number, line)  # one call, so that lines of several threads and processes do not mix
            if boot_id() is None:  # nothing else would tell after a loss of power
                os.fsync(number)

    def _rewrite(self) -> None:
        """Keep one line for each record; others that write at this moment wait, and then find the new file."""
        with self._open(is_shared=False):
            self._refresh()
            with atomic_write(self._path) as part:
                part.touch(mode=0o600)
                with part.open("wb") as file:
                    file.writelines(_dump(asdict(record)) for record in self._records.values())
                    file.flush()
                    os.fdatasync(file.fileno())
        self._forget()
        self._refresh()

    def _open(self, *, is_shared: bool) -> Descriptor:
        """Open the file, locked against being rewritten, or to rewrite it."""
        attempt = partial(try_hold_file, self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, is_shared=is_shared)
        with suppress(FileNotFoundError):
            return wait_for_lock(attempt, self._path, _PATIENCE_S)
        make_folders(self._path.parent, 0o700)
        return wait_for_lock(attempt, self._path, _PATIENCE_S)


# --- Boots of the machine -----------------------------------------------------------------------------------


@cache
def boot_id() -> str | None:
    """Return a name of this boot, or None where the system has none."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def is_doubtful(directory: Path, status: os.stat_result) -> bool:
    """Return whether a file that the ledger does not know may be one that we brought before the power failed."""
    boots = _boots(boots_path(directory))
    earlier = [since_ns for boot, since_ns in boots if boot != boot_id()]
    now = [since_ns for boot, since_ns in boots if boot == boot_id()]
    return bool(earlier) and min(earlier) <= status.st_ctime_ns < min(now, default=time.time_ns())


def _boots(path: Path) -> list[tuple[str | None, int]]:
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, TypeError):  # a line that was cut short
                boot, since_ns = json.loads(line)
                found.append((boot, int(since_ns)))
    return found


# --- Files that can be trusted after a loss of power --------------------------------------------------------


class Flusher:
    """One thread, started with the first file. What it does not get to is not trusted after the next boot."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, Path, Record, Ledger]] = deque()  # from when they are due
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, directory: Path, record: Record, ledger: Ledger) -> None:
        """Flush the files of a record some time soon."""
        with self._changed:
            self._waiting.append((time.monotonic() + _FLUSHED_AFTER_S, directory, record, ledger))
            if len(self._waiting) == 1:
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-flush", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Flush what waits now, but do not take long: a disk may be slow."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_FILES_S)

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            _, directory, record, ledger = waiting
            try:
                for file in record.files:
                    flush_file(directory / file.name)
                ledger.note_flushed(record)
            except FileNotFoundError:
                continue  # it was evicted meanwhile
            except OSError as error:
                _log.warning("cannot flush %s in %s to the disk: %s", record.name, directory, error)

    def _next(self) -> tuple[float, Path, Record, Ledger] | None:
        """Wait for a file whose time has come; None: there will be no more."""
        with self._changed:
            while not self._is_closed:
                left_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._waiting.popleft() if self._waiting else None
