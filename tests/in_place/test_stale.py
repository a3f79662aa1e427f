"""Files that change: noticed when they are fetched or opened; what is unchanged is not read again."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataset
from penstock.errors import CorruptShardError, ObjectChangedError, ResumeError
from penstock.fetcher.copies import digest_of
from penstock.index.files_json import STORED_NAME
from tests.in_place.kinds import KINDS, Kind
from tests.servers.faults import FaultProxy
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.nginx import WebServer

JSONL, PARQUET = KINDS["jsonl"], KINDS["parquet"]


@contextmanager
def counted(server: WebServer, folder: Path) -> Iterator[tuple[FaultProxy, list[str]]]:
    """Count what is asked of a server for the files of a folder."""
    with FaultProxy(server.url) as proxy:
        yield proxy, [f"{proxy.url}/{folder.name}/{path.name}" for path in sorted(folder.iterdir())]


def touch_later(path: Path) -> None:
    """Set a file a time of its own, as if it had been written a while after the others."""
    status = path.stat()
    os.utime(path, (status.st_atime, status.st_mtime + 10))


@pytest.mark.parametrize("name", ["jsonl", "parquet", "jsonl.gz", "webdataset"])
def test_a_file_that_changes_while_a_job_reads_is_noticed(nginx: WebServer, name: str) -> None:
    kind = KINDS[name]
    folder = kind.write_files(nginx.files / f"changes-{name}", 2)
    urls = [f"{nginx.url}/{folder.name}/{path.name}" for path in sorted(folder.iterdir())]
    with StreamingDataset(remote=urls) as dataset:
        assert kind.numbers([dataset[0]]) == [0]
        kind.write(folder / f"part-1{kind.suffix}", range(150, 200))
        touch_later(folder / f"part-1{kind.suffix}")
        try:
            found: Any = kind.numbers([dataset[60]])
        except ObjectChangedError as error:
            found = str(error)
        # Or it reads the file as it was, whose bytes were kept while it was indexed.
        assert found == [60] or re.search(r"part-1.* (changed after|was changed or)", found)
    with StreamingDataset(remote=urls) as dataset:
        assert kind.numbers([dataset[0], dataset[60]]) == [0, 160]


@pytest.mark.parametrize("kind", [JSONL, PARQUET], ids=lambda kind: kind.name)
def test_a_file_of_this_machine_that_changes_is_noticed(tmp_path: Path, kind: Kind) -> None:
    folder = kind.write_files(tmp_path / "data", 2)
    with StreamingDataset(remote=folder) as dataset:
        kind.write(folder / f"part-1{kind.suffix}", range(150, 200))
        touch_later(folder / f"part-1{kind.suffix}")
        with pytest.raises(ObjectChangedError, match=r"part-1.* (changed after|was changed or)"):
            dataset[60]
    with StreamingDataset(remote=folder) as dataset:
        assert kind.numbers([dataset[60]]) == [160]


def test_what_is_unchanged_is_not_read_again(nginx: WebServer) -> None:
    folder = JSONL.write_files(nginx.files / "unchanged", 3)
    with counted(nginx, folder) as (proxy, urls):
        with StreamingDataset(remote=urls) as dataset:
            assert dataset.num_samples == 150
        proxy.counts.clear()
        with StreamingDataset(remote=urls) as dataset:
            assert dataset.num_samples == 150
        assert proxy.counts["requests"] == 3  # what each of them is now
        JSONL.write(folder / "part-3.jsonl", range(150, 160))
        with StreamingDataset(remote=[*urls, f"{proxy.url}/unchanged/part-3.jsonl"]) as dataset:
            assert dataset.num_samples == 160
        # The new one was read, and an index was looked for beside them: no other file was.
        assert proxy.counts["bytes"] < 3 * (folder / "part-0.jsonl").stat().st_size


def test_an_index_beside_the_files_spares_reading_them(nginx: WebServer, tmp_path: Path) -> None:
    folder = JSONL.write_files(nginx.files / "beside", 3)
    with counted(nginx, folder) as (proxy, urls):
        with StreamingDataset(remote=urls, local=tmp_path / "first") as dataset:
            samples = JSONL.numbers(dataset)
        (made,) = (tmp_path / "first" / ".penstock" / "editions").glob("*/index.json")
        (folder / STORED_NAME).write_bytes(made.read_bytes())
        proxy.counts.clear()
        with StreamingDataset(remote=urls, local=tmp_path / "second") as dataset:
            assert dataset.num_samples == 150
            size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
            assert proxy.counts["bytes"] < size / 2
            assert JSONL.numbers(dataset) == samples


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"catalog": "files", "version": 9}',
        '{"catalog": "files", "version": 1, "settings": {}, "layouts": [], "files": [{"name": "../x"}]}',
    ],
)
def test_an_index_beside_the_files_that_is_wrong_is_not_used(tmp_path: Path, text: str) -> None:
    folder = JSONL.write_files(tmp_path / "data", 2)
    (folder / STORED_NAME).write_text(text)
    with StreamingDataset(remote=folder) as dataset:
        assert JSONL.numbers(dataset) == list(range(100))


@pytest.mark.parametrize("name", ["about.json", "index.json"])
@pytest.mark.parametrize("damage", ["", "{}", "[" * 100_000, "\0" * 500, '{"catalog": "files", "version": 1'])
def test_a_kept_index_that_was_damaged_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    folder = JSONL.write_files(tmp_path / "data", 2)
    for _ in range(2):
        with private_places(), StreamingDataset(remote=folder, local=tmp_path / "local") as dataset:
            assert JSONL.numbers(dataset) == list(range(100))
        for path in (tmp_path / "local" / ".penstock" / "editions").glob(f"*/{name}"):
            path.write_text(damage)
    with private_places(), StreamingDataset(remote=folder, local=tmp_path / "local") as dataset:
        assert JSONL.numbers(dataset) == list(range(100))


def test_an_index_beside_the_files_that_is_old_is_not_believed(tmp_path: Path, places: Path) -> None:
    folder = JSONL.write_files(tmp_path / "data", 2)
    with StreamingDataset(remote=folder) as dataset:
        assert dataset.num_samples == 100
    (made,) = (places / "cache").glob("*/.penstock/editions/*/index.json")
    (folder / STORED_NAME).write_bytes(made.read_bytes())
    JSONL.write(folder / "part-1.jsonl", range(50, 70))
    with private_places(), StreamingDataset(remote=folder) as dataset:  # where nothing is known yet
        assert JSONL.numbers(dataset) == list(range(70))


def test_a_state_belongs_to_names_sizes_and_rows(tmp_path: Path) -> None:
    folder = JSONL.write_files(tmp_path / "data")
    options: dict[str, Any] = {"shuffle": True, "batch_size": 10}
    with StreamingDataset(remote=folder, **options) as dataset:
        samples = iter(dataset)
        for _ in range(30):
            next(samples)
        state = json.loads(json.dumps(dataset.state_dict()))
    (folder / "part-3.jsonl").rename(folder / "part-4.jsonl")
    with StreamingDataset(remote=folder, **options) as dataset:
        dataset.load_state_dict(state)
        with pytest.raises(ResumeError, match="have changed since the state was saved"):
            next(iter(dataset))


def write_impossible(path: Path, rows: range) -> None:
    """Write an Arrow file whose metadata claim more rows than any file can have: no index can say so."""
    KINDS["arrow"].write(path, rows)
    data, length = path.read_bytes(), (25).to_bytes(8, "little")
    assert length in data
    path.write_bytes(data.replace(length, (2**50).to_bytes(8, "little")))


def test_a_damaged_file_is_an_error_only_while_it_is_damaged(tmp_path: Path) -> None:
    """Its index is not kept, so what replaces it is read."""
    kind, folder = KINDS["arrow"], tmp_path / "data"
    folder.mkdir()
    write_impossible(folder / "part-0.arrow", range(50))
    for _ in range(2):
        with pytest.raises(CorruptShardError, match=r"part-0\.arrow"):
            StreamingDataset(remote=folder, local=tmp_path / "cache")
    kind.write(folder / "part-0.arrow", range(50))
    with StreamingDataset(remote=folder, local=tmp_path / "cache") as dataset:
        assert sorted(kind.numbers(dataset)) == list(range(50))


def test_an_index_that_an_earlier_release_kept_and_that_does_not_parse_is_made_anew(tmp_path: Path) -> None:
    kind = KINDS["arrow"]
    folder, cache = kind.write_files(tmp_path / "data", 1, 50), tmp_path / "cache"
    with StreamingDataset(remote=folder, local=cache):
        pass
    (about_path,) = (cache / ".penstock" / "editions").glob("*/about.json")
    index = about_path.with_name("index.json")
    index.write_bytes(index.read_bytes().replace(b"[[50,", b"[[999999999999999999,"))
    about = json.loads(about_path.read_bytes())
    about_path.write_text(json.dumps({**about, "index_digest": digest_of(index), "listing": "of another release"}))
    with StreamingDataset(remote=folder, local=cache) as dataset:
        assert sorted(kind.numbers(dataset)) == list(range(50))
