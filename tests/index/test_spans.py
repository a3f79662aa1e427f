"""Parts of shards that lie within larger objects: told in an index, moved by a merge, read where they lie."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock import LocalDataset, MDSWriter, StreamingDataset
from penstock.errors import BadIndexError, CorruptShardError, IndexFieldError
from penstock.index.catalog import parse_index
from penstock.index.model import FileInfo, ObjectSpan, Part
from penstock.index.mosaic_json import dump_index
from penstock.publish.merge_index import merge_indexes
from tests.streaming import private_places

if TYPE_CHECKING:
    from pathlib import Path


def write_within(folder: Path, **options: Any) -> dict[str, Any]:
    """Write a dataset whose shards are one file, with something before each; give its index."""
    with MDSWriter(out=folder, columns={"id": "int"}, size_limit=200, hashes="sha1", **options) as writer:
        for number in range(20):
            writer.write({"id": number})
    document: dict[str, Any] = json.loads((folder / "index.json").read_text())
    with (folder / "all.bin").open("wb") as out:
        for entry in document["shards"]:
            stored = entry["zip_data"] or entry["raw_data"]
            out.write(b"something")
            stored |= {"object": "all.bin", "offset": out.tell()}
            path = folder / stored["basename"]
            out.write(path.read_bytes())
            path.unlink()
    (folder / "index.json").write_text(json.dumps(document))
    return document


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_dataset_within_one_file(tmp_path: Path, compression: str | None) -> None:
    document = write_within(tmp_path, compression=compression)
    dataset = LocalDataset(tmp_path, validate_hash="sha1")
    assert len(dataset.index.shards) > 1
    assert [sample["id"] for sample in dataset] == list(range(20))
    assert json.loads(dump_index(dataset.index)) == document
    moved = merge_indexes({"a/b": dataset.index})
    assert {part.span.basename for shard in moved.shards for part in shard.parts if part.span} == {"a/b/all.bin"}
    (tmp_path / "all.bin").write_bytes((tmp_path / "all.bin").read_bytes()[:-1])
    with pytest.raises(CorruptShardError, match=r"all.bin ends before byte .* download or write it again"):
        list(LocalDataset(tmp_path))


def test_what_cannot_be_a_span_is_refused(tmp_path: Path) -> None:
    document = write_within(tmp_path)
    for changes in ({"offset": -1}, {"offset": "1"}, {"offset": None}, {"offset": 2**63}, {"object": 3}):
        entry = document["shards"][0]
        changed = {"version": 2, "shards": [entry | {"raw_data": entry["raw_data"] | changes}]}
        with pytest.raises(IndexFieldError, match="shard 0 "):
            parse_index(json.dumps(changed).encode(), "here")
    document["shards"][0]["raw_data"]["object"] = "../x"
    with pytest.raises(BadIndexError, match=r"names the file '\.\./x'"):
        parse_index(json.dumps(document).encode(), "here")
    for span in (ObjectSpan("b", -1, 5), ObjectSpan("b", 0, 6)):
        with pytest.raises(BadIndexError, match="a of 5 bytes cannot be"):
            Part(FileInfo("a", 5), span=span)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_parts_of_one_object_are_fetched(tmp_path: Path, compression: str | None) -> None:
    write_within(tmp_path / "data", compression=compression)
    with private_places(), StreamingDataset(remote=tmp_path / "data", local=tmp_path / "local") as dataset:
        assert [sample["id"] for sample in dataset] == list(range(20))
        dataset.close()
        assert not (tmp_path / "local" / "all.bin").exists()
