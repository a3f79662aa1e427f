"""`clear_cache` removes everything of one dataset, or of all; `prune_cache` what was used longest ago; `evict` a shard.

All work beside readers, fetchers and others that do the same: nothing goes that is in use or pinned, and
no file of others. With the last copies go what belonged to them: editions, empty folders and, at last, our own folder.
"""

from __future__ import annotations

import enum
import secrets
import shutil
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from penstock.cache.contents import (
    CachedCopy,
    Standing,
    find_directories,
    is_at,
    is_below_own_cache,
    read_contents,
    standings,
    written_below,
)
from penstock.cachedir.editions import editions_in
from penstock.cachedir.folder import Folder, beside_clearing
from penstock.cachedir.layout import NUM_STRIPES, apart_name, control_folder, pin_path, plain_name
from penstock.cachedir.lock import Stripes
from penstock.cachedir.presence import are_unchanged
from penstock.cachedir.written import WrittenFolder, remove_written
from penstock.errors import BadIndexError, CacheError, LockTimeoutError
from penstock.files import PART_SUFFIX, os_errors
from penstock.index.paths import resolve_inside
from penstock.storage.base import shown_url
from penstock.units import parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from penstock.cache.contents import Contents
    from penstock.cachedir.editions import Edition
    from penstock.cachedir.lock import Held

Removed = TypeVar("Removed", "CachedCopy | WrittenFolder", "CachedCopy")
# A fetcher that brings something holds a lock that its name shares with others: so long they are waited for.
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedDataset:
    """What was removed of one dataset in one directory, and what was not."""

    source: str  # where it comes from, without secrets
    directory: str
    num_removed: int = 0  # shards, and other objects
    removed_bytes: int = 0
    in_use_bytes: int = 0  # kept, because it is being read or fetched
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
        """The bytes that were not removed because they are in use."""
        return sum(dataset.in_use_bytes for dataset in self.datasets)

    @property
    def pinned_bytes(self) -> int:
        """The bytes that were not removed because they are pinned."""
        return sum(dataset.pinned_bytes for dataset in self.datasets)


# --- By dataset ---------------------------------------------------------------------------------------------


def clear_cache(
    url: str | os.PathLike[str] | None = None, folders: Sequence[str | os.PathLike[str]] | None = None
) -> CacheRemoval:
    """Remove one dataset, or all of them, from the cache, except shards that are in use or pinned.

    Only files that penstock brought are removed. A job that reads the dataset continues, and fetches again what it
    needs.

    Args:
        url: The `remote` of the dataset; splits below it are removed, too. By default all datasets are removed.
        folders: Folders that you passed as `local`, or folders above them; by default your user cache.
    """
    place = None if url is None else str(url)
    directories = find_directories(folders)
    found = [read_contents(directory) for directory in directories]
    written = written_below(folders)
    meant = [contents for contents in found if place is None or _sources(contents, place)]
    going = [each for each in written if place in (None, each.source, str(each.directory))]
    if place is not None and not meant and not going:
        where = f"any of {len(directories)} cache folders" if directories else "the cache, which is empty"
        raise CacheError(
            f"{shown_url(place)} is not in {where}. `penstock cache list` shows what is cached. If you passed a"
            " folder as `local`, name it here too",
            url=shown_url(place),
        )
    remover = Remover()
    removed: list[RemovedDataset] = []
    left_bytes = _count_bytes(found, written)
    for contents in meant:
        tried, left = _clear(remover, contents, place)
        datasets = sum_up(tried)
        empty = _sources(contents, place) - {dataset.source for dataset in datasets}  # editions without a shard
        removed += datasets
        removed += [RemovedDataset(source=name, directory=str(contents.directory)) for name in sorted(empty)]
        left_bytes -= contents.num_bytes - left
    tried, left_bytes = remove_in_order(going, remover.remove, left_bytes=left_bytes)
    removed += sum_up(tried)
    return CacheRemoval(datasets=tuple(removed), left_bytes=left_bytes)


def _count_bytes(found: Iterable[Contents], written: Iterable[WrittenFolder]) -> int:
    return sum(each.num_bytes for each in found) + sum(each.num_bytes for each in written)


def _is_meant(source: str | None, place: str | None) -> bool:
    return place is None or (source is not None and is_at(source, place))


def _sources(contents: Contents, place: str | None) -> set[str]:
    """Name the datasets of a directory that are meant."""
    sources = {copy.record.url for copy in contents.copies} | {found.source for found in contents.editions}
    return {source for source in sources if source is not None and _is_meant(source, place)}


def _clear(remover: Remover, contents: Contents, place: str | None) -> tuple[list[Attempt], int]:
    """Clear one directory; give what was tried, and how many bytes are left in it."""
    kept, going = removal_order([contents])
    going = [copy for copy in going if _is_meant(copy.source, place)]
    tried, left_bytes = remove_in_order(going, remover.remove, left_bytes=contents.num_bytes)
    tried += [(copy, RemovalOutcome.IN_USE) for copy in kept if _is_meant(copy.source, place)]
    names = [copy.record.name for copy in going if isinstance(copy, CachedCopy)]
    remove_empty_folders(contents.directory, names)
    beside_clearing(contents.directory, partial(_remove_rest, remover, contents, place))
    return tried, left_bytes


def _remove_rest(remover: Remover, contents: Contents, place: str | None) -> None:
    """Remove what belongs to copies that are gone: editions, the index beside them, and at last the directory."""
    editions = [found.edition for found in contents.editions if _is_meant(found.source, place)]
    is_left = [edition for edition in editions if not remove_edition(remover, edition)]
    index = contents.index
    if index is not None and not is_left and _is_meant(index.record.url, place):
        remover.remove(index, PATIENCE_S)
    remover.folder(contents.directory).sweep()
    remove_directory(remover, contents.directory)


# --- By age -------------------------------------------------------------------------------------------------


def prune_cache(to: int | float | str, folders: Sequence[str | os.PathLike[str]] | None = None) -> CacheRemoval:
    """Remove the shards that were not used for longest, until at most so many bytes are left.

    What killed downloads left goes, too. Shards that are in use or pinned stay. Copies that belong only to an earlier
    version of a dataset, and that no job reads, are removed first. `left_bytes` tells you whether that was enough.

    Args:
        to: How many bytes may be left in all folders together, such as "50gb".
        folders: Folders that you passed as `local`, or folders above them; by default your user cache.
    """
    to_bytes = parse_bytes(to)
    remover = Remover()
    found = [read_contents(directory) for directory in find_directories(folders)]
    written = written_below(folders)
    kept, going = removal_order(found, written)
    num_bytes = _count_bytes(found, written)
    tried, left_bytes = remove_in_order(going, remover.remove, left_bytes=num_bytes, to_bytes=to_bytes)
    if left_bytes > to_bytes:
        tried += [(copy, RemovalOutcome.IN_USE) for copy in kept]
    for contents in found:
        _remove_unread(remover, contents, tried)
        remover.folder(contents.directory).sweep()
    return CacheRemoval(datasets=sum_up(tried), left_bytes=left_bytes)


def removal_order(
    found: Iterable[Contents], written: Iterable[WrittenFolder] = ()
) -> tuple[list[CachedCopy], list[Removable]]:
    """Return the copies that have to stay, and what may go: who goes first comes first."""
    kept: list[CachedCopy] = []
    going: list[tuple[bool, float, str, Removable]] = [
        (True, each.last_used_s, each.directory.name, each) for each in written
    ]
    for contents in found:
        for copy, standing in zip(contents.copies, standings(contents), strict=True):
            if standing is Standing.NEEDED:
                kept.append(copy)
            else:
                going.append((standing is not Standing.OUTDATED, copy.last_used_s, copy.record.name, copy))
    return kept, [copy for *_, copy in sorted(going, key=lambda entry: entry[:3])]


def _remove_unread(remover: Remover, contents: Contents, tried: Iterable[Attempt]) -> None:
    """Remove earlier editions that no process reads and that have no copies left, and folders that became empty."""
    for found in contents.editions:
        if not found.is_newest and not found.is_open:
            remove_edition(remover, found.edition)
    copies = [copy for copy, _ in tried if isinstance(copy, CachedCopy)]
    names = [copy.record.name for copy in copies if copy.directory == contents.directory]
    remove_empty_folders(contents.directory, names)


# --- One shard ----------------------------------------------------------------------------------------------


def evict(directory: Path, name: str) -> None:
    """Remove what was fetched of a shard; one that is read, fetched or pinned is an error."""
    remover = Remover()
    for copy in read_contents(directory).copies:
        if plain_name(copy.record.name) == name:
            outcome = remover.remove(copy, PATIENCE_S)
            if outcome in _REASONS_TO_KEEP:
                raise CacheError(f"cannot evict {name} from {directory}: {_REASONS_TO_KEEP[outcome]}", shard=name)


# --- What becomes of a copy ---------------------------------------------------------------------------------


class RemovalOutcome(enum.Enum):
    """What became of a copy that was to go."""

    REMOVED = enum.auto()
    GONE = enum.auto()  # another process was quicker
    IN_USE = enum.auto()
    PINNED = enum.auto()
    BUSY = enum.auto()  # its name is locked by the process that fetches it, or one that shares the lock


_REASONS_TO_KEEP = {
    RemovalOutcome.IN_USE: "it is being read",
    RemovalOutcome.BUSY: "it is being fetched",
    RemovalOutcome.PINNED: "it is pinned",
}
Removable = CachedCopy | WrittenFolder
Attempt = tuple[Removable, RemovalOutcome]


def remove_in_order(
    copies: Iterable[Removed],
    remove: Callable[[Removed, float], RemovalOutcome],
    *,
    left_bytes: int,
    to_bytes: int = -1,
) -> tuple[list[Attempt], int]:
    """Remove one copy after the other until no more than so many bytes are left; give what was tried, and what is left.

    `remove` waits for a lock at most the seconds that it is told. What is busy is tried once more after all others.
    """
    tried: list[Attempt] = []
    busy: list[Removed] = []
    for patience_s, round_copies in ((0.0, copies), (PATIENCE_S, busy)):
        deadline = time.monotonic() + patience_s
        for copy in round_copies:
            if left_bytes <= to_bytes:
                break
            outcome = remove(copy, max(0.0, deadline - time.monotonic()))
            if outcome is RemovalOutcome.BUSY and round_copies is not busy:
                busy.append(copy)
                continue
            tried.append((copy, outcome))
            left_bytes -= copy.num_bytes if outcome in (RemovalOutcome.REMOVED, RemovalOutcome.GONE) else 0
    return tried, left_bytes


def sum_up(tried: Iterable[Attempt]) -> tuple[RemovedDataset, ...]:
    """Return what became of each dataset."""
    totals: defaultdict[tuple[str, str], Counter[RemovalOutcome]] = defaultdict(Counter)
    num_removed = Counter[tuple[str, str]]()
    for copy, outcome in tried:
        key = copy.source, str(copy.directory)
        totals[key][outcome] += copy.num_bytes
        num_removed[key] += outcome is RemovalOutcome.REMOVED
    return tuple(
        RemovedDataset(
            source=source,
            directory=directory,
            num_removed=num_removed[source, directory],
            removed_bytes=num_bytes[RemovalOutcome.REMOVED],
            in_use_bytes=num_bytes[RemovalOutcome.IN_USE] + num_bytes[RemovalOutcome.BUSY],
            pinned_bytes=num_bytes[RemovalOutcome.PINNED],
        )
        for (source, directory), num_bytes in sorted(totals.items(), key=itemgetter(0))
    )


class Remover:
    """Removes copies under the locks that fetchers and readers use."""

    def __init__(self) -> None:
        self.stripes = Stripes()
        self._folders: dict[Path, Folder] = {}

    def folder(self, directory: Path) -> Folder:
        """Return a directory, with its ledger."""
        if directory not in self._folders:
            self._folders[directory] = Folder(directory, self.stripes)
        return self._folders[directory]

    def remove(self, copy: Removable, wait_s: float) -> RemovalOutcome:
        """Remove a copy, unless it is another one by now, or is being read, fetched or pinned."""
        if isinstance(copy, WrittenFolder):
            return RemovalOutcome.REMOVED if remove_written(copy) else RemovalOutcome.IN_USE
        name = copy.record.name
        with os_errors(copy.directory):
            if not control_folder(copy.directory).is_dir():
                return RemovalOutcome.GONE
            held = self.hold(copy.directory, plain_name(name), wait_s)
            if held is None:
                return RemovalOutcome.BUSY
            with held:
                now = self.folder(copy.directory).ledger.get(name)
                if now is None:
                    return RemovalOutcome.GONE
                if now.files != copy.record.files:
                    return RemovalOutcome.IN_USE  # it was just fetched anew
                if pin_path(copy.directory, plain_name(name)).exists():
                    return RemovalOutcome.PINNED
                return RemovalOutcome.REMOVED if self.folder(copy.directory).evict_held(name) else RemovalOutcome.IN_USE

    def hold(self, directory: Path, name: str, wait_s: float) -> Held | None:
        """Keep fetchers from a name of a directory, or give None if one holds it for longer than this."""
        try:
            return self.stripes.take(directory, name, wait_s)
        except (LockTimeoutError, FileNotFoundError):  # or another one clears the directory at this moment
            return None


# --- What is left when copies are gone ----------------------------------------------------------------------


def remove_edition(remover: Remover, edition: Edition) -> bool:
    """Remove an edition that no process reads and that has no copies of its own left; tell whether it is gone.

    Editions are made by the process that holds the name of the index.
    """
    held = remover.hold(edition.directory, edition.index_path.name, PATIENCE_S)
    if held is None:
        return False
    with held:
        below = apart_name(edition.name, "")
        records = remover.folder(edition.directory).ledger.all()
        own = [record for record in records if record.name.startswith(below)]
        if any(are_unchanged(edition.directory, record.files[:1]) for record in own):
            return False
        return edition.remove_unused()


def remove_empty_folders(directory: Path, names: Iterable[str]) -> None:
    """Remove the folders below a directory in which files of these names lay, where nothing else lies in them."""
    folders = {folder for name in names for folder in PurePosixPath(name).parents if folder.name}
    control = control_folder(directory).name
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        if folder.parts[0] != control:
            with suppress(OSError, BadIndexError):  # something lies there, it is gone already, or a link leads out
                resolve_inside(directory, str(folder)).rmdir()


def remove_directory(remover: Remover, directory: Path) -> None:
    """Remove our own folder from a directory in which nothing of ours is left, and the directory if it is ours, too.

    All locks of the directory are held meanwhile, so no fetcher is at work there, and what is checked stays true. The
    folder is moved away before it is deleted, so the next process makes a new one, and none is ever found half gone.
    """
    control = control_folder(directory)
    for moved in directory.glob(f"{control.name}.*{PART_SUFFIX}"):  # a killed process had moved it away
        shutil.rmtree(moved, ignore_errors=True)
    if not _is_bare(remover, directory):
        return
    with ExitStack() as held:
        for stripe in range(NUM_STRIPES):
            path = remover.stripes.try_stripe(directory, stripe)
            if path is None:
                return
            held.callback(remover.stripes.leave_stripe, path)
        if not _is_bare(remover, directory):
            return
        moved = directory / f"{control.name}.{secrets.token_hex(4)}{PART_SUFFIX}"
        try:
            control.rename(moved)
        except FileNotFoundError:  # another one clears the cache, too
            return
    shutil.rmtree(moved, ignore_errors=True)
    if is_below_own_cache(directory):
        with suppress(OSError):  # other files lie there
            directory.rmdir()


def _is_bare(remover: Remover, directory: Path) -> bool:
    """Return whether nothing lies in a directory that could still be wanted: no copy, no edition, no pin."""
    if editions_in(directory):
        return False
    pins = pin_path(directory, "").parent
    if pins.is_dir() and any(pins.iterdir()):
        return False
    return not any(are_unchanged(directory, record.files[:1]) for record in remover.folder(directory).ledger.all())
