"""Where a dataset goes: a folder that appears whole, or files of which the one that readers look for comes last."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import ProxiedStore, open_proxied
from penstock.cachedir.lock import try_hold_file, wait_for_lock
from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptIndexError,
    LockTimeoutError,
    ObjectNotFoundError,
    OutputBusyError,
    OutputExistsError,
)
from penstock.failpoints import failpoint
from penstock.files import exchange, flush_file, flush_folder, os_errors, write_file
from penstock.index.paths import INDEX_NAME
from penstock.interrupts import WaitingFor
from penstock.storage.base import check_writable, shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from penstock.cachedir.lock import Descriptor
    from penstock.storage.base import Store
    from penstock.storage.retry import RetryPolicy

    Owns = Callable[[str], bool]  # whether a file is, by its name, part of such a dataset

LEDGER_NAME = "_unfinished.json"
LOCK_NAME = ".lock"
_MOMENT_S = 0.1  # for which the holder of a lock may still have it when its work is done


class Target(ABC):
    """A place for one dataset, which appears there whole or not at all.

    Files are made in `folder` and handed over by `keep`. `publish` writes the file that readers look for first, the
    `entry`; until it is there, they find what was there before, or nothing.

    Args:
        folder: Where files are made.
        there: Where the dataset is when it is published.
        made: Where files are that were kept, until then.
        url: The path or URL of the dataset.
        entry: The file that readers look for first.
        owns: Which names files of such a dataset have; others are not removed.
    """

    flushes = True  # whether files in `folder` have to survive a loss of power

    def __init__(self, folder: Path, there: Store, made: Store, url: str, entry: str, owns: Owns) -> None:
        self.folder, self._there, self._made, self._url = folder, there, made, url
        self.entry, self._owns = entry, owns
        self.shown = shown_url(url)  # the place, as it may be shown

    @property
    @abstractmethod
    def is_taken(self) -> bool:
        """Whether there is something that would have to be replaced."""

    def names(self) -> list[str]:
        """List what is there."""
        return [info.key for info in self._there.list()]

    def read(self, name: str) -> bytes | None:
        """Read a file of the dataset that is there, or the ledger of one that is not finished; None: it is missing."""
        try:
            return (self._made if name == LEDGER_NAME else self._there).read(name)
        except ObjectNotFoundError:
            return None

    def has(self, name: str, num_bytes: int) -> bool:
        """Return whether a file that was kept is there, with this size."""
        try:
            return self._made.stat(name).num_bytes == num_bytes
        except ObjectNotFoundError:
            return False

    def path_of(self, name: str) -> str:
        """Return the path or the URL of a file of the finished dataset."""
        return join_url(self._url, name)

    @abstractmethod
    def keep(self, names: Iterable[str]) -> None:
        """Take over files that were made in `folder`: afterwards they outlive this process."""

    def write(self, name: str, data: bytes) -> None:
        """Make a small file in place of the one of this name."""
        write_file(self.folder / name, [data], flush=self.flushes)

    @abstractmethod
    def clear(self) -> None:
        """Make ready for a new dataset: what was not finished goes, and what is there may be replaced from now on."""

    @abstractmethod
    def publish(self, data: bytes, names: Collection[str] | None = None) -> None:
        """Write the entry, after which the dataset is whole. With `names`, no other files of such datasets stay."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; what only this process needed is removed."""

    def _refuse_others(self) -> None:
        """Raise if there is anything that would be lost and is no part of such a dataset."""
        others = [name for name in self.names() if not self._owns(name)]
        if others:
            raise OutputExistsError(
                f"{self.shown} is not empty: it holds {others[0]!r}, which is no part of a saved dataset and would be"
                " lost. Choose another folder, or empty this one yourself",
                path=self.shown,
            )


class FolderTarget(Target):
    """A folder. The dataset is made in a hidden folder beside it, and renamed when it is whole."""

    def __init__(self, folder: Path, entry: str, owns: Owns, *, waits: bool = False) -> None:
        self._final = folder.expanduser().absolute()
        making = self._final.with_name(f".{self._final.name}.saving")
        super().__init__(making, LocalStore(self._final), LocalStore(making), str(self._final), entry, owns)
        self.shown = str(folder)
        self._old = self._final.with_name(f".{self._final.name}.replaced")
        with os_errors(self.folder):
            self._final.parent.mkdir(parents=True, exist_ok=True)
            self._locks = [hold_output(self._try_lock, self.folder / LOCK_NAME, self.shown, waits=waits)]
            self._recover()
        self._is_published = False

    def _try_lock(self) -> Descriptor | None:
        self.folder.mkdir(exist_ok=True)
        try:
            return try_hold_file(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # the folder was renamed between the two
            return None

    @property
    def is_taken(self) -> bool:
        """Whether there is a folder that is not empty, or something else of this name."""
        return self._final.is_file() or bool(self.names())

    def names(self) -> list[str]:
        """List what is in the folder."""
        with os_errors(self._final):
            return sorted(os.listdir(self._final)) if self._final.exists() else []  # noqa: PTH208

    def keep(self, names: Iterable[str]) -> None:
        """Have files on the disk, and their names."""
        folders = set()
        for name in names:
            flush_file(self.folder / name)
            folders |= {self.folder / parent for parent in PurePosixPath(name).parents}
            failpoint("target.kept")
        for folder in folders:
            flush_folder(folder)

    def clear(self) -> None:
        """Empty the hidden folder. A dataset that is to be replaced stays readable until the new one is whole."""
        self._refuse_others()
        _empty(self.folder, but={LOCK_NAME})

    def publish(self, data: bytes, names: Collection[str] | None = None) -> None:
        """Rename the hidden folder: before, there is nothing of the new dataset, afterwards all of it."""
        if names is not None:
            _empty(self.folder, but={*names, LEDGER_NAME, LOCK_NAME})
        self.write(self.entry, data)
        self.keep([self.entry])
        failpoint("target.ready")
        with os_errors(self._final):
            if self.is_taken:
                self._refuse_others()
                self._replace()
            else:
                self.folder.rename(self._final)
            failpoint("target.published")
            flush_folder(self._final.parent)
            self._forget_making()
            for replaced in (self._old, self.folder):
                _remove(replaced)
        self._is_published = True

    def _replace(self) -> None:
        """Put the new folder in the place of the old one, at once where the file system can."""
        # Where the old one ends up, others can save when it is gone.
        self._locks += filter(None, [try_hold_file(self._final / LOCK_NAME, os.O_RDWR | os.O_CREAT)])
        if not exchange(self.folder, self._final):
            self._final.rename(self._old)
            failpoint("target.between")
            self.folder.rename(self._final)

    def _recover(self) -> None:
        """Finish what a process that was killed while publishing had begun; a replaced dataset is never the loser."""
        if self._old.exists():
            if self._final.exists():
                _remove(self._old)
            else:
                self._old.rename(self._final)
        if not (self.folder / LEDGER_NAME).exists():  # the dataset that was replaced, or what cannot be gone on with
            _empty(self.folder, but={LOCK_NAME})
        if (self._final / self.entry).exists():
            self._forget_making()

    def _forget_making(self) -> None:
        for name in (LEDGER_NAME, LOCK_NAME):
            (self._final / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let others save here; a hidden folder of which nothing can be gone on with is removed, too."""
        if self._locks and not self._is_published and not (self.folder / LEDGER_NAME).exists():
            _remove(self.folder)
        while self._locks:
            self._locks.pop().close()


class FilesTarget(Target):
    """Files that appear one by one in a folder, in a store, or in both; the entry comes last of all.

    Args:
        folder: Where they are made, and where they stay if `keeps_local`.
        store: Where they are uploaded to.
        url: That of the store.
        entry, owns: See `Target`.
        keeps_local: Whether they stay in the folder.
        is_temporary: Whether the folder goes at the end.
    """

    def __init__(
        self,
        folder: Path,
        store: Store | None = None,
        url: str | None = None,
        *,
        entry: str = INDEX_NAME,
        owns: Owns = lambda _: False,
        keeps_local: bool = True,
        is_temporary: bool = False,
    ) -> None:
        last = LocalStore(folder) if store is None else store
        super().__init__(folder, last, last, url or str(folder), entry, owns)
        self.store, self.flushes, self._is_temporary = store, keeps_local, is_temporary

    @property
    def url(self) -> str | None:
        """The URL of the store, if there is one."""
        return None if self.store is None else self._url

    @property
    def places(self) -> list[Store]:
        """All places of the files, the folder first."""
        return [LocalStore(self.folder), *([] if self.store is None else [self.store])]

    @property
    def is_taken(self) -> bool:
        """Whether there is anything in the folder, or the entry in the store."""
        return (self.folder.is_dir() and any(self.folder.iterdir())) or self.read(self.entry) is not None

    def keep(self, names: Iterable[str]) -> None:
        """Upload files, if they go further, and remove those that shall not stay here."""
        for name in names:
            if self.store is not None:
                self.store.upload(self.folder / name, name)
                if not self.flushes:
                    (self.folder / name).unlink()
            failpoint("target.kept")

    def write(self, name: str, data: bytes) -> None:
        """Make a small file in place of the one of this name, and upload it."""
        super().write(name, data)
        self.keep([name])

    def remove(self, names: Iterable[str]) -> None:
        """Remove files from all places; some may be in one of them alone."""
        for name in names:
            for place in self.places:
                with suppress(ObjectNotFoundError):
                    place.delete(name)

    def clear(self) -> None:
        """Remove all that is there, the entry first: what is left is no dataset."""
        self._refuse_others()
        self.remove([self.entry, *self.names()])

    def publish(self, data: bytes, names: Collection[str] | None = None) -> None:
        """Write the entry: each step is on the disk before the next one begins."""
        if names is not None:
            others = (name for name in self.names() if name not in names and name != LEDGER_NAME)
            self.remove(name for name in others if self._owns(name))
        with os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._flush_names()
        failpoint("target.ready")
        try:
            write_file(self.folder / self.entry, [data], flush=self.flushes)
        except FileNotFoundError:  # another merge took its hidden file for that of a killed one
            write_file(self.folder / self.entry, [data], flush=self.flushes)
        self._flush_names()
        self.keep([self.entry])
        failpoint("target.published")
        if self._owns(LEDGER_NAME):
            self.remove([LEDGER_NAME])

    def _flush_names(self) -> None:
        """Have on the disk that the files written so far are there: what comes next may rely on them."""
        if self.flushes:
            flush_folder(self.folder)
            with suppress(AccessDeniedError):  # the folder may be new, and the one above not ours to open
                flush_folder(self.folder.absolute().parent)

    def stop(self) -> None:
        """Cancel uploads that are under way, and those to come."""
        if isinstance(self.store, ProxiedStore):
            self.store.stop()

    def close(self) -> None:
        """Remove the folder if nothing in it shall stay, and hang up."""
        if isinstance(self.store, ProxiedStore):
            self.store.close()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif not self.flushes:
            with os_errors(self.folder):
                if self.folder.is_dir() and not any(self.folder.iterdir()):
                    self.folder.rmdir()


def read_json(place: Target | Store, name: str, shown: str) -> dict[str, Any] | None:
    """Read a file that says what is there, or what is not finished; None: it is missing."""
    where = join_url(shown, name)
    try:
        data = place.read(name)
        values = {} if data is None else json.loads(data)
    except ObjectNotFoundError:
        return None
    except ValueError as error:
        raise CorruptIndexError(f"{where} is no JSON: {error}. Make the dataset again", where=where) from error
    if not isinstance(values, dict):
        raise CorruptIndexError(f"{where} describes no dataset. Make it again", where=where)
    return None if data is None else values


def hold_output(attempt: Callable[[], Descriptor | None], path: Path, shown: str, *, waits: bool) -> Descriptor:
    """Hold the lock of something that is made; if another process has it, wait for that one or fail."""
    try:
        with WaitingFor(f"another process that is making {shown}"):
            return wait_for_lock(attempt, path, math.inf if waits else _MOMENT_S)
    except LockTimeoutError:
        raise OutputBusyError(f"another process is making {shown} just now", path=shown) from None


def open_target(
    out: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    *,
    entry: str,
    owns: Owns = lambda _: False,
    waits: bool = False,
) -> Target:
    """Understand a path or a URL. A folder that another process is saving to is an error, or waited for."""
    if url_scheme(os.fspath(out)) in (None, "file"):
        return FolderTarget(LocalStore.from_url(os.fspath(out)).root, entry, owns, waits=waits)
    return open_files(out, storage_options=storage_options, entry=entry, owns=owns)


def open_files(
    out: Any,
    remote: Any = None,
    *,
    keep_local: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    entry: str = INDEX_NAME,
    owns: Owns = lambda _: False,
) -> FilesTarget:
    """Understand `out` as a path, a URL or a pair of both, and `remote` as a store beside a path."""
    local: str | None
    if isinstance(out, (tuple, list)):
        if len(out) != 2:
            raise ConfigError(
                f"Invalid `out` argument of {len(out)} items: pass a path, a URL, or a pair (local path, remote URL)"
            )
        if remote is not None:
            raise ConfigError("Invalid `out` argument: the pair already contains the remote, so leave out `remote`")
        local, url = _text(out[0]), _text(out[1])
    elif remote is not None:
        local, url, keep_local = _text(out), _text(remote), True
    elif url_scheme(_text(out)) in (None, "file"):
        return FilesTarget(LocalStore.from_url(_text(out)).root, entry=entry, owns=owns)
    else:
        local, url, keep_local = None, _text(out), False
    store = open_proxied(url, storage_options, retry=retry)
    check_writable(store)  # before the first sample, not after the last one
    folder = Path(tempfile.mkdtemp(prefix="penstock-")) if local is None else _folder_beside(local, store)
    return FilesTarget(folder, store, url, entry=entry, owns=owns, keeps_local=keep_local, is_temporary=local is None)


def _folder_beside(local: str, store: Store) -> Path:
    if url_scheme(local) not in (None, "file"):
        raise ConfigError(f"Invalid `out` argument: {shown_url(local)!r} is a URL, but this must be a local path")
    folder = LocalStore.from_url(local).root
    if isinstance(store, LocalStore) and store.root.absolute() == folder.absolute():
        raise ConfigError(f"Invalid `out` argument: local and remote are both {folder}")
    return folder


def _text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ConfigError(f"Invalid `out` argument {value!r}: pass a path, a URL, or a pair (local path, remote URL)")
    return str(os.fspath(value))


def _empty(folder: Path, *, but: Collection[str]) -> None:
    """Remove all files in a folder except some, and the folders in it that are empty then."""
    for path in sorted(folder.rglob("*"), reverse=True):  # what lies in a folder comes before it
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in but:
            path.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Remove a folder, the lock last of all: a process that begins there meanwhile keeps its own."""
    _empty(folder, but={LOCK_NAME})
    with suppress(FileNotFoundError):
        (folder / LOCK_NAME).unlink()
    with suppress(OSError):
        folder.rmdir()
