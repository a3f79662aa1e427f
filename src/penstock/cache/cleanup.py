"""`clear_cache` removes everything of one dataset, or of all; `prune_cache` what was used longest ago.

Nothing goes that somebody has in use or has pinned, and no file of others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cache.contents import Standing, find_directories, is_at, read_contents, standings
from penstock.cache.removal import (
    PATIENCE_S,
    CacheRemoval,
    Outcome,
    RemovedDataset,
    Remover,
    remove_directory,
    remove_edition,
    remove_empty_folders,
    remove_in_order,
    sum_up,
)
from penstock.errors import CacheError
from penstock.files import translated
from penstock.storage.base import shown_url
from penstock.units import parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.cache.contents import CachedCopy, Contents
    from penstock.cache.removal import Attempt

_TRIES = 5


# --- By dataset ---------------------------------------------------------------------------------------------


def clear_cache(
    url: str | os.PathLike[str] | None = None, folders: Sequence[str | os.PathLike[str]] | None = None
) -> CacheRemoval:
    """Remove everything of one dataset, or of all, from the cache; nothing in use, nothing pinned, no file of others.

    A job that reads the dataset goes on, and fetches again what it needs.

    Args:
        url: Where the dataset is kept, as it was given as `remote`; splits below it go with it. Left out: all datasets.
        folders: Folders that were given as `local`, or that hold such; by default the user's own cache.
    """
    place = None if url is None else str(url)
    directories = find_directories(folders)
    found = [read_contents(directory) for directory in directories]
    meant = [contents for contents in found if place is None or _sources(contents, place)]
    if place is not None and not meant:
        raise _unknown(place, directories)
    remover = Remover()
    removed: list[RemovedDataset] = []
    left_bytes = sum(contents.num_bytes for contents in found)
    for contents in meant:
        tried, left = _clear(remover, contents, place)
        removed += _with_empty(contents, place, sum_up(tried))
        left_bytes -= contents.num_bytes - left
    return CacheRemoval(datasets=tuple(removed), left_bytes=left_bytes)


def _sources(contents: Contents, place: str | None) -> set[str]:
    """Name the datasets of a directory that are meant."""
    of_editions = {found.source for found in contents.editions if found.source is not None}
    sources = of_editions | {copy.record.url for copy in contents.copies}
    return {source for source in sources if place is None or is_at(source, place)}


def _unknown(place: str, directories: Sequence[Path]) -> CacheError:
    where = f"any of {len(directories)} cache directories" if directories else "the cache, which is empty"
    return CacheError(
        f"nothing of {shown_url(place)} is in {where}: `penstock cache` lists what is. A folder that was given as"
        " `local` has to be named",
        url=shown_url(place),
    )


def _clear(remover: Remover, contents: Contents, place: str | None) -> tuple[list[Attempt], int]:
    """Clear one directory; give what was tried, and how many bytes are left in it."""
    going, tried = [], []
    for copy, standing in zip(contents.copies, standings(contents), strict=True):
        if place is None or is_at(copy.record.url, place):
            if standing is Standing.NEEDED:
                tried.append((copy, Outcome.IN_USE))
            else:
                going.append(copy)
    more, left_bytes = remove_in_order(going, remover.remove, left_bytes=contents.num_bytes)
    remove_empty_folders(contents.directory, [copy.record.name for copy in going])
    with translated(contents.directory):
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):  # another one clears the same directory, and was quicker
                _remove_rest(remover, contents, place)
                break
        else:
            _remove_rest(remover, contents, place)
    return tried + more, left_bytes


def _remove_rest(remover: Remover, contents: Contents, place: str | None) -> None:
    """Remove what belongs to copies that are gone: editions, the index beside them, and at last the directory."""
    is_left = False
    for found in contents.editions:
        if place is None or (found.source is not None and is_at(found.source, place)):
            is_left |= not remove_edition(remover, found.edition)
    index = contents.index
    if index is not None and not is_left and (place is None or is_at(index.record.url, place)):
        remover.remove(index, PATIENCE_S)
    remover.folder(contents.directory).sweep()
    remove_directory(remover, contents.directory)


def _with_empty(contents: Contents, place: str | None, removed: Sequence[RemovedDataset]) -> list[RemovedDataset]:
    """Name datasets too of which no shard was there, only an edition."""
    others = _sources(contents, place) - {dataset.source for dataset in removed}
    return [*removed, *(RemovedDataset(source=name, directory=str(contents.directory)) for name in sorted(others))]


# --- By age -------------------------------------------------------------------------------------------------


def prune_cache(to: int | float | str, folders: Sequence[str | os.PathLike[str]] | None = None) -> CacheRemoval:
    """Remove what was used longest ago until at most so many bytes are left; nothing in use, and nothing pinned.

    Copies that only an earlier version of a dataset has, and that nobody reads, go first. Whether that was enough is
    told by `left_bytes` of what it gives.

    Args:
        to: How many bytes may be left in all directories together, such as "50gb".
        folders: Folders that were given as `local`, or that hold such; by default the user's own cache.
    """
    to_bytes = parse_bytes(to)
    remover = Remover()
    found = [read_contents(directory) for directory in find_directories(folders)]
    kept, going = removal_order(found)
    num_bytes = sum(contents.num_bytes for contents in found)
    tried, left_bytes = remove_in_order(going, remover.remove, left_bytes=num_bytes, to_bytes=to_bytes)
    if left_bytes > to_bytes:
        tried += [(copy, Outcome.IN_USE) for copy in kept]
    for contents in found:
        _remove_unread(remover, contents, tried)
    return CacheRemoval(datasets=sum_up(tried), left_bytes=left_bytes)


def removal_order(found: Iterable[Contents]) -> tuple[list[CachedCopy], list[CachedCopy]]:
    """Give the copies that have to stay, and those that may go: who goes first comes first."""
    kept: list[CachedCopy] = []
    going: list[tuple[bool, float, str, CachedCopy]] = []
    for contents in found:
        for copy, standing in zip(contents.copies, standings(contents), strict=True):
            if standing is Standing.NEEDED:
                kept.append(copy)
            else:
                going.append((standing is not Standing.OUTDATED, copy.last_used_s, copy.record.name, copy))
    return kept, [copy for *_, copy in sorted(going, key=lambda entry: entry[:3])]


def _remove_unread(remover: Remover, contents: Contents, tried: Iterable[Attempt]) -> None:
    """Remove earlier editions that nobody reads and that have no copies left, and folders that became empty."""
    for found in contents.editions:
        if not found.is_newest and not found.is_open:
            remove_edition(remover, found.edition)
    names = [copy.record.name for copy, _ in tried if copy.directory == contents.directory]
    remove_empty_folders(contents.directory, names)
