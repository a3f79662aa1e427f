"""Copies that change in the cache with size, inode and time as before: digests find them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cachedir.editions import editions_in
from penstock.cli.main import main
from penstock.errors import CorruptShardError
from tests.cache.kit import HASH, check_shard, finish, start_client, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache.kit import Dataset


def rot(path: Path) -> None:
    """Flip a bit of a file, and set its time back: its stamp stays."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_ino == before.st_ino


def fetch_all(data: Dataset, **options: Any) -> None:
    with data.cache(**options) as cache:
        for shard in data.shards:
            check_shard(cache, shard)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("was_checked", [False, True])
def test_a_bit_that_rots_is_found_by_the_next_job(tmp_path: Path, compression: str | None, was_checked: bool) -> None:
    data = write_dataset(tmp_path, num_shards=2, num_parts=2, compression=compression)
    fetch_all(data, validate_hash=HASH if was_checked else None, keep_zip=True)
    for part in data.infos[1].parts:
        rot(data.local / part.raw.basename)
    with data.cache(validate_hash=HASH, keep_zip=True) as cache:
        for shard in data.shards:
            check_shard(cache, shard)
        assert cache.stats().total.downloads == 2  # the index, and one shard
    assert not data.parts_left()


def test_a_bit_that_rots_in_a_kept_file_does_not_come_back(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=1, compression="zstd")
    fetch_all(data, keep_zip=True)
    for file in (data.infos[0].parts[0].raw, data.infos[0].parts[0].stored):
        rot(data.local / file.basename)
    fetch_all(data, keep_zip=True, validate_hash=HASH)
    stored = data.infos[0].parts[0].stored.basename
    assert (data.local / stored).read_bytes() == (data.remote / stored).read_bytes()


def test_what_cannot_be_fetched_again_is_an_error(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=2)
    fetch_all(data)
    rot(data.local / data.infos[0].name)
    with data.cache(validate_hash=HASH, timeout_s=0.1, retry=0) as cache:
        cache.open_index(0)
        (data.remote / data.infos[0].name).unlink()
        with pytest.raises(CorruptShardError, match=rf"{data.infos[0].name}.*damaged after it was fetched"):
            cache.lease(0, 0)
        check_shard(cache, 1)


def test_a_file_of_another_program_stays_and_the_right_one_lies_apart(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=1)
    data.local.mkdir()
    for path in data.remote.iterdir():
        (data.local / path.name).write_bytes(path.read_bytes())
    fetch_all(data)
    rot(data.local / data.infos[0].name)
    damaged = (data.local / data.infos[0].name).read_bytes()
    with data.cache(validate_hash=HASH) as cache:
        with cache.lease(0, 0) as lease:
            assert lease.paths[0].read_bytes() == (data.remote / data.infos[0].name).read_bytes()
        assert (data.local / data.infos[0].name).read_bytes() == damaged


READ_CHECKED = """
import sys
from pathlib import Path
from tests.cache.kit import HASH, open_dataset
data = open_dataset(Path(sys.argv[1]))
with data.cache(validate_hash=HASH) as cache:
    for shard in data.shards:
        cache.lease(0, shard).close()
    print(cache.stats().total.downloads)
"""


def test_what_was_checked_is_noted_for_all_processes_of_the_job(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=3)
    fetch_all(data)
    with data.cache(validate_hash=HASH) as cache:
        for shard in data.shards[:2]:
            check_shard(cache, shard)
        (edition,) = editions_in(data.local)
        assert [edition.is_checked(shard, edition.entry(shard)) for shard in data.shards] == [True, True, False]
        rot(data.local / data.infos[0].name)  # it was checked: it is not read again
        rot(data.local / data.infos[2].name)
        assert finish(start_client(READ_CHECKED, tmp_path)) == "2\n"  # the index, and one shard


# --- The command ----------------------------------------------------------------------------------------------------


def verify(data: Dataset, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, object]]:
    status = main(["cache", "verify", "--folder", str(data.local), "--json", *options])
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return status, report


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_verify_finds_and_repairs(tmp_path: Path, compression: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_dataset(tmp_path, num_shards=3, num_parts=2, compression=compression)
    fetch_all(data, keep_zip=True)
    assert verify(data, capsys) == (0, {"num_shards": 3, "damaged": [], "problems": []})
    damaged = data.local / data.infos[1].parts[1].stored.basename
    rot(damaged)
    status, report = verify(data, capsys)
    assert (status, report["damaged"]) == (1, [str(damaged)])
    assert verify(data, capsys, "--repair") == (0, {"num_shards": 3, "damaged": [str(damaged)], "problems": []})
    assert verify(data, capsys)[0] == 0
    assert damaged.read_bytes() == (data.remote / damaged.name).read_bytes()
    fetch_all(data)


def test_what_cannot_be_repaired_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_dataset(tmp_path, num_shards=2)
    fetch_all(data)
    rot(data.local / data.infos[1].name)
    (data.remote / data.infos[1].name).unlink()
    assert main(["cache", "verify", "--repair", "--folder", str(data.local)]) == 1
    out = capsys.readouterr().out
    assert "cannot be fetched again" in out
    assert "2 shards checked, 1 damaged, 1 left" in out
