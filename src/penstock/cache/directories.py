"""Which cache directories there are: those below the user's own cache, or below folders that the user names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.layout import control_folder, place_of, user_cache_dir
from penstock.cachedir.owner import check_control, has_own_control
from penstock.errors import ObjectNotFoundError
from penstock.files import translated
from penstock.storage.base import url_scheme
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def find_directories(folders: Sequence[str | os.PathLike[str]] | None = None) -> list[Path]:
    """Find the cache directories of this user, in the folders named or, if none is, in the user's own cache.

    A split lies in a folder of its own, so folders below are looked at too, but no link is followed.
    """
    if folders is None:
        return sorted(_below(own_root()))
    found: set[Path] = set()
    for folder in folders:
        root = Path(os.path.realpath(Path(folder).expanduser()))
        with translated(root):
            if not root.is_dir():
                raise ObjectNotFoundError(f"{root} is no folder: name one that was a `local`", path=str(root))
            if os.path.lexists(control_folder(root)):
                check_control(root)
            found |= set(_below(root))
    return sorted(found)


def own_root() -> Path:
    """Give the user's own cache as the fetcher writes it, without links."""
    return Path(os.path.realpath(user_cache_dir()))


def is_below_own_cache(directory: Path) -> bool:
    """Tell whether a directory was made by us, below the user's own cache: then it goes when it is empty."""
    return directory != own_root() and directory.is_relative_to(own_root())


def is_at(source: str, url: str) -> bool:
    """Tell whether a dataset comes from a URL or path, or from below it, as its splits do."""
    source, place = _as_path(source), _as_path(place_of(url))
    if source == place or source.startswith(place.rstrip("/") + "/"):
        return True
    is_elsewhere = url_scheme(place) is not None and source.startswith(f"{place} at ")  # another endpoint
    return is_elsewhere or source == url


def _below(root: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(root):
        directory = Path(folder)
        if control_folder(directory).name in names:
            try:
                if has_own_control(directory):
                    yield directory
            except FileNotFoundError:
                continue  # it was cleared at this moment
        names[:] = [name for name in names if not name.startswith(".")]


def _as_path(place: str) -> str:
    """Give a folder of this machine in one spelling."""
    return str(LocalStore.from_url(place).root) if url_scheme(place) == "file" else place
