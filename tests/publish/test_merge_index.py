"""merge_index: nested, parallel, in any order, of any format, here or in a store."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from penstock import JSONWriter, LocalDataset, MDSWriter, merge_index
from penstock.errors import BadIndexError, ConfigError, ObjectNotFoundError, StoreTimeoutError
from penstock.index.catalog import parse_index
from penstock.storage.base import open_store

if TYPE_CHECKING:
    from pathlib import Path


def write(out: Any, numbers: range, kind: type[MDSWriter] = MDSWriter, **options: Any) -> None:
    with kind(out=out, columns={"x": "int"}, size_limit=options.pop("size_limit", 260), **options) as writer:
        for x in numbers:
            writer.write({"x": x})


def numbers(folder: Path) -> list[int]:
    return [sample["x"] for sample in LocalDataset(folder)]


def test_partitions_at_any_depth(tmp_path: Path) -> None:
    write(tmp_path / "b" / "deep" / "er", range(20, 30))
    write(tmp_path / "a", range(20), compression="zstd", hashes="sha1")
    write(tmp_path / "c", range(30, 35))
    merge_index(tmp_path)
    assert numbers(tmp_path) == list(range(35))
    names = [shard.name for shard in LocalDataset(tmp_path).index.shards]
    assert names[0] == "a/shard.00000.mds"
    assert "b/deep/er/shard.00000.mds" in names
    assert list(LocalDataset(tmp_path, validate_hash=None)) == [{"x": x} for x in range(35)]


def test_hidden_folders_are_no_part_of_a_dataset(tmp_path: Path) -> None:
    write(tmp_path / "a", range(5))
    write(tmp_path / ".cache" / "b", range(7))
    merge_index(tmp_path)
    assert numbers(tmp_path) == list(range(5))
    with pytest.raises(ConfigError, match=r"refer to shards in '\.cache/b'"):
        merge_index([tmp_path / ".cache" / "b" / "index.json"], tmp_path)


def test_json_shards_are_not_taken_for_indexes(tmp_path: Path) -> None:
    write(tmp_path / "a", range(5), JSONWriter)  # type: ignore[arg-type]
    write(tmp_path / "b", range(5, 9), JSONWriter)  # type: ignore[arg-type]
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == list(range(9))


def test_merging_again_and_merging_merged_ones(tmp_path: Path) -> None:
    for part in range(4):
        write(tmp_path / f"half{part // 2}" / f"part{part}", range(part * 10, part * 10 + 10))
    merge_index(tmp_path / "half0")
    merge_index(tmp_path)
    first = (tmp_path / "index.json").read_bytes()
    merge_index(tmp_path)
    assert (tmp_path / "index.json").read_bytes() == first
    assert numbers(tmp_path) == list(range(40))


def test_indexes_that_disagree(tmp_path: Path) -> None:
    write(tmp_path / "half" / "part", range(10))
    merge_index(tmp_path / "half")
    write(tmp_path / "half" / "part", range(5), exist_ok=True)
    with pytest.raises(BadIndexError, match=r"two indexes describe half/part/shard\.00000\.mds differently"):
        merge_index(tmp_path)


def test_any_order_of_arrival_gives_the_same(tmp_path: Path) -> None:
    urls = []
    for part in range(3):
        write(tmp_path / f"part{part}", range(part * 3, part * 3 + 3))
        urls.append(str(tmp_path / f"part{part}" / "index.json"))
    results = set()
    for order in itertools.permutations(urls):
        merge_index(list(order), str(tmp_path))
        results.add((tmp_path / "index.json").read_bytes())
    merge_index(tmp_path)
    results.add((tmp_path / "index.json").read_bytes())
    merge_index(index_file_urls=[*urls, urls[0]], out=tmp_path)
    results.add((tmp_path / "index.json").read_bytes())
    assert len(results) == 1
    assert numbers(tmp_path) == list(range(9))


def write_part(job: tuple[str, int]) -> tuple[str, str]:
    remote, part = job
    write(f"{remote}/group{part % 2}/{part:03}", range(part * 10, part * 10 + 10), compression="zstd")
    return "", f"{remote}/group{part % 2}/{part:03}/index.json"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_parallel_writers(tmp_path: Path, scheme: str) -> None:
    remote = f"{scheme}{tmp_path}/all"
    with ProcessPoolExecutor(2) as pool:
        urls = [url for _, url in pool.map(write_part, [(remote, part) for part in range(4)])]
    merge_index(urls[::-1], remote)
    assert sorted(numbers(tmp_path / "all")) == list(range(40))
    named = (tmp_path / "all" / "index.json").read_bytes()
    merge_index(remote)
    assert (tmp_path / "all" / "index.json").read_bytes() == named


def test_a_remote_root(tmp_path: Path) -> None:
    for part in range(3):
        write(f"memory://test-merge/set/p{part}", range(part, part + 1))
    merge_index("memory://test-merge/set")
    store = open_store("memory://test-merge/set")
    merged = parse_index(store.read("index.json"), "")
    assert [shard.name for shard in merged.shards] == [f"p{part}/shard.00000.mds" for part in range(3)]
    # Of a pair, the local index is read if it is there, and the joint index is kept here if asked for.
    store.download("p1/index.json", tmp_path / "p1.json")
    pairs = [
        (str(tmp_path / "p1.json"), "memory://test-merge/set/p1/index.json"),
        (str(tmp_path / "none"), "memory://test-merge/set/p0/index.json"),
    ]
    merge_index(pairs, (tmp_path / "local", "memory://test-merge/set"))
    merged = parse_index((tmp_path / "local" / "index.json").read_bytes(), "")
    assert [shard.name for shard in merged.shards] == ["p0/shard.00000.mds", "p1/shard.00000.mds"]
    merge_index(pairs, (tmp_path / "gone", "memory://test-merge/set"), keep_local=False)
    assert not (tmp_path / "gone").exists()


def test_a_joint_index_made_elsewhere_lies_over_the_common_root(tmp_path: Path) -> None:
    urls = []
    for part in ("x/0", "y/1"):
        write(tmp_path / "all" / part, range(1))
        urls.append(tmp_path / "all" / part / "index.json")
    merge_index(urls, tmp_path / "elsewhere")
    merged = parse_index((tmp_path / "elsewhere/index.json").read_bytes(), "")
    assert [shard.name for shard in merged.shards] == ["x/0/shard.00000.mds", "y/1/shard.00000.mds"]
    merge_index(urls[:1], tmp_path / "single")
    assert b'"0/shard.00000.mds"' in (tmp_path / "single/index.json").read_bytes()


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), ("a.json", "out")])
def test_any_other_call_is_an_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"call merge_index\(out\)"):
        merge_index(*arguments)


def test_nothing_to_merge(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"no index\.json in any folder below"):
        merge_index(tmp_path)
    with pytest.raises(ConfigError, match="is empty"):
        merge_index([], tmp_path)
    with pytest.raises(ObjectNotFoundError):
        merge_index([tmp_path / "missing" / "index.json"], tmp_path)
    with pytest.raises(ConfigError, match="not a pair"):
        merge_index([("a", "b", "c")], tmp_path)


def test_reading_in_time(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3))
    with pytest.raises(StoreTimeoutError, match="raise download_timeout"):
        merge_index(tmp_path, download_timeout=-1)
