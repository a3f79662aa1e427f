"""Files of the user, of others, and of unknown origin: what a cache leaves alone, and what it does not trust."""

from __future__ import annotations

import json
import os
import stat
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock import MDSWriter, StreamingDataset
from penstock.cachedir.folder import describe_risks
from penstock.errors import BadIndexError, CacheError, PenstockError, StoreError
from tests.cache.kit import check_shard, content, write_dataset
from tests.servers.script import Answer, Request, run_script, whole
from tests.streaming import private_places

if TYPE_CHECKING:
    from pathlib import Path

ANOTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


# --- The user's own files -----------------------------------------------------------------------------------


def rename_in_index(folder: Path, old: str, new: str) -> None:
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(text.replace(old, new))
    (folder / new).write_bytes((folder / old).read_bytes())


@pytest.mark.parametrize("has_right_size", [True, False])
def test_an_index_cannot_have_the_users_files_replaced_or_evicted(tmp_path: Path, has_right_size: bool) -> None:
    data = write_dataset(tmp_path)
    rename_in_index(data.remote, "shard.00001.data", "train.py")
    data.local.mkdir()
    mine = b"# mine\n" * (100_000 // 7) + b"#" * (100_000 % 7) if has_right_size else b"# mine\n"
    (data.local / "train.py").write_bytes(mine)
    for limit in (None, 250_000, 250_000):
        with data.cache(limit_bytes=limit) as cache:
            for _ in range(2):
                for shard in data.shards:
                    with cache.lease(0, shard) as lease:
                        name = f"shard.{shard:05}.data"
                        assert lease.paths[0].read_bytes() == content(name, 100_000)
    assert (data.local / "train.py").read_bytes() == mine


def test_a_file_that_the_user_changed_is_no_longer_ours(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        check_shard(cache, 0)
        (data.local / "shard.00000.data").write_bytes(b"notes")
        check_shard(cache, 0)
    with data.cache(limit_bytes=100_000) as cache:
        for shard in data.shards:
            check_shard(cache, shard)
    assert (data.local / "shard.00000.data").read_bytes() == b"notes"


def test_what_another_reader_left_is_used_and_stays(tmp_path: Path) -> None:
    """A folder that was filled from the store, its index included, needs no digests to be believed."""
    columns = {"x": "ndarray:float32:8"}
    with MDSWriter(out=tmp_path / "remote", columns=columns, size_limit=600) as writer:
        for number in range(60):
            writer.write({"x": np.full(8, number, np.float32)})
    (tmp_path / "local").mkdir()
    for path in (tmp_path / "remote").iterdir():
        (tmp_path / "local" / path.name).write_bytes(path.read_bytes())
    before = {path.name: path.stat().st_ino for path in (tmp_path / "local").iterdir()}
    for limit in (None, 3000):
        with StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "local", cache_limit=limit) as dataset:
            assert [int(sample["x"][0]) for sample in dataset] == list(range(60))
            assert dataset.stats().downloads == 1  # the index
    after = {path.name: path.stat().st_ino for path in (tmp_path / "local").iterdir() if path.name != ".penstock"}
    assert after == before


# --- Other people -------------------------------------------------------------------------------------------


def folder_of(user: int, mode: int) -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | mode, 1, 1, 2, user, 0, 0, 0, 0, 0))


def test_who_else_could_change_a_folder(tmp_path: Path) -> None:
    assert not describe_risks(tmp_path, folder_of(1000, 0o755), 1000)
    assert not describe_risks(tmp_path, folder_of(1000, 0o775), 1000)
    assert not describe_risks(tmp_path, folder_of(0, 0o755), 1000)
    assert not describe_risks(tmp_path, folder_of(0, 0o1777), 1000)  # like /tmp: others cannot replace our files
    assert "belongs to another user (id 7)" in describe_risks(tmp_path, folder_of(7, 0o755), 1000)[0]
    assert "everybody on this machine" in describe_risks(tmp_path, folder_of(1000, 0o777), 1000)[0]


@needs_root
@pytest.mark.parametrize("has_digests", [True, False])
def test_files_of_another_user_are_not_believed(tmp_path: Path, has_digests: bool) -> None:
    data = write_dataset(tmp_path)
    if not has_digests:
        index = json.loads((data.remote / "index.json").read_text())
        for shard in index["shards"]:
            shard["raw_data"]["hashes"] = {}
        (data.remote / "index.json").write_text(json.dumps(index))
    data.local.mkdir()
    for path in data.remote.iterdir():
        (data.local / path.name).write_bytes(path.read_bytes())
    (data.local / "shard.00002.data").write_bytes(bytes(100_000))  # altered, of the right size
    for path in (data.local, *data.local.iterdir()):
        os.chown(path, ANOTHER_USER, ANOTHER_USER)
    with data.cache() as cache:
        with pytest.warns(UserWarning, match="belongs to another user"):
            cache.open_index(0)
        for shard in data.shards:
            check_shard(cache, shard)


@needs_root
def test_what_others_leave_where_everybody_may_write_is_not_used(tmp_path: Path) -> None:
    """Not even if it is right: its owner may change it while it is read, and need not change its time."""
    data = write_dataset(tmp_path)
    data.local.mkdir()
    data.local.chmod(0o1777)
    theirs, mine = (data.local / f"shard.0000{number}.data" for number in (1, 2))
    for path in (theirs, mine):
        path.write_bytes((data.remote / path.name).read_bytes())
    os.chown(theirs, ANOTHER_USER, ANOTHER_USER)
    with data.cache() as cache:
        with cache.lease(0, 1) as lease:
            assert lease.paths[0] != theirs
        with cache.lease(0, 2) as lease:
            assert lease.paths[0] == mine
        check_shard(cache, 1)
    assert theirs.exists()


def test_files_that_lie_there_are_digested_if_that_is_asked_for(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    data.local.mkdir()
    for path in data.remote.iterdir():
        (data.local / path.name).write_bytes(path.read_bytes())
    (data.local / "shard.00002.data").write_bytes(bytes(100_000))
    with data.cache(validate_hash="xxh64") as cache:
        for shard in data.shards:
            check_shard(cache, shard)


def test_a_control_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "00-0123456789abcdef.part").write_bytes(b"precious")
    (outside / "ledger.jsonl").write_text("precious\n")
    data.local.mkdir()
    (data.local / ".penstock").symlink_to(outside)
    with pytest.raises(CacheError, match="is a link"), data.cache() as cache:
        check_shard(cache, 0)
    assert sorted(path.name for path in outside.iterdir()) == ["00-0123456789abcdef.part", "ledger.jsonl"]
    assert (outside / "ledger.jsonl").read_text() == "precious\n"


@pytest.mark.parametrize("name", ["editions", "editions/0123456789abcdef01234567", "ledger.jsonl", "boots.jsonl"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_control_folder_that_holds_links_or_pipes_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """A cache that came with an archive: nothing elsewhere is deleted or written to, and nothing is waited for."""
    data = write_dataset(tmp_path)
    (tmp_path / "outside/precious").mkdir(parents=True)
    (tmp_path / "outside/precious/index.json").write_text("thesis")
    path = data.local / ".penstock" / name
    path.parent.mkdir(parents=True)
    if kind == "link":
        path.symlink_to(tmp_path / "outside/precious" if "/" in name else tmp_path / "outside")
    else:
        os.mkfifo(path)
    with pytest.raises(CacheError, match="files that penstock did not put there"), data.cache() as cache:
        check_shard(cache, 0)
    assert [path.name for path in (tmp_path / "outside").rglob("*")] == ["precious", "index.json"]
    assert (tmp_path / "outside/precious/index.json").read_text() == "thesis"


def test_only_what_is_named_like_an_edition_is_removed_as_one(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    (data.local / ".penstock/editions/thesis").mkdir(parents=True)
    with data.cache() as cache:
        check_shard(cache, 0)
    assert (data.local / ".penstock/editions/thesis").is_dir()


@needs_root
def test_a_control_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    (data.local / ".penstock").mkdir(parents=True)
    os.chown(data.local / ".penstock", ANOTHER_USER, ANOTHER_USER)
    with pytest.raises(CacheError, match="belongs to another user"), data.cache() as cache:
        check_shard(cache, 0)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "dangling link"])
def test_what_is_no_file_is_neither_waited_for_nor_followed(tmp_path: Path, kind: str) -> None:
    data = write_dataset(tmp_path)
    data.local.mkdir()
    path = data.local / "shard.00000.data"
    (tmp_path / "elsewhere").write_bytes(bytes(100_000))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / ("elsewhere" if kind == "link" else "nowhere"))
    before = os.lstat(path).st_ino
    with data.cache(limit_bytes=300_000) as cache:
        for shard in data.shards:
            check_shard(cache, shard)
    assert os.lstat(path).st_ino == before
    assert (tmp_path / "elsewhere").read_bytes() == bytes(100_000)


def test_the_users_own_cache_is_private_and_a_chosen_folder_follows_the_umask(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "data", columns={"x": "int"}, compression="zstd") as writer:
        writer.write({"x": 1})
    with private_places() as places:
        for arguments in ({"local": tmp_path / "data"}, {"remote": tmp_path / "data", "local": tmp_path / "named"}):
            with StreamingDataset(**arguments) as dataset:  # type: ignore[arg-type]
                assert [sample["x"] for sample in dataset] == [1]
        below = [path for path in (places / "cache").rglob("*") if path.name != "arrays"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in below if path.is_dir()} == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in below if path.is_file()} == {0o600}
        assert stat.S_IMODE((places / "cache").stat().st_mode) == 0o700
    (shard,) = (tmp_path / "named").glob("shard*.mds")
    assert stat.S_IMODE(shard.stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "named/.penstock").stat().st_mode) == 0o700


# --- Disk on the server's word ------------------------------------------------------------------------------


def disk_used(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def test_room_is_taken_as_bytes_arrive_and_not_before(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=40)
    index = json.loads((data.remote / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["bytes"] = 100_000_000
    body = json.dumps(index).encode()
    silence = threading.Event()
    asked = threading.Semaphore(0)

    def answer(request: Request) -> Answer:
        if request.path.endswith("index.json"):
            return whole(body)
        asked.release()
        silence.wait(30)
        return Answer(404)

    with run_script(answer) as server:
        dataset = StreamingDataset(remote=f"{server.url}/data", local=tmp_path / "cache", download_retry=0)
        with dataset:
            cache = dataset._opened.cache
            assert cache is not None
            cache.expect([(0, shard, shard) for shard in range(40)])
            for _ in range(8):
                assert asked.acquire(timeout=30)
            assert disk_used(tmp_path / "cache") < 1_000_000
            silence.set()


def test_an_index_of_gigabytes_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        given = whole(b"{" * (1 << 20))
        return Answer(206, given.body, {**given.headers, "Content-Range": f"bytes 0-{(1 << 20) - 1}/{5 << 30}"})

    with run_script(answer) as server:
        with pytest.raises(BadIndexError, match=r"index\.json has 5.*GB"):
            StreamingDataset(remote=f"{server.url}/data", local=tmp_path / "cache", cache_limit="300mb")
        assert disk_used(tmp_path / "cache") < 1_000_000
        assert len(server.requests) < 3


def test_unpacking_takes_no_more_than_the_disk_has(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    from penstock.codecs.unpack import take_space

    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(OSError, match="No space left"):
            take_space(file.fileno(), free.f_bavail * free.f_frsize * 2)
        assert os.fstat(file.fileno()).st_blocks == 0


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 2500 + "x"])
def test_a_shard_whose_name_is_too_long_for_the_disk(tmp_path: Path, name: str) -> None:
    data = write_dataset(tmp_path)
    text = (data.remote / "index.json").read_text()
    (data.remote / "index.json").write_text(text.replace("shard.00000.data", name))
    with pytest.raises(StoreError, match="File name too long"), data.cache() as cache:
        check_shard(cache, 0)


def test_errors_are_ours(tmp_path: Path) -> None:
    """Whatever is wrong with a folder, the error says which one."""
    data = write_dataset(tmp_path)
    (tmp_path / "local").write_text("a file where a folder belongs")
    with pytest.raises(PenstockError, match="local") as caught, data.cache() as cache:
        check_shard(cache, 0)
    assert isinstance(caught.value, (CacheError, StoreError))
