"""Removes copies from cache directories by hand, beside readers, fetchers and others that do the same.

With the last copies go what belonged to them: editions, empty folders and, at last, our own folder in the directory.
"""

from __future__ import annotations

import enum
import secrets
import shutil
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from penstock.cache.contents import is_below_own_cache
from penstock.cachedir.editions import editions_in
from penstock.cachedir.folder import Folder
from penstock.cachedir.layout import NUM_STRIPES, PART_SUFFIX, apart_name, control_folder, pin_path, plain_name
from penstock.cachedir.lock import Stripes
from penstock.cachedir.presence import are_unchanged
from penstock.errors import BadIndexError, LockTimeoutError
from penstock.files import translated
from penstock.index.paths import resolve_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from penstock.cache.contents import CachedCopy
    from penstock.cachedir.editions import Edition
    from penstock.cachedir.lock import Held

# A fetcher that brings something holds a lock that its name shares with others: so long they are waited for.
PATIENCE_S = 5.0


# --- For users ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedDataset:
    """What was removed of one dataset in one directory, and what was not."""

    source: str  # where it comes from, without secrets
    directory: str
    num_removed: int = 0  # shards, and other objects
    removed_bytes: int = 0
    in_use_bytes: int = 0  # kept, because somebody reads or fetches it
    pinned_bytes: int = 0  # kept, because it is pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRemoval:
    """What was removed from the cache, and what is left there."""

    datasets: tuple[RemovedDataset, ...]
    left_bytes: int  # of all datasets in the directories that were looked at

    @property
    def removed_bytes(self) -> int:
        """The bytes that were removed."""
        return sum(dataset.removed_bytes for dataset in self.datasets)

    @property
    def in_use_bytes(self) -> int:
        """The bytes that were to go, and stay because they are in use."""
        return sum(dataset.in_use_bytes for dataset in self.datasets)

    @property
    def pinned_bytes(self) -> int:
        """The bytes that were to go, and stay because they are pinned."""
        return sum(dataset.pinned_bytes for dataset in self.datasets)


# --- What becomes of a copy ---------------------------------------------------------------------------------


class Outcome(enum.Enum):
    """What became of a copy that was to go."""

    REMOVED = enum.auto()
    GONE = enum.auto()  # somebody else was quicker
    IN_USE = enum.auto()
    PINNED = enum.auto()
    BUSY = enum.auto()  # its name is locked by whoever fetches it, or one that shares the lock


Attempt = tuple["CachedCopy", Outcome]


def remove_in_order(
    copies: Iterable[CachedCopy],
    remove: Callable[[CachedCopy, float], Outcome],
    *,
    left_bytes: int,
    to_bytes: int = -1,
) -> tuple[list[Attempt], int]:
    """Remove one copy after the other until no more than so many bytes are left; give what was tried, and what is left.

    `remove` waits for a lock at most the seconds that it is told. What is busy is tried once more after all others.
    """
    tried: list[Attempt] = []
    busy: list[CachedCopy] = []
    for copy in copies:
        if left_bytes <= to_bytes:
            break
        outcome = remove(copy, 0.0)
        if outcome is Outcome.BUSY:
            busy.append(copy)
        else:
            tried.append((copy, outcome))
            left_bytes -= copy.num_bytes if outcome in (Outcome.REMOVED, Outcome.GONE) else 0
    deadline = time.monotonic() + PATIENCE_S
    for copy in busy:
        if left_bytes <= to_bytes:
            break
        outcome = remove(copy, max(0.0, deadline - time.monotonic()))
        tried.append((copy, outcome))
        left_bytes -= copy.num_bytes if outcome in (Outcome.REMOVED, Outcome.GONE) else 0
    return tried, left_bytes


def sum_up(tried: Iterable[Attempt]) -> tuple[RemovedDataset, ...]:
    """Say what became of each dataset."""
    by_dataset: defaultdict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for copy, outcome in tried:
        by_dataset[copy.record.url, str(copy.directory)].append((copy, outcome))
    return tuple(_sum_up(*key, by_dataset[key]) for key in sorted(by_dataset))


def _sum_up(source: str, directory: str, tried: list[Attempt]) -> RemovedDataset:
    def num_bytes(*outcomes: Outcome) -> int:
        return sum(copy.num_bytes for copy, outcome in tried if outcome in outcomes)

    return RemovedDataset(
        source=source,
        directory=directory,
        num_removed=sum(outcome is Outcome.REMOVED for _, outcome in tried),
        removed_bytes=num_bytes(Outcome.REMOVED),
        in_use_bytes=num_bytes(Outcome.IN_USE, Outcome.BUSY),
        pinned_bytes=num_bytes(Outcome.PINNED),
    )


# --- On the disk --------------------------------------------------------------------------------------------


class Remover:
    """Removes copies under the locks that fetchers and readers use."""

    def __init__(self) -> None:
        self.stripes = Stripes()
        self._folders: dict[Path, Folder] = {}

    def folder(self, directory: Path) -> Folder:
        """Give a directory, with its ledger."""
        if directory not in self._folders:
            self._folders[directory] = Folder(directory, self.stripes)
        return self._folders[directory]

    def remove(self, copy: CachedCopy, wait_s: float) -> Outcome:
        """Remove a copy, unless it is another one by now, or somebody reads it, fetches it or has pinned it."""
        name = copy.record.name
        with translated(copy.directory):
            if not control_folder(copy.directory).is_dir():
                return Outcome.GONE
            held = self.hold(copy.directory, plain_name(name), wait_s)
            if held is None:
                return Outcome.BUSY
            try:
                return self._remove_held(copy)
            finally:
                self.stripes.leave(held)

    def hold(self, directory: Path, name: str, wait_s: float) -> Held | None:
        """Keep fetchers from a name of a directory, or give None if one holds it for longer than this."""
        try:
            if wait_s <= 0:
                return self.stripes.try_take(directory, name)
            return self.stripes.take(directory, name, wait_s)
        except (LockTimeoutError, FileNotFoundError):  # or another one clears the directory at this moment
            return None

    def _remove_held(self, copy: CachedCopy) -> Outcome:
        folder, name = self.folder(copy.directory), copy.record.name
        now = folder.ledger.get(name)
        if now is None:
            return Outcome.GONE
        if now.files != copy.record.files:
            return Outcome.IN_USE  # it was just fetched anew
        if pin_path(copy.directory, plain_name(name)).exists():
            return Outcome.PINNED
        return Outcome.REMOVED if folder.evict_held(name) else Outcome.IN_USE


# --- What is left when copies are gone ----------------------------------------------------------------------


def remove_edition(remover: Remover, edition: Edition) -> bool:
    """Remove an edition that nobody reads and that has no copies of its own left; tell whether it is gone.

    Editions are made by whoever holds the name of the index.
    """
    held = remover.hold(edition.directory, edition.index_path.name, PATIENCE_S)
    if held is None:
        return False
    try:
        below = apart_name(edition.name, "")
        records = remover.folder(edition.directory).ledger.all()
        if any(
            record.name.startswith(below) and are_unchanged(edition.directory, record.files[:1]) for record in records
        ):
            return False
        return edition.remove_unused()
    finally:
        remover.stripes.leave(held)


def remove_empty_folders(directory: Path, names: Iterable[str]) -> None:
    """Remove the folders below a directory in which files of these names lay, where nothing else lies in them."""
    folders = {folder for name in names for folder in PurePosixPath(name).parents if folder.name}
    control = control_folder(directory).name
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        if folder.parts[0] != control:
            with suppress(OSError, BadIndexError):  # something lies there, it is gone already, or a link leads out
                resolve_inside(directory, str(folder)).rmdir()


def remove_directory(remover: Remover, directory: Path) -> bool:
    """Remove our own folder from a directory in which nothing of ours is left, and the directory if it is ours, too.

    All locks of the directory are held meanwhile, so no fetcher is at work there, and what is checked stays true. The
    folder is moved away before it is deleted, so whoever comes next makes a new one, and none is ever found half gone.
    """
    _sweep_moved(directory)
    if not _is_bare(remover, directory):
        return False
    with ExitStack() as held:
        if not _hold_all(held, remover.stripes, directory) or not _is_bare(remover, directory):
            return False
        moved = directory / f"{control_folder(directory).name}.{secrets.token_hex(4)}{PART_SUFFIX}"
        try:
            control_folder(directory).rename(moved)
        except FileNotFoundError:  # another one clears the cache, too
            return False
    shutil.rmtree(moved, ignore_errors=True)
    if is_below_own_cache(directory):
        with suppress(OSError):  # files of somebody else lie there
            directory.rmdir()
    return True


def _is_bare(remover: Remover, directory: Path) -> bool:
    """Tell whether nothing lies in a directory that anybody could still want: no copy, no edition, no pin."""
    if editions_in(directory):
        return False
    pins = pin_path(directory, "").parent
    if pins.is_dir() and any(pins.iterdir()):
        return False
    return not any(are_unchanged(directory, record.files[:1]) for record in remover.folder(directory).ledger.all())


def _hold_all(held: ExitStack, stripes: Stripes, directory: Path) -> bool:
    for stripe in range(NUM_STRIPES):
        path = stripes.try_stripe(directory, stripe)
        if path is None:
            return False
        held.callback(stripes.leave_stripe, path)
    return True


def _sweep_moved(directory: Path) -> None:
    """Delete what a killed process had moved away."""
    for moved in directory.glob(f"{control_folder(directory).name}.*{PART_SUFFIX}"):
        shutil.rmtree(moved, ignore_errors=True)
