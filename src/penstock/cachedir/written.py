"""Samples of sources that are written on this node: which there are, who reads them, and how they go.

    user cache/sources/KEY/
        build.lock      held by the process that writes
        use.lock        shared by all who read or write; its time says when one last began to
        00000.columns   the samples, some at a time
        progress.json   what is written so far, and where the source goes on
        written.json    all of it: when this is there, nothing changes any more

A folder goes as a whole, with its locks: a process that waited for one of them finds that it is gone, and makes a new
one.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cachedir.layout import user_cache_dir
from penstock.cachedir.lock import Descriptor, lock_within, open_locked, pids_holding, try_hold_file, wait_for_lock
from penstock.errors import CacheTooSmallError, LockTimeoutError
from penstock.files import PART_SUFFIX, make_folders
from penstock.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

BUILD_LOCK, USE_LOCK, PROGRESS, WRITTEN = "build.lock", "use.lock", "progress.json", "written.json"
COLUMNS_SUFFIX = ".columns"
# A process that removes a folder holds its lock only for a moment.
_PATIENCE_S = 60.0
# As for copies of shards: what is written may take half of what is free, and of what it takes now.
_SHARE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFolder:
    """The samples of one source, as far as they are written."""

    directory: Path
    label: str
    num_files: int
    num_bytes: int
    since_s: float
    last_used_s: float

    @property
    def source(self) -> str:
        """What it is called in lists."""
        return f"{self.label} written to sources/{self.directory.name}"

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that use it, where the system tells."""
        return pids_holding(self.directory / USE_LOCK)

    @property
    def is_in_use(self) -> bool:
        """Whether some process uses it."""
        try:
            held = open_locked(self.directory / USE_LOCK)
        except OSError:
            return False
        if held is None:
            return True
        held.close()
        return False


def written_root() -> Path:
    """Return the folder that they all lie in."""
    return user_cache_dir() / "sources"


def find_written(root: Path | None = None) -> list[WrittenFolder]:
    """Find all that is written, whole or not."""
    found = []
    for directory in _folders(written_root() if root is None else root):
        with suppress(OSError):  # it was removed at this moment
            found.append(_look_at(directory))
    return found


def _folders(root: Path) -> list[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [root / name for name in names if (root / name / USE_LOCK).exists()]


def _look_at(directory: Path) -> WrittenFolder:
    label = "a source"
    for name in (PROGRESS, WRITTEN):
        with suppress(OSError, ValueError):
            about = json.loads((directory / name).read_text())
            if isinstance(about, dict) and isinstance(about.get("label"), str):
                label = about["label"]
    used = (directory / USE_LOCK).stat()
    files = [entry.stat() for entry in os.scandir(directory) if entry.name.endswith((COLUMNS_SUFFIX, PART_SUFFIX))]
    return WrittenFolder(
        directory=directory,
        label=label,
        num_files=len(files),
        num_bytes=sum(file.st_size for file in files),
        since_s=min((file.st_mtime for file in files), default=used.st_mtime),
        last_used_s=used.st_mtime,
    )


def use(directory: Path) -> Descriptor:
    """Keep a folder, which is made if need be, from being removed, until what this gives is closed."""
    path = directory / USE_LOCK

    def attempt() -> Descriptor | None:
        make_folders(directory, 0o700)
        try:
            return try_hold_file(path, os.O_RDWR | os.O_CREAT, is_shared=True)
        except FileNotFoundError:  # removed between the two
            return None

    held = wait_for_lock(attempt, path, _PATIENCE_S)
    os.utime(held.number, (time.time(), time.time()))
    return held


def remove_written(folder: WrittenFolder) -> bool:
    """Remove a folder, unless it is in use; return whether it is gone."""
    try:
        used = try_hold_file(folder.directory / USE_LOCK, os.O_RDWR)
        if used is None:
            return False
        with used, lock_within(folder.directory / BUILD_LOCK, 0.0):
            # It is moved away first, so that none is ever found half gone.
            moved = folder.directory.with_name(f".{folder.directory.name}{PART_SUFFIX}")
            shutil.rmtree(moved, ignore_errors=True)
            folder.directory.rename(moved)
            shutil.rmtree(moved, ignore_errors=True)
    except FileNotFoundError:
        return True
    except LockTimeoutError:
        return False
    with suppress(OSError):  # others lie there
        folder.directory.parent.rmdir()
    return True


def make_room(directory: Path, num_bytes: int, limit_bytes: int | None, label: str) -> None:
    """Make room for more in a folder: others go that are not in use, those first that were not used for longest."""
    found = find_written(directory.parent)
    used = sum(folder.num_bytes for folder in found)
    bound = (shutil.disk_usage(directory).free + used) // _SHARE if limit_bytes is None else limit_bytes
    others = (each for each in found if each.directory != directory)
    for folder in sorted(others, key=lambda each: (each.last_used_s, each.directory.name)):
        if used + num_bytes <= bound:
            return
        if remove_written(folder):
            used -= folder.num_bytes
    if used + num_bytes > bound:
        what = "half of the free space," if limit_bytes is None else "the cache limit"
        raise CacheTooSmallError(
            f"the samples of {label} do not fit into {what} {format_bytes(bound)}, beside {format_bytes(used)} that are"
            f" written and in use in {directory.parent}: raise cache_limit, set PENSTOCK_CACHE_DIR to a larger disk, or"
            " stream what save_dataset(..., format='mds') writes",
            path=str(directory),
        )
