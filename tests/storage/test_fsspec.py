"""Protocols that only fsspec knows: the contract on file systems of its own, and what they may raise."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    MissingExtraError,
    ObjectChangedError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
    UnknownSchemeError,
)
from penstock.storage.base import open_store, resolve_store
from penstock.storage.fsspec import FsspecStore, describe
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.testing.stores import StoreContract
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.storage.base import Store

QUICK = RetryPolicy(attempts=4, base_s=0.001, stall_s=60, patience_s=0.05)


class Attic(LocalFileSystem):  # type: ignore[misc]
    """Files of this machine under a name that penstock does not know, failing on demand."""

    protocol = "attic"
    failures: ClassVar[list[Exception]] = []
    before_reading: ClassVar[list[Callable[[], object]]] = []

    def __init__(self, secret: str = "", **more: Any) -> None:
        super().__init__(**more)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("attic://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        if self.before_reading:
            self.before_reading.pop()()
        return super().cat_file(path, start, end, **more)


class Thoughts(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory: no renaming, as in object stores."""

    protocol = "thoughts"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("thoughts://"))


fsspec.register_implementation("attic", Attic)
fsspec.register_implementation("thoughts", Thoughts)


def store_of(url: str, *, hooks: RetryHooks | None = None, **options: object) -> FsspecStore:
    store = open_store(resolve_store(url, options, environ={}), retry=QUICK, hooks=hooks)
    assert isinstance(store, FsspecStore)
    return store


class TestAttic(StoreContract):
    def make_store(self, folder: Path) -> Store:
        return store_of(f"attic://{folder}")


class TestThoughts(StoreContract):
    def make_store(self, folder: Path) -> Store:
        return store_of(f"thoughts://{folder.parent.name}/deep")


def test_failures_that_pass(tmp_path: Path) -> None:
    data = random.Random(8).randbytes(100_000)
    (tmp_path / "x").write_bytes(data)
    lost: list[StoreError] = []
    store = store_of(f"attic://{tmp_path}", hooks=RetryHooks(on_retry=lost.append))
    Attic.failures[:] = [ConnectionResetError("reset"), TimeoutError(), EOFError()]
    assert store.read("x") == data
    assert [type(error) for error in lost] == [StoreError, StoreTimeoutError, StoreError]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (PermissionError("no"), AccessDeniedError),
        (NotImplementedError(), RequestRefusedError),
        (ImportError("install it"), MissingExtraError),
    ],
)
def test_failures_that_stay(tmp_path: Path, failure: Exception, expected: type[Exception]) -> None:
    (tmp_path / "x").write_bytes(b"1")
    Attic.failures[:] = [failure, ConnectionResetError("another attempt")]
    with pytest.raises(expected):
        store_of(f"attic://{tmp_path}").read("x")
    assert len(Attic.failures) == 1
    Attic.failures.clear()


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    store = store_of(f"attic://{tmp_path}")
    tag = store.stat("x").etag
    Attic.before_reading[:] = [lambda: (tmp_path / "x").write_bytes(b"newer")]
    with pytest.raises(ObjectChangedError):
        store.read_piece("x", Span(0, 3), tag)
    Attic.before_reading[:] = [lambda: (tmp_path / "x").write_bytes(b"newest")]
    assert store.read("x") == b"newest"


def test_options_go_to_the_file_system(tmp_path: Path) -> None:
    store = store_of(f"attic://{tmp_path}", secret="hush")
    assert "hush" not in repr(store)
    assert list(store.list()) == []
    assert store_of(f"attic://{tmp_path}", attic={"secret": "hush"}).options == {"secret": "hush"}
    with pytest.raises(ConfigError, match="must be plain values"):
        store_of(f"attic://{tmp_path}", secret=object())


def test_a_protocol_whose_package_is_missing() -> None:
    fsspec.register_implementation("absent", "no_such_package.Nothing", errtxt="pip install no_such_package")
    with pytest.raises(MissingExtraError, match="pip install no_such_package"):
        store_of("absent://x").read("y")


def test_an_unknown_protocol() -> None:
    with pytest.raises(UnknownSchemeError, match="install fsspec"):
        store_of("gopher://hole")


@pytest.mark.parametrize(
    ("told", "modified_ns"),
    [
        ({"mtime": 1_700_000_000.75}, 1_700_000_000 * 10**9),
        ({"LastModified": datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)}, 1_700_000_000 * 10**9),
        ({"updated": "2023-11-14T22:13:20.500Z"}, 1_700_000_000 * 10**9),
        ({"modified": "last Tuesday"}, None),
        ({}, None),
    ],
)
def test_times_as_file_systems_tell_them(told: dict[str, Any], modified_ns: int | None) -> None:
    assert describe("x", {"size": 1, **told}).modified_ns == modified_ns
