"""`prune_cache`: removes what was used longest ago until the rest is small enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cache.contents import Standing, read_contents, standings
from penstock.cache.directories import find_directories
from penstock.cache.removing import CacheRemoval, Outcome, Remover, remove_in_order, sum_up
from penstock.cache.tidy import remove_edition, remove_empty_folders
from penstock.units import parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from penstock.cache.contents import CachedCopy, Contents
    from penstock.cache.removing import Attempt


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
        _tidy(remover, contents, tried)
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


def _tidy(remover: Remover, contents: Contents, tried: Iterable[Attempt]) -> None:
    """Remove earlier editions that nobody reads and that have no copies left, and folders that became empty."""
    for found in contents.editions:
        if not found.is_newest and not found.is_open:
            remove_edition(remover, found.edition)
    names = [copy.record.name for copy, _ in tried if copy.directory == contents.directory]
    remove_empty_folders(contents.directory, names)
