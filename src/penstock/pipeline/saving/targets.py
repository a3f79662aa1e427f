"""Where a dataset is saved: a folder that appears whole, or a store whose manifest comes last."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock.cache.proxied import ProxiedStore, open_proxied
from penstock.errors import CorruptIndexError, ObjectNotFoundError, OutputBusyError, OutputExistsError
from penstock.failpoints import failpoint
from penstock.files import exchange, flush_folder, os_errors, read_file
from penstock.index.catalog import INDEX_NAME
from penstock.interrupts import WaitingFor
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.storage.base import check_writable, shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url
from penstock.write.publish import write_file
from penstock.write.rotate import is_shard_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import Store

MANIFEST_NAME = "_manifest.json"
LEDGER_NAME = "_unfinished.json"
_LOCK_NAME = ".lock"
_SHARD = Bounded(r"shard-\d{5,}\.\w+(\.\w+)?", NAME_CHARACTERS)


def is_ours(name: str) -> bool:
    """Tell whether a file is, by its name, one that saving leaves."""
    return (
        name in (MANIFEST_NAME, LEDGER_NAME, INDEX_NAME, _LOCK_NAME)
        or bool(_SHARD.fullmatch(name))
        or is_shard_file(name)
    )


class Target(ABC):
    """A place for one dataset. Shards are made in `folder`, one by one, and then handed over."""

    shown: str  # the place, as it may be shown
    folder: Path
    # Whether a ledger has to be there before the first shard, so that a successor knows what that belongs to.
    needs_notice = False

    @abstractmethod
    def names(self) -> list[str]:
        """List what is there."""

    @abstractmethod
    def read(self, name: str) -> dict[str, Any] | None:
        """Read the manifest or the ledger, if it is there."""

    @abstractmethod
    def keep(self, names: list[str]) -> None:
        """Take over files that were made in the folder."""

    @abstractmethod
    def has(self, name: str, num_bytes: int) -> bool:
        """Tell whether a file that was taken over is there, with this size."""

    @abstractmethod
    def write_ledger(self, ledger: dict[str, Any]) -> None:
        """Keep what a successor needs to go on."""

    @abstractmethod
    def clear(self, *, replaces: bool) -> None:
        """Remove what an unfinished save left and, if asked to, prepare to replace the dataset that is there."""

    @abstractmethod
    def publish(self, manifest: dict[str, Any]) -> None:
        """Make the dataset whole: its manifest is the last thing that appears."""

    @abstractmethod
    def path_of(self, name: str) -> str:
        """Give the path or the URL of a file of the finished dataset."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything."""

    def refuse_unless_ours(self) -> None:
        """Raise if there is anything that would be lost and was not saved by us."""
        others = [name for name in self.names() if not is_ours(name)]
        if others:
            raise OutputExistsError(
                f"{self.shown} holds {others[0]!r}, which is no part of a saved dataset and would be lost:"
                " choose another folder, or empty this one yourself",
                path=self.shown,
            )


class LocalTarget(Target):
    """A folder. The dataset is made in a hidden folder beside it, and renamed when it is whole."""

    def __init__(self, folder: Path, *, waits: bool = False) -> None:
        self._final = folder.expanduser().absolute()
        self.shown = str(folder)
        self.folder = self._final.with_name(f".{self._final.name}.saving")
        self._old = self._final.with_name(f".{self._final.name}.replaced")
        with os_errors(self.folder), WaitingFor(f"another process that is saving to {self.shown}"):
            self._final.parent.mkdir(parents=True, exist_ok=True)
            lock = None
            while lock is None:  # whoever had it may have renamed the folder meanwhile
                lock = self._try_lock(waits=waits)
            self._locks: list[BinaryIO] = [lock]
            self._recover()

    def _try_lock(self, *, waits: bool) -> BinaryIO | None:
        path = self.folder / _LOCK_NAME
        try:
            self.folder.mkdir(exist_ok=True)
            lock = path.open("wb")
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            if path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                return lock
        except BlockingIOError:
            lock.close()
            raise OutputBusyError(f"another process is saving to {self.shown} just now", path=self.shown) from None
        except FileNotFoundError:
            pass
        lock.close()
        return None

    def names(self) -> list[str]:
        """List what is in the folder."""
        with os_errors(self._final):
            return sorted(os.listdir(self._final)) if self._final.exists() else []  # noqa: PTH208

    def read(self, name: str) -> dict[str, Any] | None:
        """Read the manifest of the finished dataset, or the ledger of an unfinished one."""
        path = self.folder / name if name == LEDGER_NAME else self._final / name
        try:
            return _parse(read_file(path), str(path))
        except ObjectNotFoundError:
            return None

    def keep(self, names: list[str]) -> None:
        """Have files on the disk."""
        for name in names:
            with (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())
        flush_folder(self.folder)

    def has(self, name: str, num_bytes: int) -> bool:
        """Tell whether a file is there."""
        path = self.folder / name
        return path.is_file() and path.stat().st_size == num_bytes

    def write_ledger(self, ledger: dict[str, Any]) -> None:
        """Write the ledger anew."""
        write_file(self.folder / LEDGER_NAME, [json.dumps(ledger).encode()], flush=True)

    def clear(self, *, replaces: bool) -> None:
        """Empty the hidden folder. A dataset that is to be replaced stays readable until the new one is whole."""
        if replaces:
            self.refuse_unless_ours()
        self._remove_but(())

    def _remove_but(self, names: tuple[str, ...]) -> None:
        for path in self.folder.iterdir():
            if path.name not in (_LOCK_NAME, *names):
                path.unlink(missing_ok=True)

    def publish(self, manifest: dict[str, Any]) -> None:
        """Rename the hidden folder: before, there is nothing of the new dataset, afterwards all of it."""
        names = tuple(file["name"] for file in manifest["files"])
        self._remove_but((*names, LEDGER_NAME))
        write_file(self.folder / MANIFEST_NAME, [json.dumps(manifest, indent=1).encode()], flush=True)
        flush_folder(self.folder)
        with os_errors(self._final):
            if self.names():
                self.refuse_unless_ours()
                self._replace()
            else:
                self.folder.rename(self._final)
            failpoint("save.published")
            flush_folder(self._final.parent)
            self._tidy()

    def _replace(self) -> None:
        """Put the new folder in the place of the old one, at once where the file system can."""
        failpoint("save.ready")
        self._locks.append((self._final / _LOCK_NAME).open("wb"))
        fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)  # where it ends up, nobody saves before it is gone
        if not exchange(self.folder, self._final):
            self._final.rename(self._old)
            failpoint("save.between")
            self.folder.rename(self._final)

    def _tidy(self) -> None:
        """Remove what is left when a dataset was published: what only a successor needs, and the one replaced."""
        self._forget_making()
        for replaced in (self._old, self.folder):
            _remove(replaced)

    def _recover(self) -> None:
        """Finish what somebody who was killed while publishing had begun; a replaced dataset is never the loser."""
        if self._old.exists():
            if self._final.exists():
                _remove(self._old)
            else:
                self._old.rename(self._final)
        if (self.folder / MANIFEST_NAME).exists() and not (self.folder / LEDGER_NAME).exists():
            self._remove_but(())  # the dataset that was replaced
        if (self._final / MANIFEST_NAME).exists():
            self._forget_making()

    def _forget_making(self) -> None:
        for name in (LEDGER_NAME, _LOCK_NAME):
            (self._final / name).unlink(missing_ok=True)

    def path_of(self, name: str) -> str:
        """Give the path of a file."""
        return str(self._final / name)

    def close(self) -> None:
        """Let others save here; an empty hidden folder goes, too."""
        if self._locks and self.folder.is_dir() and os.listdir(self.folder) == [_LOCK_NAME]:  # noqa: PTH208
            _remove(self.folder)
        while self._locks:
            self._locks.pop().close()


class StoreTarget(Target):
    """A folder in a store, which cannot be renamed: shards are uploaded as they are made, and the manifest at last."""

    needs_notice = True

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self._url, self.shown = url, shown_url(url)
        self._store: Store = open_proxied(url, storage_options)
        check_writable(self._store)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-"))

    def names(self) -> list[str]:
        """List what is there."""
        return [info.key for info in self._store.list()]

    def read(self, name: str) -> dict[str, Any] | None:
        """Read the manifest or the ledger."""
        try:
            return _parse(self._store.read(name), join_url(self.shown, name))
        except ObjectNotFoundError:
            return None

    def keep(self, names: list[str]) -> None:
        """Upload files."""
        for name in names:
            self._store.upload(self.folder / name, name)
            (self.folder / name).unlink()

    def has(self, name: str, num_bytes: int) -> bool:
        """Ask the store for a file."""
        try:
            return self._store.stat(name).num_bytes == num_bytes
        except ObjectNotFoundError:
            return False

    def write_ledger(self, ledger: dict[str, Any]) -> None:
        """Upload the ledger."""
        self._upload(LEDGER_NAME, json.dumps(ledger).encode())

    def clear(self, *, replaces: bool) -> None:  # noqa: ARG002
        """Remove all that is there, the manifest first: what is left is no dataset."""
        self.refuse_unless_ours()
        with suppress(ObjectNotFoundError):
            self._store.delete(MANIFEST_NAME)
        for name in self.names():
            self._store.delete(name)

    def publish(self, manifest: dict[str, Any]) -> None:
        """Upload the manifest, and remove what a successor would have needed."""
        names = {file["name"] for file in manifest["files"]}
        for name in self.names():
            if is_ours(name) and name not in names and name != LEDGER_NAME:
                self._store.delete(name)
        self._upload(MANIFEST_NAME, json.dumps(manifest, indent=1).encode())
        with suppress(ObjectNotFoundError):
            self._store.delete(LEDGER_NAME)

    def path_of(self, name: str) -> str:
        """Give the URL of a file."""
        return join_url(self._url, name)

    def close(self) -> None:
        """Remove the temporary folder, and hang up."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(self._store, ProxiedStore):
            self._store.close()

    def _upload(self, name: str, data: bytes) -> None:
        write_file(self.folder / name, [data], flush=False)
        self.keep([name])


def open_target(
    output_path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, *, waits: bool = False
) -> Target:
    """Understand a path or a URL. A folder that another process is saving to is an error, or waited for."""
    text = os.fspath(output_path)
    if url_scheme(text) in (None, "file"):
        return LocalTarget(LocalStore.from_url(text).root, waits=waits)
    return StoreTarget(text, storage_options)


def _remove(folder: Path) -> None:
    """Remove a folder of files, the lock last of all: if somebody else begins there meanwhile, it is theirs."""
    with suppress(FileNotFoundError):
        names = os.listdir(folder)  # noqa: PTH208
        for name in sorted(names, key=lambda name: name == _LOCK_NAME):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        values = json.loads(data)
    except ValueError as error:
        raise CorruptIndexError(f"{where} is no JSON: {error}. Save the dataset again", where=where) from error
    if not isinstance(values, dict):
        raise CorruptIndexError(f"{where} is no manifest. Save the dataset again", where=where)
    return values
