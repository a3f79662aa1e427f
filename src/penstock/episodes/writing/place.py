"""Where a dataset is written to: a folder that appears whole, or a store in which `meta/info.json` comes last."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_proxied
from penstock.episodes.info import INFO_NAME
from penstock.errors import ObjectNotFoundError, OutputExistsError
from penstock.files import PART_SUFFIX, flush_file, flush_folder, os_errors
from penstock.storage.base import check_writable, shown_url, url_scheme
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import Store


class NewFolder:
    """A folder of this machine. It is filled under a hidden name beside it, and gets its own when all is there."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.shown = str(path)
        with os_errors(path):
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise _is_there(self.shown)
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            self._remove_left()
            self.work = self._path.with_name(f".{path.name}.{os.urandom(4).hex()}{PART_SUFFIX}")
            self.work.mkdir()
            # The kernel lets go of it when this process dies: then the next writer removes the folder.
            self._lock = os.open(self.work, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _remove_left(self) -> None:
        """Remove what writers that were killed left of the same dataset."""
        for left in self._path.parent.glob(f".{self._path.name}.*{PART_SUFFIX}"):
            descriptor = os.open(left, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            except BlockingIOError:
                pass  # somebody is writing it
            finally:
                os.close(descriptor)

    def publish(self) -> None:
        """Give the folder its name."""
        with os_errors(self._path):
            for path in sorted(self.work.rglob("*")):
                (flush_folder if path.is_dir() else flush_file)(path)
            flush_folder(self.work)
            try:
                self.work.rename(self._path)
            except OSError as error:
                if self._path.exists():
                    raise _is_there(self.shown) from error
                raise
            flush_folder(self._path.parent)

    def close(self) -> None:
        """Remove what was not published."""
        shutil.rmtree(self.work, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class NewUpload:
    """A dataset in a store: written to a temporary folder, then uploaded."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self.shown = shown_url(url)
        self._store: Store = open_proxied(url, storage_options)
        check_writable(self._store)  # before the first frame, not after the last one
        if _has(self._store, INFO_NAME):
            raise _is_there(self.shown)
        self.work = Path(tempfile.mkdtemp(prefix="penstock-"))

    def publish(self) -> None:
        """Upload all files; readers see nothing before the last one."""
        names = sorted(str(path.relative_to(self.work)) for path in self.work.rglob("*") if path.is_file())
        # Readers list this folder: nothing of a writer that was killed may be in it.
        for left in list(self._store.list("meta/episodes/")):
            if left.key not in names:
                self._store.delete(left.key)
        for name in sorted(names, key=lambda name: name == INFO_NAME):
            self._store.upload(self.work / name, name)

    def close(self) -> None:
        """Remove the temporary folder, and hang up."""
        shutil.rmtree(self.work, ignore_errors=True)
        close = getattr(self._store, "close", None)
        if close is not None:
            close()


def open_place(out: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> NewFolder | NewUpload:
    """Make ready to write to a path or URL at which there is nothing yet."""
    url = os.fspath(out)
    scheme = url_scheme(url)
    if scheme in (None, "file"):
        return NewFolder(Path(url).expanduser() if scheme is None else LocalStore.from_url(url).root)
    return NewUpload(url, storage_options)


def _has(store: Store, key: str) -> bool:
    try:
        store.read(key)
    except ObjectNotFoundError:
        return False
    return True


def _is_there(shown: str) -> OutputExistsError:
    return OutputExistsError(f"{shown} is not empty: remove what is there, or write to another place", path=shown)
