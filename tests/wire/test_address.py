"""Where the fetcher is found, and who may talk to whom."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigError, FetcherError
from penstock.wire import address
from penstock.wire.address import FetcherAddress, check_peer, fetcher_address, package_root, peer_user

if TYPE_CHECKING:
    from pathlib import Path


def test_files_of_one_fetcher_lie_in_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(address, "_LONGEST_SOCKET_PATH", 4096)
    found = fetcher_address()
    assert {found.socket.parent, found.lock.parent, found.log.parent} == {tmp_path / "run"}
    assert {found.socket.stem, found.lock.stem, found.log.stem} == {FetcherAddress(tmp_path).socket.stem}
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert (package_root() / "penstock" / "__init__.py").exists()


def test_another_version_has_another_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = FetcherAddress(tmp_path).socket
    monkeypatch.setattr(address, "__version__", "0.0.0")
    assert FetcherAddress(tmp_path).socket != before


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", str(tmp_path / ("x" * 120)))
    with pytest.raises(ConfigError, match="too long for a socket: set PENSTOCK_RUNTIME_DIR"):
        fetcher_address()


def test_only_processes_of_this_user_are_talked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_user(one) == os.getuid()
        check_peer(one)
        monkeypatch.setattr(address, "peer_user", lambda _: os.getuid() + 1)
        with pytest.raises(FetcherError, match="belongs to another user"):
            check_peer(one)
