"""Where the fetcher of this user and this installation is found, and who may talk to whom."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import sys
from pathlib import Path

from penstock._version import __version__
from penstock.errors import ConfigError, FetcherError
from penstock.runtime import make_runtime_folder, runtime_folder
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
    """Return the folder to import this very penstock from."""
    return Path(__file__).resolve().parents[2]


def fetcher_address() -> FetcherAddress:
    """Return where this process finds its fetcher: files in a folder that no other user can enter."""
    found = FetcherAddress(runtime_folder())
    if len(os.fsencode(found.socket)) > _LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"the path {found.socket} is too long for a socket: set PENSTOCK_RUNTIME_DIR to a folder with a"
            " shorter path"
        )
    make_runtime_folder()
    return found


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a local socket, as the kernel knows it."""
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        user: int = struct.unpack("3i", credentials)[1]
        return user
    version_and_user = connection.getsockopt(0, 1, struct.calcsize("II"))  # LOCAL_PEERCRED of macOS: struct xucred
    return int(struct.unpack("II", version_and_user)[1])


def check_peer(connection: socket.socket) -> None:
    """Refuse to talk to another user's process."""
    if peer_user(connection) != os.getuid():
        raise FetcherError("the process that listens on the socket of the fetcher belongs to another user")
