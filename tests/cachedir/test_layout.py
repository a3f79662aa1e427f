"""Names on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cachedir.layout import (
    NUM_STRIPES,
    default_directory,
    new_part_path,
    stripe_of,
    stripe_of_part,
    user_cache_dir,
)
from penstock.runtime import runtime_folder


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


def test_relative_folders_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fetcher stands elsewhere than the process that started it."""
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
