"""Many shards as columns are the same shards: one by one, all at once, in a file, and parsed in bulk."""

from __future__ import annotations

import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import LocalDataset, MDSWriter, StreamingDataset
from penstock.errors import DataError
from penstock.index import mosaic_json
from penstock.index.catalog import parse_index
from penstock.index.model import Column, FileInfo, Index, IndexedShard, ObjectSpan, Part, ShardColumns, ShardLayout
from penstock.index.mosaic_json import dump_index
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYOUTS = [
    ShardLayout(format="mds", columns=(Column("id", "int", 8), Column("text", "str"))),
    ShardLayout(format="csv", columns=(Column("ü", "str"),), compression="zstd:3", hashes=("sha1",), size_limit=7),
    ShardLayout(format="xsv", columns=(), settings={"separator": "|", "newline": "\n"}),
]

files = st.builds(
    FileInfo,
    st.text(max_size=8),
    st.integers(0, 2**32 - 1),
    st.dictionaries(st.sampled_from(["sha1", "xxh64", "md5"]), st.text(max_size=5), max_size=2),
    st.booleans(),
)


@pytest.fixture
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@st.composite
def parts(draw: st.DrawFn) -> Part:
    raw, packed = draw(files), draw(st.none() | files)
    stored = packed or raw
    spans = st.builds(
        ObjectSpan,
        st.text(max_size=3),
        st.integers(0, 2**62),
        st.just(stored.num_bytes),
        st.none() | st.integers(0, 2**62),
        st.none() | st.text(min_size=1, max_size=3),
    )
    return Part(raw, packed, draw(st.none() | spans))


shards = st.builds(
    IndexedShard,
    st.sampled_from(LAYOUTS),
    st.integers(0, 2**32),
    st.lists(parts(), min_size=1, max_size=3).map(tuple),
    st.just(b"") | st.binary(max_size=9),
)


@given(st.lists(shards, max_size=6))
def test_columns_give_back_the_shards(given_shards: list[IndexedShard]) -> None:
    columns = ShardColumns.of(given_shards)
    for each in (columns, ShardColumns.load(columns.dump()), pickle.loads(pickle.dumps(columns))):
        assert list(each) == given_shards
        assert each == given_shards
        assert each[1:] == tuple(given_shards[1:])
        assert given_shards == [] or each[-1] == given_shards[-1]
        with pytest.raises(IndexError):
            each[len(given_shards)]


@given(st.lists(shards, max_size=6))
def test_sums_of_all_shards(given_shards: list[IndexedShard]) -> None:
    columns = ShardColumns.of(given_shards)
    all_parts = [shard.parts for shard in given_shards]
    assert columns.lengths.tolist() == [shard.num_samples for shard in given_shards]
    assert columns.raw_sizes.tolist() == [sum(part.raw.num_bytes for part in each) for each in all_parts]
    assert columns.stored_sizes.tolist() == [sum(part.stored.num_bytes for part in each) for each in all_parts]
    unpacked = [sum(part.raw.num_bytes for part in each if part.packed) for each in all_parts]
    assert columns.unpacked_sizes.tolist() == unpacked
    assert [columns.details_of(number) for number in range(len(columns))] == [shard.details for shard in given_shards]
    spans = [each[0].span for each in all_parts]
    found = [None if number < 0 else columns.objects[number] for number in columns.object_of.tolist()]
    assert found == [None if span is None else span.basename for span in spans]
    assert columns.is_packed == any(part.packed for each in all_parts for part in each)


def entry(number: int, compression: str | None = "zstd") -> dict[str, Any]:
    def file(suffix: str) -> dict[str, Any]:
        return {"basename": f"shard.{number:05}.mds{suffix}", "bytes": 100 + number, "hashes": {"sha1": f"{number:x}"}}

    return {
        "column_encodings": ["int"],
        "column_names": ["id"],
        "column_sizes": [8],
        "compression": compression,
        "format": "mds",
        "hashes": ["sha1"],
        "raw_data": file(""),
        "samples": number % 7,
        "size_limit": None,
        "version": 2,
        "zip_data": None if compression is None else file(".zstd"),
    }


def outcome(document: Any) -> Any:
    try:
        return list(parse_index(json.dumps(document).encode(), "here").shards)
    except DataError as error:
        return type(error), str(error)


json_values = st.none() | st.booleans() | st.integers(-2, 2**40) | st.floats(allow_nan=False) | st.text(max_size=3)
changes = st.tuples(
    st.sampled_from([*entry(0), "raw_data.basename", "raw_data.bytes", "raw_data.hashes", "zip_data.bytes", "object"]),
    json_values
    | st.sampled_from(["../x", ".git", "index.json", 5_000_000_000, {}, [], {"sha1": 1}, {"md5": "x"}, "gz", ["str"]]),
)


@settings(max_examples=200)
@given(st.sampled_from([None, "zstd"]), st.none() | changes)
def test_many_entries_at_once_are_what_they_are_one_by_one(
    compression: str | None, change: tuple[str, Any] | None
) -> None:
    entries = [entry(number, compression) for number in range(40)]
    if change is not None:
        target: Any = entries[17]
        *path, last = change[0].split(".")
        for name in path:
            target = target[name]
        if target is not None:
            target[last] = change[1]
    document = {"version": 2, "shards": entries}
    one_by_one = outcome(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mosaic_json, "_MANY", 2)
        assert outcome(document) == one_by_one


def write_large(folder: Path, value: int) -> None:
    """Write a dataset of one shard, and an index that names it and 6000 others."""
    with MDSWriter(out=str(folder), columns={"id": "int"}, exist_ok=True) as writer:
        writer.write({"id": value})
    shard = parse_index((folder / "index.json").read_bytes(), "here").shards[0]
    others = [
        IndexedShard(shard.layout, 1, (Part(FileInfo(f"part-{number:09}.mds", shard.parts[0].raw.num_bytes)),))
        for number in range(6000)
    ]
    (folder / "index.json").write_bytes(dump_index(Index((shard, *others))))


def age(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10**11))


def forbid_parsing(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("parsed again")

    patch.setattr("penstock.reading.local_folder.parse_index", fail)
    patch.setattr("penstock.cache.cache.parse_index_file", fail)


@pytest.mark.parametrize("is_fetched", [False, True])
@pytest.mark.usefixtures("places")
def test_a_large_index_is_parsed_once(tmp_path: Path, is_fetched: bool) -> None:
    folder = tmp_path / "data"
    remote, local = (folder, tmp_path / "local") if is_fetched else (None, folder)
    write_large(folder, 1)
    age(folder / "index.json")
    for again in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if again:
                forbid_parsing(patch)
            with StreamingDataset(remote=remote, local=local) as dataset:
                assert dataset[0] == {"id": 1}
                assert dataset.num_shards == 6001
            if not is_fetched:
                assert len(LocalDataset(str(folder))) == 6001
    write_large(folder, 2)
    with StreamingDataset(remote=remote, local=local) as dataset:
        assert dataset[0] == {"id": 2}


def test_a_cache_that_cannot_be_written_to_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").touch()  # no folder can be made there
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    write_large(tmp_path / "data", 3)
    age(tmp_path / "data" / "index.json")
    assert LocalDataset(str(tmp_path / "data"))[0] == {"id": 3}
