"""Names on disk and words on the wire."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cache.progress import describe
from penstock.cachedir.items import item_of_object, item_of_shard
from penstock.cachedir.layout import (
    NUM_STRIPES,
    default_directory,
    new_part_path,
    stripe_of,
    stripe_of_part,
    user_cache_dir,
)
from penstock.errors import CacheError, CacheTooSmallError, CorruptShardError, FetcherError, ObjectNotFoundError
from penstock.runtime import runtime_folder
from penstock.wire.encoding import load
from penstock.wire.frames import (
    PREFIX_BYTES,
    dump_error,
    load_error,
    pack_message,
    unpack_header,
    unpack_prefix,
)
from penstock.wire.item import Item
from penstock.wire.messages import Progress
from tests.cache.kit import HASH, write_dataset


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_the_default_directory_is_stable_and_readable() -> None:
    path = default_directory("s3://bucket/some/data", "train")
    assert path == default_directory("s3://bucket/some/data/", "train")
    assert path.parent == Path.home() / ".cache" / "penstock"
    assert path.name.startswith("s3-bucket-some-data-train-")
    others = {default_directory(url, split) for url in ("s3://bucket/some", "gs://bucket/some/data") for split in "ab"}
    assert len({path, *others}) == 5


def test_the_default_directory_carries_no_secret() -> None:
    path = default_directory("https://me:hush@host/data?sig=hush", None)
    assert "hush" not in path.name
    assert path == default_directory("https://host/data?sig=other", None)


def test_the_environment_says_where_caches_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache_dir() == tmp_path / "xdg" / "penstock"
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "ours"))
    assert user_cache_dir() == tmp_path / "ours"


def test_temporary_files_name_their_stripe(tmp_path: Path) -> None:
    for name in ("a", "shard.00001.mds", "é/ü"):
        stripe = stripe_of(name)
        assert 0 <= stripe < NUM_STRIPES
        path = new_part_path(tmp_path, stripe)
        assert stripe_of_part(path) == stripe
        assert stripe_of_part(path.with_name(f".{path.name}.abcd.part")) == stripe
    assert stripe_of_part(tmp_path / "strange.part") is None


def test_items_travel_as_json(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    for item in (item_of_shard(data.infos[0], 0, "e", HASH), item_of_object("key", "name", refresh=True)):
        sent = pack_message({"item": item})
        assert load(Item, unpack_header(sent[PREFIX_BYTES:])["item"]) == item


def test_messages() -> None:
    data = pack_message({"op": "x", "text": "é"}, 10)
    num_header, num_payload = unpack_prefix(data)
    assert num_payload == 10
    assert unpack_header(data[PREFIX_BYTES : PREFIX_BYTES + num_header]) == {"op": "x", "text": "é"}


@pytest.mark.parametrize("data", [b"\xff" * PREFIX_BYTES, b"GET / HTTP/1.1"])
def test_strange_sizes_are_refused_before_anything_is_allocated(data: bytes) -> None:
    with pytest.raises(FetcherError):
        unpack_prefix(data)


@pytest.mark.parametrize("data", [b"[1]", b"{", b"\xff"])
def test_strange_headers_are_refused(data: bytes) -> None:
    with pytest.raises(FetcherError):
        unpack_header(data)


def test_errors_keep_their_class_facts_and_cause() -> None:
    error = CacheTooSmallError("no such thing", key="k", num_bytes=3)
    error.__cause__ = OSError("the reason")
    copy = load_error(dump_error(error))
    assert type(copy) is CacheTooSmallError
    assert copy.facts == {"key": "k", "num_bytes": 3}
    assert str(copy) == "no such thing (cause: OSError: the reason)"
    missing = ObjectNotFoundError("no such thing")
    missing.__cause__ = OSError("404, over many lines")
    assert str(load_error(dump_error(missing))) == "no such thing"  # a client's words would add nothing
    assert isinstance(load_error(dump_error(CorruptShardError("x"))), ValueError)
    assert type(load_error(dump_error(KeyError("odd")))) is CacheError
    assert type(load_error({"class": "SystemExit", "message": "no"})) is CacheError


def test_progress_in_words() -> None:
    report = Progress(
        name="shard.00012.mds",
        num_bytes=1 << 20,
        total_bytes=4 << 20,
        bytes_per_s=41 << 20,
        position=3,
        num_wanted=9,
    )
    assert describe(replace(report, state="running")) == (
        "downloading shard.00012.mds (1 MB of 4 MB; 9 files queued), 41 MB/s"
    )
    assert "after 3 others" in describe(replace(report, state="queued"))
    assert "room" in describe(replace(report, state="waiting_for_space"))


def test_relative_folders_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fetcher stands elsewhere than whoever started it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", "cache")
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", "run")
    assert user_cache_dir() == tmp_path / "cache"
    assert runtime_folder() == tmp_path / "run"
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", "~/cache")
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", "~/run")
    assert (user_cache_dir(), runtime_folder()) == (Path.home() / "cache", Path.home() / "run")


def test_two_containers_of_one_account_have_a_folder_each() -> None:
    urls = [f"abfss://{name}@account.dfs.core.windows.net/data" for name in ("one", "two")]
    assert default_directory(urls[0], None) != default_directory(urls[1], None)
