"""A folder of this machine as a store: the contract, permissions, and tags of files."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
)
from penstock.storage.base import Store, open_store
from penstock.storage.local import LocalStore
from penstock.testing.stores import LargeObjectContract, StoreContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestLocalStore(StoreContract, LargeObjectContract):
    def make_store(self, folder: Path) -> Store:
        return open_store(str(folder))

    def put_sparse(self, store: Store, folder: Path, key: str, num_bytes: int) -> Path:
        path = folder / "store" / key
        path.parent.mkdir()
        path.touch()
        os.truncate(path, num_bytes)
        return path


class TestFileUrl(StoreContract):
    def make_store(self, folder: Path) -> Store:
        return open_store(f"file://{folder}")


def test_an_upload_shows_no_half_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    with pytest.raises(ObjectNotFoundError):
        store.upload(tmp_path / "missing", "x")
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    (tmp_path / "store" / ".x.0.part").parent.mkdir(exist_ok=True)
    (tmp_path / "store" / ".x.0.part").write_bytes(b"of a killed process")
    assert list(store.list()) == []


@contextmanager
def as_other_user() -> Iterator[None]:
    """Act as a user who is not allowed everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "x").chmod(0)
    with as_other_user(), pytest.raises(AccessDeniedError, match="no permission"):
        LocalStore(tmp_path).read("x")


def test_a_file_put_in_anothers_place_has_another_tag(tmp_path: Path) -> None:
    """Also with the same size and time, as `rsync -t` and `tar` leave it."""
    store = LocalStore(tmp_path)
    (tmp_path / "x").write_bytes(b"old")
    before = store.stat("x")
    (tmp_path / "y").write_bytes(b"new")
    os.utime(tmp_path / "y", ns=(before.modified_ns or 0, before.modified_ns or 0))
    (tmp_path / "y").replace(tmp_path / "x")
    after = store.stat("x")
    assert after.modified_ns == before.modified_ns
    assert after.etag != before.etag
