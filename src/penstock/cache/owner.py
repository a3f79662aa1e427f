"""Whose folder is it? What others could put there is refused, or said aloud."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cache.layout import control_folder
from penstock.errors import CacheError
from penstock.files import make_folders, translated

if TYPE_CHECKING:
    from pathlib import Path


def prepare_folder(directory: Path, *, is_private: bool) -> list[str]:
    """Make a cache directory ready for use, and give warnings to show about it.

    Below the user's own cache nobody else may look. A folder that the user names is left as it is, but what is ours in
    it must be ours: a link or a folder of somebody else there could make us write or delete anywhere.
    """
    with translated(directory):
        make_folders(directory, 0o700 if is_private else 0o777)
        warnings = describe_risks(directory, directory.stat(), os.getuid())
        control = control_folder(directory)
        with suppress(FileExistsError):
            control.mkdir(mode=0o700)
        status = control.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise CacheError(
                f"{control} is a link, is no folder, or belongs to somebody else: remove it, or choose another `local`",
                path=str(control),
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            control.chmod(0o700)
    return warnings


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
