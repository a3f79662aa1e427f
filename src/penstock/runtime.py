"""The runtime folder: what processes of one user on one machine find each other by, and share while they live."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from penstock.errors import FetcherError


def runtime_folder() -> Path:
    """Return the folder, as the environment says."""
    ours = os.environ.get("PENSTOCK_RUNTIME_DIR")
    if ours:
        return Path(ours).expanduser().absolute()  # the fetcher stands elsewhere
    user = os.environ.get("XDG_RUNTIME_DIR")
    if user and Path(user).is_dir():
        return Path(user) / "penstock"
    return Path(f"/tmp/penstock-{os.getuid()}")  # noqa: S108  its owner is checked, and links are refused


def make_runtime_folder() -> Path:
    """Return the folder, which is there now and which no other user can enter."""
    folder = runtime_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise FetcherError(f"cannot use {folder} as the runtime folder: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise FetcherError(
            f"{folder} is a link, is not a folder, or belongs to another user: remove it, or set"
            " PENSTOCK_RUNTIME_DIR to another folder"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder
