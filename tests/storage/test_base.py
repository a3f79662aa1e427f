"""URLs: which store each of them names, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import (
    ConfigError,
    UnknownSchemeError,
)
from penstock.storage.base import open_store, redacted, resolve_store, shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore


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
    monkeypatch.setenv("HOME", "/home/user")
    assert open_store("~/x") == LocalStore(Path("/home/user/x"))
    assert open_store("file:///a%20b") == open_store("file://localhost/a b") == LocalStore(Path("/a b"))
    assert open_store("memory://a/b/") == MemoryStore("a/b")


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
