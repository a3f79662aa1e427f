"""A disk that fills up: caches give way before it is full, and only then is it an error."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import MDSWriter, MemoryShardedSource, StreamingDataset, save_dataset
from penstock.errors import ConfigError, PenstockError
from penstock.fetcher.rooms import measure_disk, parse_reserve
from tests.cache.kit import check_shard, left_over, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("runtime")


@contextmanager
def small_disk(folder: Path, size: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int | None]:
    """A small file system if this machine lets us mount one, else a disk of which nothing may be taken for long."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.getuid() == 0 and shutil.which("mount") and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield parse_reserve(None).of(measure_disk(folder).total_bytes)  # type: ignore[union-attr]
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    else:
        monkeypatch.setenv("PENSTOCK_DISK_RESERVE", "100%")
        yield None


@contextmanager
def warned_once() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    (warning,) = caught
    assert "nearly full" in str(warning.message)
    assert "cache_limit" in str(warning.message)


def free_bytes(folder: Path) -> int:
    disk = measure_disk(folder)
    assert disk is not None
    return disk.free_bytes


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_cache_without_a_limit_leaves_the_reserve_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    data = write_dataset(tmp_path / "data", num_shards=20, num_bytes=400_000, compression=compression)
    with small_disk(tmp_path / "small", "4m", monkeypatch) as reserve:
        data.local.symlink_to(tmp_path / "small")
        with data.cache() as cache, warned_once():
            for _ in range(2):
                for shard in data.shards:
                    check_shard(cache, shard)
                    assert reserve is None or free_bytes(data.local) >= reserve
            assert cache.node_stats()["evictions"] > 10


def test_what_is_expected_stays_and_what_is_idle_goes(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DISK_RESERVE", "0")
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        for shard in data.shards[:4]:
            check_shard(cache, shard)
    assert not left_over(runtime)
    assert len(data.cached_names()) == 4
    monkeypatch.setenv("PENSTOCK_DISK_RESERVE", "100%")
    with data.cache() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache.open_index(0)
        cache.expect([(0, shard, ahead) for ahead, shard in enumerate(data.shards[:2])])
        with cache.lease(0, data.shards[3]):
            check_shard(cache, data.shards[5])
            assert data.cached_names() == {f"shard.{number:05}.data" for number in (0, 1, 3, 5)}


def test_shards_that_a_dataset_keeps_open_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit they all stay open: they are given up, since they are not needed this moment."""
    with MDSWriter(
        out=tmp_path / "remote", columns={"id": "int", "x": "bytes"}, compression="zstd", size_limit=250_000
    ) as writer:
        for number in range(40):
            writer.write({"id": number, "x": bytes(200_000)})
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "caches"))
    with small_disk(tmp_path / "small", "3m", monkeypatch):
        options: dict[str, Any] = {"remote": tmp_path / "remote", "local": tmp_path / "small" / "cache"}
        with StreamingDataset(**options) as dataset, warned_once():
            assert [dataset[number]["id"] for number in range(40)] == list(range(40))
            assert [sample["id"] for sample in dataset] == list(range(40))


# --- Errors that say where and what to do ---------------------------------------------------------------------


def fill(folder: Path, left_bytes: int) -> None:
    """Take all of a small disk but so many bytes."""
    with (folder / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(folder / "filling", (folder / "filling").stat().st_size - left_bytes)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def check_said(error: PenstockError, folder: Path) -> None:
    """Errors name a file there, and what to do."""
    assert str(folder) in str(error)
    assert re.search("free some space|choose another", str(error)), error


@pytest.mark.parametrize(("left_bytes", "compression"), [(0, None), (8192, "zstd"), (16384, None), (None, "zstd")])
def test_a_disk_that_takes_nothing_more(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, left_bytes: int | None, compression: str | None
) -> None:
    monkeypatch.setenv("PENSTOCK_DISK_RESERVE", "0")
    with MDSWriter(out=tmp_path / "remote", columns={"x": "str"}, compression=compression, size_limit=5000) as writer:
        for number in range(1000):
            writer.write({"x": f"number {number}"})
    small = tmp_path / "small"
    with small_disk(small, "200k", monkeypatch) as is_small:
        if left_bytes is None:  # the folder is there already, and cannot be written to any more
            with StreamingDataset(remote=tmp_path / "remote", local=small / "cache", batch_size=4) as dataset:
                assert len(list(dataset)) == 1000
            assert not left_over(runtime)
            next((small / "cache").glob("shard.*")).unlink()  # a complete copy would be used instead
        if is_small is not None:
            remount(small, "ro") if left_bytes is None else fill(small, left_bytes)
        try:
            with StreamingDataset(remote=tmp_path / "remote", local=small / "cache", batch_size=4) as dataset:
                assert len(list(dataset)) == 1000
        except PenstockError as error:
            check_said(error, small)
        else:
            assert is_small is None or (left_bytes or 0) >= 8192
        gc.collect()  # of a dataset that could not be opened, the error holds what is connected


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "mds"])
def test_saving_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    source = MemoryShardedSource([{"n": number} for number in range(20_000)])
    with small_disk(tmp_path / "small", "100k", monkeypatch) as is_small:
        try:
            save_dataset(source, tmp_path / "small" / "out", format=kind)
        except PenstockError as error:
            check_said(error, tmp_path / "small")
        else:
            assert is_small is None


FEW_FILES = """
import os, resource, sys
sys.modules["torch"] = None  # it is not needed, and takes longer than all else
from penstock import LocalDataset, StreamingDataset
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
for read in (LocalDataset, StreamingDataset):
    try:
        print(len(list(read(local=sys.argv[1]))))
    except BaseException as error:
        print(type(error).__name__, error)
"""


def test_too_few_open_files(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "data", columns={"x": "int"}, size_limit=60) as writer:
        for number in range(200):
            writer.write({"x": number})
    run = [sys.executable, "-c", FEW_FILES, str(tmp_path / "data")]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line == "200" or re.match("StoreError .*Too many open files.*ulimit -n", line), line


# --- The setting ------------------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 60), st.floats(0, 100), st.integers(0, 1 << 50))
def test_the_reserve_is_within_the_disk_and_what_was_said(total: int, percent: float, num_bytes: int) -> None:
    assert 0 <= parse_reserve(None).of(total) <= min(total * 0.03 + 1, 10 << 30)
    assert abs(parse_reserve(f"{percent:.6f}%").of(total) - total * percent / 100) <= 1 + total * 1e-8
    assert parse_reserve(str(num_bytes)).of(total) == min(num_bytes, total)


@pytest.mark.parametrize("text", ["lots", "-1", "3 %%", "101%", "nan%"])
def test_a_reserve_that_makes_no_sense_is_said_to(text: str) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_DISK_RESERVE"):
        parse_reserve(text)


def test_a_reserve_in_words() -> None:
    assert parse_reserve("5gb").of(1 << 40) == 5 << 30
    assert parse_reserve(" 2.5 % ").of(1000) == 25
