"""Data that was written again is read anew: in every setting, in the same folder, by the next process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import JSONWriter, LocalDataset, MDSWriter, Stream, StreamingDataset
from penstock.errors import ObjectChangedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.nginx import WebServer
    from tests.servers.s3 import S3Server

# The server below gives no ranges, which has nothing to do with what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not support range requests:UserWarning")

NUM_SAMPLES = 60
COLUMNS = {"id": "int", "x": "ndarray:float32:8"}


def write(out: Path | str, value: int, **options: Any) -> None:
    """Write a dataset whose samples all say the same value; its shape never changes."""
    with MDSWriter(out=out, columns=COLUMNS, size_limit=600, exist_ok=True, **options) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"id": number, "x": np.full(8, value, np.float32)})


_READ = """
import json, sys
sys.modules["torch"] = None  # it is not needed, and takes longer than all else
from penstock import StreamingDataset
arguments = json.loads(sys.argv[1])
with StreamingDataset(**arguments) as dataset:
    print(json.dumps([[sample["id"], float(sample["x"][3])] for sample in dataset]))
"""


def read_elsewhere(**arguments: Any) -> list[list[float]]:
    """Stream in a process of its own, as the next job would."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, json.dumps(arguments, default=str)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def all_are(samples: list[list[float]], value: int) -> bool:
    return samples == [[number, value] for number in range(NUM_SAMPLES)]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder over HTTP, by a server that gives no tags and tells times in whole seconds."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


SETTINGS = [
    *itertools.product(("folder", "http"), (None, "zstd"), (None, "sha1"), (False, True)),
    ("validated", None, "sha1", True),
    ("validated", "zstd", "sha1", False),
    ("local alone", None, None, True),
    ("local alone", "zstd", None, True),
]


@pytest.mark.parametrize(("remote", "compression", "hashes", "has_local"), SETTINGS)
def test_the_next_job_reads_what_was_written_again(
    tmp_path: Path, remote: str, compression: str | None, hashes: str | None, has_local: bool
) -> None:
    out = tmp_path / "data"
    arguments: dict[str, Any] = {}
    if remote == "validated":
        arguments["validate_hash"] = hashes
    if remote == "local alone":
        arguments["local"] = out
    elif has_local:
        arguments["local"] = tmp_path / "cache"
    with served(tmp_path) as url:
        if remote != "local alone":
            arguments["remote"] = f"{url}/data" if remote == "http" else out
        for value in (1, 2):
            write(out, value, compression=compression, hashes=hashes)
            assert all_are(read_elsewhere(**arguments), value)


@pytest.mark.parametrize("has_local", [False, True])
def test_of_a_web_server_that_makes_tags_of_time_and_size(tmp_path: Path, nginx: WebServer, has_local: bool) -> None:
    out = nginx.files / tmp_path.name
    arguments = {"remote": f"{nginx.url}/{tmp_path.name}"} | ({"local": tmp_path / "cache"} if has_local else {})
    for value in (1, 2):
        write(out, value)
        assert all_are(read_elsewhere(**arguments), value)


@pytest.mark.parametrize("hashes", [None, "sha1"])
def test_of_an_object_store(tmp_path: Path, moto: S3Server, hashes: str | None) -> None:
    bucket = f"rewritten-{hashes or 'none'}"
    moto.make_bucket(bucket)
    for value in (1, 2):
        write(f"s3://{bucket}/data", value, hashes=hashes, storage_options=moto.options)
        assert all_are(read_elsewhere(remote=f"s3://{bucket}/data", storage_options=moto.options), value)


# --- One folder for several datasets ------------------------------------------------------------------------


def values(dataset: StreamingDataset) -> list[float]:
    return [float(sample["x"][3]) for sample in dataset]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_two_remotes_may_share_a_folder(tmp_path: Path, compression: str | None) -> None:
    for value in (1, 2):
        write(tmp_path / str(value), value, compression=compression)
    shared = tmp_path / "cache"
    for _ in range(2):
        for value in (1, 2):
            with StreamingDataset(remote=tmp_path / str(value), local=shared) as dataset:
                assert values(dataset) == [value] * NUM_SAMPLES
    streams = [Stream(remote=tmp_path / str(value), local=shared) for value in (1, 2)]
    with StreamingDataset(streams=streams, shuffle=True, batch_size=4) as dataset:
        for _ in range(2):
            assert sorted(values(dataset)) == [1] * NUM_SAMPLES + [2] * NUM_SAMPLES
        downloads = dataset.stats().downloads
    with StreamingDataset(streams=streams, batch_size=4) as dataset:
        assert values(dataset) == [1] * NUM_SAMPLES + [2] * NUM_SAMPLES
        assert dataset.stats().downloads == 2  # the indexes: both have their copies now
    assert downloads > 2


def test_two_remotes_share_a_folder_within_a_limit(tmp_path: Path) -> None:
    for value in (1, 2):
        write(tmp_path / str(value), value)
    streams = [Stream(remote=tmp_path / str(value), local=tmp_path / "cache") for value in (1, 2)]
    size = sum(path.stat().st_size for path in (tmp_path / "1").glob("shard*"))
    with StreamingDataset(streams=streams, batch_size=4, cache_limit=size) as dataset:
        for _ in range(2):
            assert values(dataset) == [1] * NUM_SAMPLES + [2] * NUM_SAMPLES
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("shard*.mds")) <= size


# --- A job that runs while its data are written again -------------------------------------------------------


def age(folder: Path) -> None:
    """Have files look as if they were written some time ago: of younger ones, whole seconds prove nothing."""
    for path in folder.iterdir():
        os.utime(path, (time.time() - 100, time.time() - 100))


def read_across(tmp_path: Path, remote: str, compression: str | None, hashes: str | None, **more: Any) -> list[float]:
    """Read some samples, have the dataset written again, read on; gives what came until the job was told."""
    out = tmp_path / "data"
    write(out, 1, compression=compression, hashes=hashes)
    age(out)
    arguments: dict[str, Any] = dict(more)
    seen: list[float] = []
    with served(tmp_path) as url:
        arguments["remote"] = f"{url}/data" if remote == "http" else out
        if remote == "copied":
            arguments["local"] = tmp_path / "cache"
        with StreamingDataset(predownload=1, batch_size=1, **arguments) as dataset:
            samples = iter(dataset)
            seen += [float(next(samples)["x"][3]) for _ in range(NUM_SAMPLES // 3)]
            write(out, 2, compression=compression, hashes=hashes)
            with pytest.raises(ObjectChangedError, match="rewritten while this job was reading it.*Restart the job"):
                seen.extend(float(sample["x"][3]) for sample in samples)
    return seen


@pytest.mark.parametrize("hashes", [None, "sha1"])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("remote", ["in place", "copied", "http"])
def test_a_running_job_never_mixes_two_versions(
    tmp_path: Path, remote: str, compression: str | None, hashes: str | None
) -> None:
    seen = read_across(tmp_path, remote, compression, hashes)
    assert set(seen) == {1}
    assert len(seen) < NUM_SAMPLES


@pytest.mark.parametrize("kind", ["in place", "copied", "by number"])
def test_nor_does_it_if_older_data_are_put_back(tmp_path: Path, kind: str) -> None:
    """Their shards are older than the index that the job has read, as its own are."""
    for name, value, written_s in (("older", 2, time.time() - 1000), ("data", 1, time.time() - 500)):
        write(tmp_path / name, value)
        for path in (tmp_path / name).iterdir():
            os.utime(path, (written_s, written_s))
    data = tmp_path / "data"
    arguments: dict[str, Any] = {"local": data} if kind == "in place" else {"remote": data, "local": tmp_path / "cache"}
    opened = LocalDataset(data) if kind == "by number" else StreamingDataset(batch_size=1, predownload=1, **arguments)
    with opened as dataset:
        samples = map(dataset.get_item, range(NUM_SAMPLES)) if kind == "by number" else iter(dataset)
        seen = [float(next(samples)["x"][3]) for _ in range(NUM_SAMPLES // 3)]
        data.rename(tmp_path / "newer")
        (tmp_path / "older").rename(data)
        with pytest.raises(ObjectChangedError, match="rewritten while this job was reading it.*Restart the job"):
            seen.extend(float(sample["x"][3]) for sample in samples)
        assert set(seen) == {1}


def test_nor_does_it_with_a_limit(tmp_path: Path) -> None:
    """What is fetched a second time is compared with what was fetched first."""
    write(tmp_path / "data", 1)
    arguments: dict[str, Any] = {"remote": tmp_path / "data", "local": tmp_path / "cache", "batch_size": 1}
    with StreamingDataset(cache_limit=3000, **arguments) as dataset:
        assert values(dataset) == [1] * NUM_SAMPLES
        # Not as a writer does it: shards alone, with times of long ago, under the same index.
        index = (tmp_path / "data/index.json").read_bytes()
        status = (tmp_path / "data/index.json").stat()
        write(tmp_path / "data", 2)
        (tmp_path / "data/index.json").write_bytes(index)
        os.utime(tmp_path / "data/index.json", ns=(status.st_mtime_ns, status.st_mtime_ns))
        for path in (tmp_path / "data").glob("shard*"):
            os.utime(path, (0, 0))
        seen: list[float] = []
        with pytest.raises(ObjectChangedError, match="not the object that was read before"):
            seen.extend(float(sample["x"][3]) for sample in dataset)
        assert set(seen) <= {1}


def test_samples_by_number_are_of_one_version(nginx: WebServer, tmp_path: Path) -> None:
    """Offsets and rows are read by ranges, one after the other, and must belong together."""
    name = f"by_number_{tmp_path.name}"
    folder = nginx.files / name
    write(folder, 1)
    age(folder)
    with StreamingDataset(remote=f"{nginx.url}/{name}") as dataset:
        assert dataset[3]["x"][3] == 1
        write(folder, 2)
        with pytest.raises(ObjectChangedError):
            dataset[4]
        with pytest.raises(ObjectChangedError):
            dataset[50]


def test_both_files_of_a_text_shard_are_of_one_version(tmp_path: Path) -> None:
    def write_text(value: int) -> None:
        columns = {"id": "int", "text": "str"}
        with JSONWriter(out=tmp_path / "data", columns=columns, size_limit=300, exist_ok=True) as writer:
            for number in range(NUM_SAMPLES):
                text = str(value) * 2 if (number + value) % 2 else str(value) * 4
                writer.write({"id": number, "text": text})

    write_text(1)
    with StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache", batch_size=1, predownload=1) as dataset:
        samples = iter(dataset)
        seen = [next(samples)["text"] for _ in range(10)]
        write_text(2)
        with pytest.raises(ObjectChangedError):
            seen.extend(sample["text"] for sample in samples)
        assert {text[0] for text in seen} == {"1"}
    with StreamingDataset(remote=tmp_path / "data", local=tmp_path / "cache") as dataset:
        assert {sample["text"][0] for sample in dataset} == {"2"}


def test_a_new_job_reads_the_new_version_while_an_old_one_still_holds_the_old(tmp_path: Path) -> None:
    write(tmp_path / "data", 1)
    arguments: dict[str, Any] = {"remote": tmp_path / "data", "local": tmp_path / "cache", "batch_size": 1}
    with StreamingDataset(**arguments) as old:
        assert values(old) == [1] * NUM_SAMPLES
        write(tmp_path / "data", 2)
        with StreamingDataset(**arguments) as new:
            for _ in range(2):
                assert values(new) == [2] * NUM_SAMPLES
                assert values(old) == [1] * NUM_SAMPLES  # all of it was here already
    with StreamingDataset(**arguments) as new:
        assert values(new) == [2] * NUM_SAMPLES


def test_appending_disturbs_no_reader_and_fetches_only_what_is_new(tmp_path: Path) -> None:
    write(tmp_path / "data", 1)
    arguments: dict[str, Any] = {"remote": tmp_path / "data", "local": tmp_path / "cache", "batch_size": 1}
    with StreamingDataset(predownload=1, **arguments) as old:
        samples = iter(old)
        seen = [float(next(samples)["x"][3]) for _ in range(10)]
        with MDSWriter(out=tmp_path / "data", columns=COLUMNS, size_limit=600, append=True) as writer:
            writer.write({"id": NUM_SAMPLES, "x": np.full(8, 1, np.float32)})
        seen.extend(float(sample["x"][3]) for sample in samples)
        assert seen == [1] * NUM_SAMPLES
    with StreamingDataset(**arguments) as new:
        assert values(new) == [1] * (NUM_SAMPLES + 1)
        assert new.stats().downloads == 2  # the index, and one shard


def test_a_dataset_by_number_in_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "data", 1)
    dataset = LocalDataset(tmp_path / "data")
    assert dataset[0]["x"][3] == 1
    write(tmp_path / "data", 2)
    with pytest.raises(ObjectChangedError, match="rewritten"):
        dataset[NUM_SAMPLES - 1]
    assert LocalDataset(tmp_path / "data")[NUM_SAMPLES - 1]["x"][3] == 2


# --- The store is away, or says little ----------------------------------------------------------------------


def test_the_last_edition_serves_while_the_store_is_away(tmp_path: Path) -> None:
    write(tmp_path / "data", 1)
    with served(tmp_path) as url, StreamingDataset(remote=f"{url}/data", local=tmp_path / "cache") as dataset:
        assert values(dataset) == [1] * NUM_SAMPLES
    with pytest.warns(UserWarning, match="uses the copy that it fetched last"):
        dataset = StreamingDataset(remote=f"{url}/data", local=tmp_path / "cache", download_retry=0)
    with dataset:
        assert values(dataset) == [1] * NUM_SAMPLES


def test_nothing_is_asked_of_the_store_about_shards_that_are_here(tmp_path: Path) -> None:
    write(tmp_path / "data", 1)
    age(tmp_path / "data")
    with served(tmp_path) as url:
        assert all_are(read_elsewhere(remote=f"{url}/data"), 1)
        for path in (tmp_path / "data").glob("shard*"):
            path.unlink()  # any question would be an error
        assert all_are(read_elsewhere(remote=f"{url}/data"), 1)


def test_the_same_bytes_uploaded_again_disturb_no_reader_if_there_are_digests(tmp_path: Path) -> None:
    write(tmp_path / "data", 1, hashes="xxh64")
    with StreamingDataset(
        remote=tmp_path / "data", local=tmp_path / "cache", batch_size=1, predownload=1, cache_limit=3000
    ) as dataset:
        assert values(dataset) == [1] * NUM_SAMPLES
        for path in (tmp_path / "data").iterdir():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
        assert values(dataset) == [1] * NUM_SAMPLES
