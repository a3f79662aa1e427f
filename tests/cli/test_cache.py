"""`penstock cache`: the command, and the same from Python, over datasets as users stream them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import MDSWriter, StreamingDataset, clear_cache, list_cache, warm_cache
from penstock.cache.contents import CachedDataset, CachedEdition
from penstock.cli.cache import ago, render_list
from penstock.cli.main import main
from tests.streaming import ids_of, private_places, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "remote", 200, compression="zstd")


class Shell:
    """Runs commands in this process, and keeps what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        status = main(["cache", *map(str, arguments)])
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def cache(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_warm_list_prune_and_clear(cache: Shell, remote: Path, tmp_path: Path) -> None:
    assert cache() == 0
    assert cache.out == "nothing is cached\n"
    local = tmp_path / "local"
    assert cache("warm", remote, "--local", local) == 0
    assert f"{remote}: all 20 shards" in cache.out
    assert cache("list", local) == 0
    assert cache.out.startswith(f"{remote}\n    ")
    assert "in 20 shards, first fetched just now, last used just now\n" in cache.out
    assert f"in {local}\n1 dataset, " in cache.out
    size = list_cache([local])[0].num_bytes
    assert cache("prune", "--to", f"{size // 2}b", "--folder", local) == 0
    (left,) = list_cache([local])
    assert 0 < left.num_bytes <= size // 2
    assert f"{remote} in {local}: removed {20 - left.num_shards} shards" in cache.out
    assert cache("clear", remote, "--folder", local) == 0
    assert f"removed {left.num_shards} shards" in cache.out
    assert "0 B left" in cache.out
    assert list(local.iterdir()) == []
    assert cache("clear", "--folder", local) == 0
    assert cache.out == "nothing is cached\n"


def test_for_machines(cache: Shell, remote: Path, places: Path) -> None:
    assert cache("warm", remote, "--json") == 0
    warmed = json.loads(cache.out)
    assert (warmed["source"], warmed["num_shards"]) == (str(remote), 20)
    assert Path(warmed["directory"]).parent == places / "cache"
    for arguments in (["--json"], ["list", "--json"], ["--json", "list", places / "cache"]):
        assert cache(*arguments) == 0
        (listed,) = json.loads(cache.out)
        assert listed["source"] == str(remote)
        assert listed["num_bytes"] == warmed["num_bytes"]
        assert (listed["is_open"], listed["processes"]) == (False, [])
        assert listed["editions"][0]["is_newest"] is True
    with StreamingDataset(remote=remote, batch_size=4):
        cache("list", "--json")
        assert json.loads(cache.out)[0]["processes"] == [os.getpid()]
    assert cache("prune", "--to", "1kb", "--json") == 0
    pruned = json.loads(cache.out)
    assert pruned["left_bytes"] <= 1024
    assert cache("clear", "--json") == 0
    assert json.loads(cache.out)["left_bytes"] == 0
    assert list((places / "cache").iterdir()) == []


def test_a_prune_that_does_not_reach_its_aim_says_why(cache: Shell, remote: Path) -> None:
    with StreamingDataset(remote=remote, batch_size=4) as dataset:
        dataset.warm()
        dataset.pin(range(20))
    pinned = list_cache()[0].pinned_bytes
    assert cache("prune", "--to", "0") == 1
    assert "left, more than 0: 0 B in use" in cache.err
    assert "pinned" in cache.out
    assert sum(dataset.num_bytes for dataset in list_cache()) == pinned > 0


def test_an_unknown_dataset_folder_or_size(cache: Shell, remote: Path, tmp_path: Path) -> None:
    assert cache("clear", "s3://bucket/none") == 2
    assert cache.err.startswith("penstock: s3://bucket/none is not in the cache, which is empty")
    assert cache("list", remote / "index.json") == 2
    assert "is not a folder" in cache.err
    assert cache("list", tmp_path / "none") == 0
    assert cache.out == "nothing is cached\n"
    assert f"there is no folder {tmp_path / 'none'} yet" in cache.err
    assert cache("prune", "--to", "few") == 2
    assert "is not a size" in cache.err
    assert cache("warm", tmp_path / "none") == 2


def test_splits_are_cleared_with_their_dataset_or_alone(cache: Shell, tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_samples(tmp_path / "data" / split, 20, compression="zstd")
        assert cache("warm", tmp_path / "data", "--split", split) == 0
    assert cache("clear", tmp_path / "data" / "val") == 0
    (left,) = list_cache()
    assert left.source == str(tmp_path / "data" / "train")
    assert cache("clear", tmp_path / "data") == 0
    assert list_cache() == ()


def test_names_do_not_steer_the_terminal(cache: Shell, tmp_path: Path) -> None:
    remote = write_samples(tmp_path / "re\x1b[31mmote", 20, compression="zstd")
    for arguments in (["warm", remote], ["list"], ["prune", "--to", "1kb"], ["clear"]):
        assert cache(*arguments) == 0
        assert "re\\x1b[31mmote" in cache.out
        assert "\x1b" not in cache.out


def test_times_and_readers_in_words() -> None:
    edition = CachedEdition(opened=0, is_newest=True, is_open=True, processes=tuple(range(1, 12)), num_bytes=1)
    dataset = CachedDataset(
        source="s3://b/data",
        directory="/d",
        num_shards=1,
        num_files=1,
        num_bytes=3 << 20,
        pinned_bytes=1 << 20,
        outdated_bytes=2 << 20,
        since=0,
        last_used=3 * 86400 - 60,
        editions=(edition, edition),
    )
    assert render_list([dataset], 3 * 86400) == (
        "s3://b/data\n"
        "    3 MB in 1 shard, 1 MB pinned, 2 MB outdated, first fetched 3 days ago, last used 1 minute ago,"
        " 2 versions, in use by process 1, 2, 3, 4, 5, 6, 7, 8 and 3 more\n"
        "    in /d\n"
        "1 dataset, 3 MB"
    )
    assert [ago(seconds) for seconds in (-5, 59, 60, 7200, 86400)] == [
        "just now",
        "just now",
        "1 minute ago",
        "2 hours ago",
        "1 day ago",
    ]


# --- From Python --------------------------------------------------------------------------------------------


def test_warming_what_is_there_fetches_the_index_alone(remote: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = warm_cache(remote, tmp_path / "local", on_progress=lambda done, of: seen.append((done, of)))
    assert seen == [(done, 20) for done in range(1, 21)]
    assert first.num_bytes == list_cache([tmp_path / "local"])[0].num_bytes
    again = warm_cache(remote, tmp_path / "local")
    assert again.num_bytes == first.num_bytes
    assert again.fetched_bytes == (remote / "index.json").stat().st_size
    with StreamingDataset(remote=remote, local=tmp_path / "local", batch_size=4) as dataset:
        assert ids_of(dataset) == list(range(200))
        assert dataset.stats().cache_waits == 0


def test_warming_what_is_read_where_it_lies_does_nothing(tmp_path: Path) -> None:
    write_samples(tmp_path / "data", 20)
    warmed = warm_cache(tmp_path / "data")
    assert (warmed.directory, warmed.num_shards, warmed.num_bytes) == (None, 0, 0)
    assert list_cache() == ()


def test_warming_reads_nothing_so_no_column_is_too_dangerous(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "data", columns={"p": "pkl"}, compression="zstd") as writer:
        writer.write({"p": 1})
    assert warm_cache(tmp_path / "data").num_shards == 1


_STREAM = """
import json, sys
sys.modules["torch"] = None
from penstock import StreamingDataset
arguments = json.loads(sys.argv[1])
with StreamingDataset(shuffle=True, batch_size=4, **arguments) as dataset:
    dataset.warm()
    print("here", flush=True)
    sys.stdin.readline()
    print(json.dumps([[int(sample["id"]) for sample in dataset] for _ in range(6)]))
"""


@pytest.mark.parametrize("has_local", [False, True])
def test_the_epochs_of_a_job_are_exact_while_its_cache_is_cleared(
    remote: Path, tmp_path: Path, has_local: bool
) -> None:
    arguments: dict[str, Any] = {"remote": str(remote)} | ({"local": str(tmp_path / "local")} if has_local else {})
    folders = [tmp_path / "local"] if has_local else None
    job = subprocess.Popen(
        [sys.executable, "-c", _STREAM, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdin is not None
    assert job.stdout is not None
    assert job.stdout.readline() == "here\n"
    assert clear_cache(folders=folders).removed_bytes > 0
    job.stdin.write("\n")
    job.stdin.flush()
    while job.poll() is None:
        clear_cache(folders=folders)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    epochs = json.loads(out)
    assert all(sorted(epoch) == list(range(200)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    clear_cache(folders=folders)
    assert list_cache(folders) == ()
