"""`clear_cache`: removes everything of one dataset, or of all, that nobody has in use."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cache.contents import Standing, read_contents, standings
from penstock.cache.directories import find_directories, is_at
from penstock.cache.removing import PATIENCE_S, CacheRemoval, Outcome, RemovedDataset, Remover, remove_in_order, sum_up
from penstock.cache.tidy import remove_directory, remove_edition, remove_empty_folders
from penstock.errors import CacheError
from penstock.files import translated
from penstock.storage.base import shown_url

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.cache.contents import Contents
    from penstock.cache.removing import Attempt

_TRIES = 5


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
                _tidy(remover, contents, place)
                break
        else:
            _tidy(remover, contents, place)
    return tried + more, left_bytes


def _tidy(remover: Remover, contents: Contents, place: str | None) -> None:
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
