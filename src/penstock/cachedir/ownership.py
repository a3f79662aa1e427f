"""Whose folder is it? What others could put there is refused, or said aloud."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cachedir.layout import control_folder
from penstock.errors import CacheError
from penstock.files import make_folders, translated

if TYPE_CHECKING:
    from pathlib import Path

_TRIES = 5


def prepare_folder(directory: Path, *, is_private: bool) -> list[str]:
    """Make a cache directory ready for use, and give warnings to show about it.

    Below the user's own cache nobody else may look. A folder that the user names is left as it is, but what is ours in
    it must be ours: a link or a folder of somebody else there could make us write or delete anywhere.
    """
    with translated(directory):
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):  # it was empty, and somebody cleared the cache at this moment
                return _prepare(directory, is_private=is_private)
        return _prepare(directory, is_private=is_private)


def _prepare(directory: Path, *, is_private: bool) -> list[str]:
    make_folders(directory, 0o700 if is_private else 0o777)
    warnings = describe_risks(directory, directory.stat(), os.getuid())
    control = control_folder(directory)
    with suppress(FileExistsError):
        control.mkdir(mode=0o700)
    check_control(directory)
    if stat.S_IMODE(control.lstat().st_mode) & 0o077:
        control.chmod(0o700)
    return warnings


def check_control(directory: Path) -> None:
    """Raise if what lies under the name of our own folder in a cache directory is not a folder of this user."""
    if not has_own_control(directory):
        control = control_folder(directory)
        raise CacheError(
            f"{control} is a link, is no folder, or belongs to somebody else: remove it, or choose another `local`",
            path=str(control),
        )


def has_own_control(directory: Path) -> bool:
    """Tell whether a folder is a cache directory of this user; raises FileNotFoundError if it is none of anybody."""
    status = control_folder(directory).lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def describe_risks(directory: Path, status: os.stat_result, user: int) -> list[str]:
    """Say who else could change what lies in a folder."""
    if status.st_uid not in (0, user):
        return [
            f"{directory} belongs to another user (id {status.st_uid}), who can change what is read from it: use a"
            " folder of your own as `local`, or set validate_hash"
        ]
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return [
            f"everybody on this machine can change what lies in {directory}: take the right to write away from others"
            " (chmod o-w), or set validate_hash"
        ]
    return []
