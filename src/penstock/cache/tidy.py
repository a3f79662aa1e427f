"""What is left when copies are gone: editions, empty folders and, at last, our own folder in a cache directory."""

from __future__ import annotations

import secrets
import shutil
from contextlib import ExitStack, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from penstock.cache.directories import is_below_own_cache
from penstock.cache.removing import PATIENCE_S
from penstock.cachedir.editions import editions_in
from penstock.cachedir.layout import NUM_STRIPES, PART_SUFFIX, apart_name, control_folder, pin_path
from penstock.cachedir.presence import are_unchanged
from penstock.errors import BadIndexError
from penstock.index.paths import resolve_inside

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.cache.removing import Remover
    from penstock.cachedir.editions import Edition
    from penstock.cachedir.lock import Stripes


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
