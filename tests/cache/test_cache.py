"""Leases, objects and ranges through the node's fetcher, from a folder that stands for a store."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from penstock.cache.cache import Cache, CachedStream
from penstock.errors import (
    BadIndexError,
    CacheTooSmallError,
    ConfigError,
    CorruptShardError,
    ObjectChangedError,
    ObjectNotFoundError,
)
from penstock.index.model import FileInfo, Index, IndexedShard, Part
from penstock.index.mosaic_json import dump_index
from penstock.storage.base import StoreSettings, open_store, resolve_store
from penstock.types import Span
from tests.cache.kit import HASH, check_shard, content, fetcher_pids, wait_until, write_dataset, write_index

SHAPES = [(1, None), (1, "zstd"), (2, None), (2, "gz")]


@pytest.mark.parametrize(("num_parts", "compression"), SHAPES)
def test_shards_come_whole_and_stay(tmp_path: Path, num_parts: int, compression: str | None) -> None:
    data = write_dataset(tmp_path, num_parts=num_parts, compression=compression)
    with data.cache(validate_hash=HASH) as cache:
        for shard in data.shards:
            assert not cache.is_present(0, shard)
            check_shard(cache, shard)
            assert cache.is_present(0, shard)
        for shard in data.shards:
            check_shard(cache, shard)
        stats = cache.stats().total
        assert (stats.leases, stats.hits, stats.waits, stats.downloads) == (12, 6, 6, 7)  # the index, too
        stored = sum(part.stored.num_bytes for shard in data.infos for part in shard.parts)
        assert stats.num_bytes == stored + (data.remote / "index.json").stat().st_size
    names = {part.raw.basename for shard in data.infos for part in shard.parts}
    assert data.cached_names() == names  # nothing compressed is kept
    assert not data.parts_left()


def test_compressed_files_are_kept_if_asked(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    with data.cache(keep_zip=True) as cache:
        check_shard(cache, data.shards[0])
        assert data.cached_names() == {
            "shard.00000.data",
            "shard.00000.meta",
            "shard.00000.data.zstd",
            "shard.00000.meta.zstd",
        }
        (data.local / "shard.00000.data").unlink()
        for path in data.remote.iterdir():
            path.unlink()
        check_shard(cache, data.shards[0])  # only unpacked: the store has nothing left


def test_a_big_object_comes_in_pieces(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=2, num_bytes=20_000_001)
    with data.cache(validate_hash=HASH) as cache:
        for shard in data.shards:
            check_shard(cache, shard)


def test_empty_files(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    (data.remote / "nothing").touch()
    with data.cache() as cache:
        assert cache.fetch_object(0, "nothing").read_bytes() == b""
        assert cache.read_many(0, [("nothing", None)])[0] == b""


def test_names_in_folders(tmp_path: Path) -> None:
    (tmp_path / "remote/a/b").mkdir(parents=True)
    (tmp_path / "remote/a/b/x").write_bytes(content("x", 1000))
    data = write_dataset(tmp_path / "other", num_shards=1)
    shard = IndexedShard(data.infos[0].layout, 1, (Part(FileInfo("a/b/x", 1000)),))
    (tmp_path / "remote/index.json").write_bytes(dump_index(Index((shard,))))
    stream = CachedStream(directory=tmp_path / "local", store=resolve_store((tmp_path / "remote").as_uri()))
    with Cache([stream]) as cache:
        check_shard(cache, 0)
        assert (tmp_path / "local/a/b/x").exists()


def test_a_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    (tmp_path / "outside").mkdir()
    data.local.mkdir()
    (data.local / "link").symlink_to(tmp_path / "outside")
    for name in ("../x", "/etc/x", "link/x"):
        shard = IndexedShard(data.infos[0].layout, 1, (Part(FileInfo(name, 12)),))
        (data.remote / "index.json").write_bytes(dump_index(Index((shard,))))
        with data.cache() as cache:
            with pytest.raises((BadIndexError, ConfigError)):
                cache.lease(0, 0)
    write_index(data)
    with data.cache() as cache:
        for name in ("../x", "/etc/x", "link/x", ".git/hooks/x", "index.json"):
            with pytest.raises((BadIndexError, ConfigError)):
                cache.fetch_object(0, "shard.00000.data", name)
    assert not list((tmp_path / "outside").iterdir())


def test_a_file_of_the_wrong_size_is_not_used_and_stays(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_parts=2)
    data.local.mkdir()
    (data.local / "shard.00000.data").write_bytes(b"short")
    (data.local / "shard.00001.data").write_bytes(content("shard.00001.data", 100_000))  # its other part is missing
    for _ in range(2):
        with data.cache() as cache:
            for shard in data.shards:
                check_shard(cache, shard)
    assert (data.local / "shard.00000.data").read_bytes() == b"short"


def test_what_others_put_there_is_used_if_its_digest_fits(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    data.local.mkdir()
    for info in data.infos:
        (data.local / info.name).write_bytes(content(info.name, 100_000))
    (data.local / data.infos[3].name).write_bytes(bytes(100_000))
    with data.cache() as cache:
        for shard in data.shards:
            check_shard(cache, shard)
        assert cache.stats().total.downloads == 2  # the index and the shard


def test_expected_shards_come_by_themselves(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=20)
    with data.cache() as cache:
        cache.expect([(0, shard, number) for number, shard in enumerate(data.shards)])
        wait_until(lambda: all(cache.is_present(0, shard) for shard in data.shards))
        for shard in data.shards:
            check_shard(cache, shard)
        assert cache.stats().total.hits == 20


def test_warming(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=20)
    with data.cache(limit_bytes=1_000_000) as cache:
        with pytest.raises(CacheTooSmallError, match="20 shards"):
            cache.warm(0, data.shards)
        cache.warm(0, data.shards[:10])
        assert len(data.cached_names()) == 10


# --- Objects and ranges -------------------------------------------------------------------------------------


def test_objects(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    (data.remote / "clips").mkdir()
    (data.remote / "clips/a.mp4").write_bytes(b"first")
    with data.cache() as cache:
        path = cache.fetch_object(0, "clips/a.mp4", "videos/a.mp4")
        assert path == data.local / "videos/a.mp4"
        assert path.read_bytes() == b"first"
        (data.remote / "clips/a.mp4").write_bytes(b"second")
        assert cache.fetch_object(0, "clips/a.mp4", "videos/a.mp4").read_bytes() == b"first"
        assert cache.fetch_object(0, "clips/a.mp4", "videos/a.mp4", refresh=True).read_bytes() == b"second"
        assert cache.fetch_object(0, "clips/a.mp4", "videos/a.mp4", num_bytes=6).read_bytes() == b"second"
        with pytest.raises(ObjectChangedError, match="6 bytes, but the index says 7"):
            cache.fetch_object(0, "clips/a.mp4", "videos/a.mp4", num_bytes=7)


def test_ranges(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_bytes=20_000_000, num_shards=1)
    whole = content("shard.00000.data", 20_000_000)
    with data.cache() as cache:
        assert cache.read_many(0, [("shard.00000.data", Span(10, 20))])[0] == whole[10:20]
        assert cache.read_many(0, [("shard.00000.data", None)])[0] == whole
        spans = [Span(i * 1000, i * 1000 + i) for i in range(20)]
        places = [("shard.00000.data", span) for span in spans]
        assert cache.read_many(0, places) == [whole[span.begin : span.end] for span in spans]
        assert cache.read_many(0, []) == []
        with pytest.raises(ObjectNotFoundError, match="missing"):
            cache.read_many(0, [("nothing", None)])[0]
    assert not data.cached_names()


# --- Objects that are not what they should be ---------------------------------------------------------------


def test_missing_object(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    (data.remote / "shard.00001.data").unlink()
    with data.cache() as cache:
        cache.expect([(0, shard, 1) for shard in data.shards])
        check_shard(cache, data.shards[0])
        for _ in range(2):
            with pytest.raises(ObjectNotFoundError, match=r"shard\.00001\.data"):
                cache.lease(0, data.shards[1])
        (data.remote / "shard.00001.data").write_bytes(content("shard.00001.data", 100_000))
        check_shard(cache, data.shards[1])


@pytest.mark.parametrize("num_bytes", [0, 99_999, 100_001])
def test_object_of_another_size(tmp_path: Path, num_bytes: int) -> None:
    data = write_dataset(tmp_path)
    (data.remote / "shard.00001.data").write_bytes(bytes(num_bytes))
    with data.cache(retry=0) as cache:
        with pytest.raises(ObjectChangedError, match=rf"shard\.00001\.data has {num_bytes} bytes.*says 100000"):
            cache.lease(0, data.shards[1])
        check_shard(cache, data.shards[2])
    assert not data.parts_left()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_damaged_object(tmp_path: Path, compression: str | None) -> None:
    data = write_dataset(tmp_path, compression=compression)
    name = data.infos[1].parts[0].stored.basename
    damaged = bytearray((data.remote / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (data.remote / name).write_bytes(damaged)
    with data.cache(validate_hash=HASH) as cache:
        with pytest.raises(CorruptShardError, match=rf"{name}.*{HASH}.*3 attempts"):
            cache.lease(0, data.shards[1])
        check_shard(cache, data.shards[2])
        assert cache.node_stats()["retries"] == 2
    assert not data.parts_left()
    assert not (data.local / data.infos[1].name).exists()


def test_a_digest_that_was_never_recorded(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(validate_hash="sha256") as cache, pytest.raises(ConfigError, match="no sha256 digest"):
        cache.lease(0, data.shards[0])


def test_what_no_limit_counts_is_said(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=20, num_bytes=100)
    with data.cache(limit_bytes=2000) as cache:
        for shard in data.shards:
            check_shard(cache, shard)
        said = cache.node_stats()["uncounted_bytes"]
        files = [path for path in data.local.rglob("*") if path.is_file()]
        tables = [path for path in files if path.suffix != ".data" and path != data.local / "index.json"]
        assert said == sum(path.stat().st_size for path in tables) > 2000


def test_settings_are_checked(tmp_path: Path) -> None:
    store = resolve_store(str(tmp_path))
    with pytest.raises(ConfigError):
        CachedStream(directory=tmp_path, store=store, retry=-1)
    with pytest.raises(ConfigError):
        CachedStream(directory=tmp_path, store=store, timeout_s=0)
    with pytest.raises(ConfigError):
        Cache([CachedStream(directory=tmp_path, store=store, validate_hash="nonsense")])
    with pytest.raises(ConfigError):
        Cache([], limit_bytes=0)


# --- Where things live --------------------------------------------------------------------------------------


def test_pickling_carries_settings_only(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache(limit_bytes=10**6) as cache:
        check_shard(cache, data.shards[0])
        with pickle.loads(pickle.dumps(cache)) as copy:
            check_shard(copy, data.shards[1])
            assert copy.limit_bytes == cache.limit_bytes


def test_a_closed_cache_may_be_used_again(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    cache = data.cache()
    for shard in data.shards[:3]:
        check_shard(cache, shard)
        cache.close()


def test_the_fetcher_knows_no_secret_by_its_arguments_or_environment(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    data = write_dataset(tmp_path)
    stream = CachedStream(directory=data.local, store=StoreSettings(str(data.remote), {"secret": "hush"}))
    with Cache([stream]) as cache:
        check_shard(cache, data.shards[0])
        (pid,) = fetcher_pids(runtime)
        for kind in ("cmdline", "environ"):
            assert b"hush" not in Path(f"/proc/{pid}/{kind}").read_bytes()
        assert "hush" not in repr(cache.streams)
        assert all(b"hush" not in path.read_bytes() for path in runtime.iterdir() if path.is_file())


def test_memory_stores_are_served_in_this_process(tmp_path: Path, runtime: Path) -> None:
    data = write_dataset(tmp_path, compression="zstd")
    store = open_store("memory://test-cache/here")
    for path in data.remote.iterdir():
        store.upload(path, path.name)
    stream = CachedStream(directory=data.local, store=resolve_store("memory://test-cache/here"))
    with Cache([stream], limit_bytes=350_000) as cache:
        cache.expect([(0, shard, number) for number, shard in enumerate(data.shards)])
        for shard in data.shards:
            check_shard(cache, shard)
        assert cache.read_many(0, [("index.json", Span(0, 1))])[0] == b"{"
        assert cache.read_many(0, [("index.json", None)])[0] == (data.remote / "index.json").read_bytes()
        with pytest.raises(ObjectNotFoundError):
            cache.fetch_object(0, "nothing")
        assert cache.node_stats()["evictions"] >= 3
        assert not fetcher_pids(runtime)
    assert len(data.cached_names()) == 3


def test_paths_do_not_depend_on_where_the_process_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = write_dataset(tmp_path / "x")
    stream = CachedStream(directory=data.local.relative_to(tmp_path), store=resolve_store("remote"))
    with Cache([stream]) as cache:
        os.chdir("/")
        check_shard(cache, data.shards[0])
    assert (data.local / "shard.00000.data").exists()
