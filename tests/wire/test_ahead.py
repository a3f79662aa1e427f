"""Indexes that a fetcher reads while it starts: what it is told of, who gets what has come, and what is asked again."""

from __future__ import annotations

import json
import os
import select
import time
from typing import TYPE_CHECKING

import pytest

from penstock.cachedir.items import resolved
from penstock.errors import ObjectNotFoundError
from penstock.storage.base import StoreSettings
from penstock.wire.ahead import NOTHING, IndexesAhead, open_ahead, pack_ahead
from penstock.wire.settings import CachedStream, FilesRequest
from tests.servers.faults import FaultProxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.nginx import WebServer


def stream(url: str, folder: Path, *, files: FilesRequest | None = None, **options: str) -> CachedStream:
    return resolved(CachedStream(directory=folder, store=StoreSettings(url, options), files=files))


def test_only_stores_that_are_far_and_may_have_an_index_are_named(tmp_path: Path) -> None:
    streams = [
        stream("s3://bucket/a", tmp_path / "a", key="secret"),
        stream(str(tmp_path), tmp_path / "b"),
        stream("memory://c", tmp_path / "c"),
        stream("gs://bucket/d", tmp_path / "d", files=FilesRequest(patterns=("*.jsonl",))),
        stream("gs://bucket/e", tmp_path / "e", files=FilesRequest(patterns=("",), may_have_index=True)),
    ]
    key, asked = json.loads(pack_ahead("index.json", streams))
    assert key == "index.json"
    assert [(url, options) for url, options, *_ in asked] == [
        ("s3://bucket/a", {"key": "secret"}),
        ("gs://bucket/e", {}),
    ]
    assert pack_ahead("index.json", streams[1:4]) == NOTHING


@pytest.mark.parametrize("length", [1, 500, 100_000])
def test_what_is_named_never_waits_for_a_reader(tmp_path: Path, length: int) -> None:
    packed = pack_ahead("index.json", [stream("s3://b/a", tmp_path, key="k" * length) for _ in range(20)])
    assert len(packed) <= select.PIPE_BUF
    reading = open_ahead(packed)
    try:
        assert os.read(reading, 1 << 16) == packed
        assert os.read(reading, 1) == b""
    finally:
        os.close(reading)


def read_ahead(url: str, folder: Path) -> IndexesAhead:
    return IndexesAhead(pack_ahead("index.json", [stream(url, folder)]))


def test_what_has_come_is_for_the_first_who_asks(nginx: WebServer, tmp_path: Path) -> None:
    (nginx.files / "ahead").mkdir()
    (nginx.files / "ahead" / "index.json").write_text("some text")
    with FaultProxy(nginx.url) as proxy:
        place = StoreSettings(f"{proxy.url}/ahead")
        ahead = read_ahead(place.url, tmp_path)
        assert ahead.take(StoreSettings(f"{proxy.url}/other"), "index.json") is None
        assert ahead.take(place, "other.json") is None
        found = ahead.take(place, "index.json")
        assert found is not None
        data, info = found
        assert bytes(data) == b"some text"
        assert info.num_bytes == 9
        assert ahead.take(place, "index.json") is None


def test_no_reader_gets_what_is_old_or_failed(
    nginx: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nginx.files / "old").mkdir()
    (nginx.files / "old" / "index.json").write_text("some text")
    ahead = read_ahead(f"{nginx.url}/old", tmp_path)
    monkeypatch.setattr("penstock.wire.ahead._FRESH_S", 0.0)
    time.sleep(0.5)  # then it is there, and was asked for before
    ahead.note_listening()
    assert ahead.take(StoreSettings(f"{nginx.url}/old"), "index.json") is None
    monkeypatch.undo()
    nowhere = json.dumps(["index.json", [["nowhere://x", {}, 2, 60.0]]]).encode()
    assert IndexesAhead(nowhere).take(StoreSettings("nowhere://x"), "index.json") is None


def test_the_start_of_the_fetcher_makes_nothing_old(
    nginx: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nginx.files / "slow-start").mkdir()
    (nginx.files / "slow-start" / "index.json").write_text("some text")
    ahead = read_ahead(f"{nginx.url}/slow-start", tmp_path)
    monkeypatch.setattr("penstock.wire.ahead._FRESH_S", 0.0)
    time.sleep(0.5)
    assert ahead.take(StoreSettings(f"{nginx.url}/slow-start"), "index.json") is not None


def test_what_is_missing_is_asked_for_once(nginx: WebServer, tmp_path: Path) -> None:
    with FaultProxy(nginx.url) as proxy:
        ahead = read_ahead(f"{proxy.url}/none", tmp_path)
        with pytest.raises(ObjectNotFoundError):
            ahead.take(StoreSettings(f"{proxy.url}/none"), "index.json")
        assert proxy.counts["requests"] == 1
