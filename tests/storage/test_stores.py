"""Stores: the contract over each of them, URLs, and trying again."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    UnknownSchemeError,
)
from penstock.storage.base import Store, open_store, redacted, resolve_store, shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore
from penstock.testing.stores import LargeObjectContract, StoreContract
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class TestMemoryStore(StoreContract):
    def make_store(self, folder: Path) -> Store:
        return open_store(f"memory://{'/'.join(folder.parts[1:])}")


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("s3://bucket/x", "s3"),
        ("S3://bucket/x", "s3"),
        ("dbfs:/Volumes/x", "dbfs"),
        ("azure-dl://x", "azure-dl"),
        ("/plain/path", None),
        ("plain:path", None),
        ("C:/windows", None),
        ("", None),
    ],
)
def test_schemes(url: str, scheme: str | None) -> None:
    assert url_scheme(url) == scheme


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:hunter2@host:1/x?sig=hunter3#f", "https://host:1/x"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("oci://bucket@namespace/x", "oci://bucket@namespace/x"),
        ("/plain/path?x", "/plain/path?x"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(
        UnknownSchemeError, match=r"^Invalid Cloud provider prefix: gopher\. Use .*file, .*s3, .*or a plain path"
    ):
        open_store("gopher://hole")


def test_urls_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="names another machine"):
        open_store("file://server/share")
    with pytest.raises(ConfigError, match="has no name"):
        open_store("memory://")


def test_local_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert open_store("~/x") == LocalStore(Path("/home/somebody/x"))
    assert open_store("file:///a%20b") == open_store("file://localhost/a b") == LocalStore(Path("/a b"))
    assert open_store("memory://a/b/") == MemoryStore("a/b")


def test_an_upload_shows_no_half_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    with pytest.raises(ObjectNotFoundError):
        store.upload(tmp_path / "missing", "x")
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    (tmp_path / "store" / ".x.0.part").parent.mkdir(exist_ok=True)
    (tmp_path / "store" / ".x.0.part").write_bytes(b"of somebody who was killed")
    assert list(store.list()) == []


@contextmanager
def as_nobody() -> Iterator[None]:
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
    with as_nobody(), pytest.raises(AccessDeniedError, match="no permission"):
        LocalStore(tmp_path).read("x")


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2)])
def test_spans_that_cannot_be(begin: int, end: int) -> None:
    with pytest.raises(ConfigError, match="not a valid range of bytes"):
        Span(begin, end)


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


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pass/word@host/x", "https://…"),  # half a password where the port belongs
        ("https://me:pa#ss@host/x", "https://…"),
        ("https://[half", "https://…"),
        ("az://me:hunter2@container/x", "az://container/x"),
        ("S3://key:hunter2@bucket/x", "s3://bucket/x"),
        ("https://host/\x1b[2J", "https://host/\\x1b[2J"),
        ("/a\x07b", "/a\\x07b"),
    ],
)
def test_what_is_no_proper_url_is_shown_without_secrets_too(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_messages_of_others_lose_their_secrets() -> None:
    text = "GET https://me:hunter2@host/x?sig=hunter3, (then s3://k:hunter4@bucket/y) failed, ask a@b.c"
    assert redacted(text) == "GET https://host/x?…, (then s3://bucket/y) failed, ask a@b.c"


@pytest.mark.parametrize("url", ["https://me:hun/ter2@host/x", "sftp://me:hun/ter2@host/x", "https://host:hun/x"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^\w+://… is not a valid URL") as caught:
        resolve_store(url, environ={})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("url", ["s3://key:hunter2@bucket/x", "gs://key:hunter2@bucket/x"])
def test_credentials_in_the_url_of_a_bucket(url: str) -> None:
    with pytest.raises(ConfigError, match="must not contain credentials: pass them as storage_options") as caught:
        open_store(resolve_store(url, environ={})).stat("x")
    assert "hunter2" not in str(caught.value)
