"""Names with escapes in URLs: each URL of a file that is told finds this file again, whatever its name is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock import JsonShardedSource, Stream, StreamingDataset, expand_data_files
from penstock.errors import ObjectNotFoundError
from penstock.storage.url_names import join_url
from tests.in_place.kinds import KINDS
from tests.servers.sshd import running_sshd
from tests.storage.test_url_names import KEYS
from tests.streaming import write_samples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.servers.nginx import WebServer

JSONL = KINDS["jsonl"]


def write_names(folder: Path) -> Path:
    """Write a file of ten samples of its own under each of the names."""
    folder.mkdir(parents=True)
    for number, key in enumerate(KEYS):
        JSONL.write(folder / key, range(10 * number, 10 * number + 10))
    return folder


def numbers_of(remote: Any, **options: Any) -> list[int]:
    with StreamingDataset(remote=remote, shuffle=False, batch_size=1, **options) as dataset:
        return JSONL.numbers(dataset)


def numbers_in(source: JsonShardedSource) -> list[int]:
    return [number for name in source.shard_names for number in JSONL.numbers(source.open_shard(name))]


def check_urls(urls: Sequence[str], keys: Sequence[str], **options: Any) -> None:
    """Read the files alone and together, as sources and as streams, and by the names that are told of them."""
    rows = {key: list(range(10 * number, 10 * number + 10)) for number, key in enumerate(KEYS)}
    for url, key in zip(urls, keys, strict=True):
        source = JsonShardedSource(url, **options)
        assert numbers_in(source) == rows[key]
        assert numbers_in(JsonShardedSource(source.shard_names[0], **options)) == rows[key]
    wanted = [number for key in keys for number in rows[key]]
    assert numbers_of(list(urls), **options) == wanted
    source = JsonShardedSource(urls, **options)
    assert numbers_in(source) == wanted
    assert expand_data_files(source.shard_names, **options) == source.shard_names
    with StreamingDataset(streams=[Stream(source=source)], shuffle=False, batch_size=1) as dataset:
        assert sorted(JSONL.numbers(dataset)) == sorted(wanted)


def test_on_the_web(nginx: WebServer) -> None:
    write_names(nginx.files / "a b")
    for root in (f"{nginx.url}/a%20b", f"{nginx.url}/a b"):
        check_urls([join_url(root, key) for key in KEYS], KEYS)
    assert numbers_of(f"{nginx.url}/a%20b/x%20y.jsonl") == numbers_of(f"{nginx.url}/a b/x y.jsonl") == list(range(10))
    headers = {"headers": {"X-Token": "1"}}  # these are sent by a client of our own
    check_urls([join_url(f"{nginx.url}/a%20b", key) for key in KEYS], KEYS, storage_options=headers)
    with pytest.raises(ObjectNotFoundError, match=f"{nginx.url}/a%20b/none%20%23.jsonl"):
        numbers_of(f"{nginx.url}/a%20b/none%20%23.jsonl")


def test_files(tmp_path: Path) -> None:
    folder = write_names(tmp_path / "a b#c")
    root = f"file://{tmp_path}/a%20b%23c"
    urls = expand_data_files(f"{root}/*.jsonl")
    assert urls == expand_data_files(root)
    assert sorted(urls) == sorted(join_url(root, key) for key in KEYS)
    check_urls([join_url(root, key) for key in KEYS], KEYS)
    assert sorted(numbers_of(f"{root}/*.jsonl")) == sorted(numbers_of(root)) == list(range(10 * len(KEYS)))
    assert numbers_of(f"file://{tmp_path}/a b#c/a#b.jsonl") == numbers_of(folder / "a#b.jsonl")
    for name in ("what?", "what%3F"):
        assert numbers_of(f"{root}/{name}.jsonl") == numbers_of(folder / "what?.jsonl")
    check_urls([str(folder / key) for key in KEYS], KEYS)


def test_a_split_and_a_file_beside_the_shards(nginx: WebServer) -> None:
    write_samples(nginx.files / "d d" / "s%20 t", 10)
    (nginx.files / "d d" / "s%20 t" / "clip #1.mp4").write_bytes(b"frames")
    with StreamingDataset(remote=f"{nginx.url}/d%20d", split="s%20 t", shuffle=False, batch_size=1) as dataset:
        assert [sample["id"] for sample in dataset] == list(range(10))
        for url in ("clip #1.mp4", f"{nginx.url}/d%20d/s%2520%20t/clip%20%231.mp4"):
            assert dataset.fetch(url).read_bytes() == b"frames"


def test_any_spelling_is_the_same_file(tmp_path: Path) -> None:
    folder = write_names(tmp_path / "a b")
    one, other = (JsonShardedSource(f"file://{folder}/{name}.jsonl") for name in ("x%20y", "x y"))
    assert one.shard_names == other.shard_names == [f"file://{folder}/x%20y.jsonl"]
    assert one.fingerprint == other.fingerprint
    for name in (f"file://{folder}/x y.jsonl", f"file://{tmp_path}/a%20b/x%20y.jsonl", f"{folder}/x y.jsonl"):
        assert one.shard_number(name) == 0
    assert one.shard_number(f"{folder}/x%20y.jsonl") < 0


def test_sftp(tmp_path: Path) -> None:
    folder = write_names(tmp_path / "a b")
    keys = KEYS[:4]
    (tmp_path / "sshd").mkdir()
    with running_sshd(tmp_path / "sshd") as server:
        root = server.url(str(folder).replace(" ", "%20"))
        check_urls([join_url(root, key) for key in keys], keys, storage_options=server.options)
        found = expand_data_files(f"{root}/x*.jsonl", server.options)
        assert sorted(found) == sorted(join_url(root, key) for key in keys if key.startswith("x"))
