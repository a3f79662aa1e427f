"""The index of files: what was dumped is parsed again, and what makes no sense is refused, never a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadIndexError
from penstock.index import files_json
from penstock.index.catalog import parse_index
from penstock.index.files_json import FileShard, IndexedFile, dump_files, load_files, shards_of
from penstock.index.model import Column, ShardColumns, ShardLayout

STORED = Path(__file__).parents[1] / "golden" / "fuzz" / "files_of_csv.json"
LAYOUTS = [
    ShardLayout(format="jsonl", columns=(Column("a", "json"),)),
    ShardLayout(format="parquet", columns=(Column("a", "int64", 8), Column("b", "string")), settings={"x": [1]}),
    ShardLayout(format="jsonl", columns=(), compression="gz"),
]


@st.composite
def indexed_files(draw: st.DrawFn) -> list[IndexedFile]:
    files = []
    for number in range(draw(st.integers(0, 4))):
        layout = draw(st.sampled_from(LAYOUTS))
        sizes = draw(st.lists(st.integers(1, 1000), max_size=3))
        shards, begin = [], 0
        for size in sizes:
            details = draw(st.binary(max_size=5))
            shards.append(
                FileShard(draw(st.integers(0, 99)), begin, begin + size, size * 3, draw(st.booleans()), details)
            )
            begin += size
        version = draw(st.none() | st.text(max_size=4))
        is_whole = layout.compression is not None and len(shards) == 1
        num_bytes = begin + (0 if is_whole else draw(st.integers(0, 9)))
        files.append(IndexedFile(f"part-{number}/ü", num_bytes, version, layout, tuple(shards)))
    return files


@given(indexed_files())
def test_what_was_dumped_is_read_again(files: list[IndexedFile]) -> None:
    data = dump_files(files, {"types": {"a": "int"}})
    assert load_files(json.loads(data), "here") == files
    index = parse_index(data, "here")
    shards = [shard for file in files for shard in shards_of(file)]
    assert list(index.shards) == [*ShardColumns.of(shards)]
    assert index.num_samples == sum(shard.num_samples for shard in shards)
    assert dump_files(files, {"types": {"a": "int"}}) == data
    names = [shard.name for shard in index.shards]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "layout", [LAYOUTS[0], LAYOUTS[1], ShardLayout(format="mp4", columns=())], ids=lambda each: each.format
)
def test_many_files_become_the_columns_of_their_shards(layout: ShardLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_json, "_SHARDS_AT_ONCE", 7)
    files = []
    for number in range(20):
        shards = [FileShard(at % 3, 10 * at, 10 * at + 9, 30, at % 2 == 0, b"x" * at) for at in range(number % 5)]
        whole = (FileShard(4, 0, 90, 95),)
        version = None if number % 3 else f"v{number}"
        files.append(IndexedFile(f"d/ü-{number}", 90, version, layout, whole if number == 7 else tuple(shards)))
    found = parse_index(dump_files(files, {}), "here").columns
    assert list(found) == [shard for file in files for shard in shards_of(file)]
    built = ShardColumns.of(shard for file in files for shard in shards_of(file))
    for name in ("lengths", "raw_sizes", "stored_sizes", "unpacked_sizes", "object_of"):
        assert getattr(found, name).tolist() == getattr(built, name).tolist(), name
    assert (found.objects, found.content, found.versions) == (built.objects, built.content, built.versions)
    assert found == ShardColumns.load(found.dump())


def test_names_and_sizes_tell_data_apart_and_versions_do_not() -> None:
    def index_of(name: str = "a", num_bytes: int = 100, version: str = "1") -> Any:
        file = IndexedFile(name, num_bytes, version, LAYOUTS[0], (FileShard(5, 0, 50, 50),))
        return parse_index(dump_files([file], {}), "here").columns

    assert index_of().content == index_of(version="2").content != ""
    assert index_of().versions != index_of(version="2").versions
    assert len({index_of().content, index_of(name="b").content, index_of(num_bytes=101).content}) == 3


def damaged(**changes: Any) -> bytes:
    file = {"name": "a", "bytes": 100, "version": None, "layout": 0, "shards": [[5, 0, 50, 50]]}
    layout: dict[str, Any] = {"format": "jsonl", "columns": [["a", "json", None]], "compression": None, "settings": {}}
    document = {"catalog": "files", "version": 1, "settings": {}, "layouts": [layout], "files": [file]}
    for path, value in changes.items():
        *outer, last = path.split("__")
        place: Any = document
        for key in outer:
            place = place[int(key)] if key.isdigit() else place[key]
        place[int(last) if last.isdigit() else last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"files": {}},
        {"files": [1]},
        {"layouts": None},
        {"layouts__0__format": "exe"},
        {"layouts__0__format": "mds"},
        {"layouts__0__format": ["jsonl"]},
        {"layouts__0__columns": [["a"]]},
        {"layouts__0__compression": 3},
        {"layouts__0__compression": "gz", "files__0__shards": [[1, 0, 1, 1], [1, 1, 102, 1]]},
        {"files__0__name": "../a"},
        {"files__0__name": "/etc/passwd"},
        {"files__0__name": "x/.ssh/a"},
        {"files__0__name": 3},
        {"files__0__bytes": -1},
        {"files__0__bytes": 1e9},
        {"files__0__version": 3},
        {"files__0__layout": 1},
        {"files__0__layout": -1},
        {"files__0__shards": [[5, 0, 101, 50]]},
        {"files__0__shards": [[5, 60, 50, 50]]},
        {"files__0__shards": [[2**60, 0, 50, 50]]},
        {"files__0__shards": [[5, 0, 50]]},
        {"files__0__shards": [[5, 0, 50, 50, 1, "no base64!"]]},
        {"files__0__shards": [[5, 0, 50, True]]},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    parse_index(damaged(), "here")
    with pytest.raises(BadIndexError, match=r"Index file at here.* make it again"):
        parse_index(damaged(**changes), "here")


@pytest.mark.parametrize(
    "shard", [[], "abc", "", [1, 8, 48], [1, 8, 48, 40, 1], [1, 8, 48, 40, 1, "", 2], {"a": 1}, {}, None, 3]
)
def test_a_shard_that_is_none_is_an_error_of_the_index(shard: Any) -> None:
    document = json.loads(STORED.read_bytes())
    assert parse_index(json.dumps(document).encode(), "here").num_samples == 15
    document["files"][1]["shards"].append(shard)
    with pytest.raises(BadIndexError, match=r"^Index file at here"):
        parse_index(json.dumps(document).encode(), "here")
