"""Where the fetcher of this user and this installation is found, and who may talk to whom."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import sys
from pathlib import Path

from penstock._version import __version__
from penstock.errors import ConfigError, FetcherError
from penstock.wire.frames import PROTOCOL

READY = b"ready"  # what a fetcher says when it listens
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 104 or 108 bytes


class FetcherAddress:
    """The files by which clients find their fetcher.

    Their name depends on protocol, version and installation, so that different ones never meet.
    """

    def __init__(self, folder: Path) -> None:
        install = f"{PROTOCOL} {__version__} {sys.prefix} {package_root()}"
        name = hashlib.sha256(install.encode()).hexdigest()[:12]
        self.folder = folder
        self.socket = folder / f"{name}.sock"
        self.lock = folder / f"{name}.lock"
        self.log = folder / f"{name}.log"


def package_root() -> Path:
    """Give the folder to import this very penstock from."""
    return Path(__file__).resolve().parents[2]


def fetcher_address() -> FetcherAddress:
    """Give where this process finds its fetcher: files in a folder that nobody else can enter."""
    found = FetcherAddress(runtime_folder())
    if len(os.fsencode(found.socket)) > _LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"the path {found.socket} is too long for a socket: set PENSTOCK_RUNTIME_DIR to a shorter folder"
        )
    try:
        found.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = found.folder.lstat()
    except OSError as error:
        raise FetcherError(f"{found.folder} cannot be used for the fetcher's socket: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise FetcherError(
            f"{found.folder} is a link, no folder, or belongs to somebody else: remove it, or set PENSTOCK_RUNTIME_DIR"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        found.folder.chmod(0o700)
    return found


def runtime_folder() -> Path:
    """Give the folder of the socket, as the environment says."""
    ours = os.environ.get("PENSTOCK_RUNTIME_DIR")
    if ours:
        return Path(ours).expanduser().absolute()  # the fetcher stands elsewhere
    user = os.environ.get("XDG_RUNTIME_DIR")
    if user and Path(user).is_dir():
        return Path(user) / "penstock"
    return Path(f"/tmp/penstock-{os.getuid()}")  # noqa: S108  its owner is checked, and links are refused


def peer_user(connection: socket.socket) -> int:
    """Give the user id of the process at the other end of a local socket, as the kernel knows it."""
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        user: int = struct.unpack("3i", credentials)[1]
        return user
    version_and_user = connection.getsockopt(0, 1, struct.calcsize("II"))  # LOCAL_PEERCRED of macOS: struct xucred
    return int(struct.unpack("II", version_and_user)[1])


def check_peer(connection: socket.socket) -> None:
    """Refuse to talk to another user's process."""
    if peer_user(connection) != os.getuid():
        raise FetcherError("the process at the other end of the fetcher's socket belongs to another user")
