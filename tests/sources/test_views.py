"""Views: some rows by their numbers, wherever a source or a stream goes."""

from __future__ import annotations

import json
import random
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import (
    MemoryShardedSource,
    ParquetShardedSource,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from penstock.errors import ConfigError, ResumeError
from tests.streaming import write_samples

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sources.base import ShardedSource

NUM_ROWS = 240


def write_parquet(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for number in range(12):  # names of which 10 sorts before 2
        ids = range(number * 20, (number + 1) * 20)
        pq.write_table(
            pa.table({"id": ids, "kind": [i % 7 for i in ids]}), folder / f"{number}.parquet", row_group_size=6
        )
    return folder


def write_lines(folder: Path) -> Path:
    folder.mkdir()
    for number in range(12):
        lines = [json.dumps({"id": i, "kind": i % 7}) for i in range(number * 20, (number + 1) * 20)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(params=["mds", "dataset of parquet", "dataset of lines", "parquet", "memory", "mapped"])
def numbered(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return datasets and sources whose rows are 0 … 239 under the name `id`."""
    kind = request.param
    if kind == "mds":
        return StreamingDataset(local=write_samples(tmp_path / "mds", NUM_ROWS), shuffle=True)
    if kind == "dataset of parquet":
        return StreamingDataset(remote=str(write_parquet(tmp_path / "parquet")), local=str(tmp_path / "cache"))
    if kind == "parquet":
        return ParquetShardedSource(str(write_parquet(tmp_path / "parquet") / "*.parquet"))
    rows = [{"id": number, "kind": number % 7} for number in range(NUM_ROWS)]
    memory = MemoryShardedSource(rows, num_shards=5, fingerprint="rows")
    if kind == "dataset of lines":
        return StreamingDataset(remote=str(write_lines(tmp_path / "lines")), local=str(tmp_path / "cache"))
    return memory if kind == "memory" else memory.map(with_square)


def with_square(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "square": sample["id"] ** 2}


def is_even(sample: dict[str, Any]) -> bool:
    return not sample["id"] % 2


def ids_of(samples: Any) -> list[int]:
    return [int(sample["id"]) for sample in samples]


def in_stored_order(source: Any) -> list[int]:
    return ids_of(source.as_source() if hasattr(source, "as_source") else source)


def streamed(source: Any, **settings: Any) -> list[int]:
    with StreamingDataset(streams=[Stream(source=source)], **settings) as dataset:
        return ids_of(dataset)


def random_view(chance: random.Random, source: ShardedSource, ids: list[int]) -> tuple[ShardedSource, list[int]]:
    """Return a view of a view, and its ids computed by hand."""
    count = len(ids)
    begin, end = sorted(chance.randrange(count + 1) for _ in range(2))
    match chance.randrange(6):
        case 0:
            return source.take(end), ids[:end]
        case 1:
            return source.skip(begin), ids[begin:]
        case 2:
            step = chance.randrange(1, 4)
            return source.select(slice(begin, end, step)), ids[begin:end:step]
        case 3:
            chosen = chance.sample(range(-count, 0), count // 2) if count else []
            return source.select(chosen), [ids[place] for place in sorted(place + count for place in chosen)]
        case 4:
            mask = np.array([chance.random() < 0.6 for _ in ids], bool)
            return source.select(mask), [each for each, is_in in zip(ids, mask, strict=True) if is_in]
        case _:
            parts, part = chance.randrange(1, 4), 0
            return source.shard(part, parts), ids[part * count // parts : (part + 1) * count // parts]


def test_views_of_views_are_the_ids_computed_by_hand(numbered: Any) -> None:
    whole = in_stored_order(numbered)
    assert sorted(whole) == list(range(NUM_ROWS))
    for seed in range(12):
        chance = random.Random(seed)
        view, ids = random_view(chance, numbered, whole)
        for _ in range(chance.randrange(3)):
            view, ids = random_view(chance, view, ids)
        assert len(view) == len(ids)
        assert ids_of(view) == ids
        if len(ids) > 3 and view.has_random_rows:
            assert view[3]["id"] == ids[3]  # type: ignore[index]
            assert view[-1]["id"] == ids[-1]  # type: ignore[index]


def test_a_view_is_a_stream_like_any_other(numbered: Any) -> None:
    view = numbered.select(slice(5, 200, 3))
    ids = ids_of(view)
    assert streamed(view) == ids
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 4}
    alone = streamed(view, **settings)
    assert alone != ids
    assert sorted(alone) == sorted(ids)
    ranks = [streamed(view, rank=rank, world_size=2, num_nodes=1, epoch_end="uneven", **settings) for rank in (0, 1)]
    assert sorted(ranks[0] + ranks[1]) == sorted(ids)
    assert alone[:8] == [each for pair in zip(ranks[0][:4], ranks[1][:4], strict=True) for each in pair]


def test_filters_become_views_when_they_are_streamed(numbered: Any) -> None:
    whole = in_stored_order(numbered)
    filtered = numbered.filter(is_even)
    assert sorted(streamed(filtered, shuffle=True)) == sorted(each for each in whole if each % 2 == 0)
    again = filtered.filter(lambda sample: sample["id"] > 100).map(with_square)
    with StreamingDataset(streams=[Stream(source=again)], shuffle=True) as dataset:
        seen = {int(sample["id"]): sample["square"] for sample in dataset}
    assert seen == {number: number**2 for number in range(102, NUM_ROWS, 2)}
    assert ids_of(filtered.numbered().take(3)) == [each for each in whole if each % 2 == 0][:3]


def test_splits_share_all_rows_and_appended_ones_move_none(tmp_path: Path) -> None:
    rows = [{"id": number, "doc": f"doc {number // 3}"} for number in range(NUM_ROWS)]
    shares = {"train": 0.7, "val": 0.2, "test": 0.1}
    few = MemoryShardedSource(rows[:120], num_shards=2, fingerprint="few")
    more = MemoryShardedSource(rows, num_shards=4, fingerprint="more")
    for by in (None, "doc"):
        before, after = (source.split(shares, by=by, seed=3) for source in (few, more))
        sets = {name: set(ids_of(part)) for name, part in after.items()}
        assert sorted(chain.from_iterable(map(ids_of, after.values()))) == list(range(NUM_ROWS))
        assert all(set(ids_of(part)) <= sets[name] for name, part in before.items())
        assert len(sets["train"]) > len(sets["val"]) > len(sets["test"]) > 0
    assert ids_of(few.split(shares, seed=4)["train"]) != ids_of(few.split(shares, seed=3)["train"])
    docs = {name: {row["doc"] for row in part} for name, part in more.split(shares, by="doc").items()}
    assert not docs["train"] & docs["val"] | docs["val"] & docs["test"]


def test_views_mix_with_whole_streams_and_workers_resume_them(tmp_path: Path) -> None:
    first = StreamingDataset(local=write_samples(tmp_path / "a", 60))
    second = write_samples(tmp_path / "b", 40)
    rows = MemoryShardedSource([{"id": number, "tokens": [1]} for number in range(50)], fingerprint="m").filter(is_even)

    def mixed() -> StreamingDataLoader:
        streams = [
            Stream(source=first.select(slice(1, 60, 4)).select_fields(["id"]), name="view"),
            Stream(source=StreamingDataset(local=second).select_fields(["id"]), name="whole"),
            Stream(source=rows.select_fields(["id"]), name="filtered"),
        ]
        return StreamingDataLoader(StreamingDataset(streams=streams, shuffle=True), batch_size=5)

    expected = sorted([*range(1, 60, 4), *range(40), *range(0, 50, 2)])
    loader = mixed()
    batches = [batch["id"].tolist() for batch in loader]
    assert sorted(chain.from_iterable(batches)) == expected
    loader = mixed()
    begun = iter(loader)
    for _ in range(5):
        next(begun)
    resumed = mixed()
    resumed.load_state_dict(loader.state_dict())
    assert [batch["id"].tolist() for batch in resumed] == batches[5:]


def test_a_state_of_other_rows_is_refused(tmp_path: Path) -> None:
    dataset = StreamingDataset(local=write_samples(tmp_path / "a", 60))
    begun = StreamingDataset(streams=[Stream(source=dataset.take(20), name="s")], shuffle=True)
    next(iter(begun))
    other = StreamingDataset(streams=[Stream(source=dataset.select(slice(10, 30)), name="s")], shuffle=True)
    with pytest.raises(ResumeError):
        other.load_state_dict(begun.state_dict())
        next(iter(other))


def test_filters_read_all_rows_once_on_a_node(tmp_path: Path) -> None:
    asked = tmp_path / "asked"

    def is_third(sample: dict[str, Any]) -> bool:
        with asked.open("a") as file:
            file.write("x")
        return not sample["id"] % 3

    dataset = StreamingDataset(local=write_samples(tmp_path / "a", 60))
    for _ in range(2):
        assert streamed(dataset.filter(is_third)) == list(range(0, 60, 3))
    assert len(asked.read_text()) == 60


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([1, 1], "row 1 is chosen twice"),
        ([400], "row 400 is out of range: there are 60 rows"),
        ([-61], "row -61 is out of range"),
        ([True], "the mask has 1 values, but there are 60 rows"),
        ([0.5], "by a slice, a mask or whole numbers"),
    ],
)
def test_rows_that_are_not_there_are_refused(tmp_path: Path, chosen: Any, said: str) -> None:
    dataset = StreamingDataset(local=write_samples(tmp_path / "a", 60))
    with pytest.raises(ConfigError, match=said):
        dataset.select(chosen)


def test_what_has_no_numbers_says_so() -> None:
    source = MemoryShardedSource([{"id": 1}]).flat_map(lambda sample: [sample, sample])
    with pytest.raises(ConfigError, match="LimitedShardedSource"):
        source.take(1)


def test_spawned_workers_read_views(tmp_path: Path) -> None:
    dataset = StreamingDataset(local=write_samples(tmp_path / "a", 60))
    streams = [
        Stream(source=dataset.take(20), name="first"),
        Stream(source=dataset.filter(is_even).skip(20), name="even"),
    ]
    mixed = StreamingDataset(streams=streams, shuffle=True)
    loader = StreamingDataLoader(mixed, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    seen = [number for batch in loader for number in batch["id"].tolist()]
    assert sorted(seen) == sorted([*range(20), *range(40, 60, 2)])
