"""`AsyncDataLoader(shuffle=True)`: the order engine shuffles whatever can be a stream, with ranks and states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CompositeShardedSource,
    CsvShardedSource,
    JsonShardedSource,
    LimitedShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    ParquetShardedSource,
    ShardedSource,
    TextShardedSource,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNT, FILES = 90, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        rows = list(range(number * COUNT // FILES, (number + 1) * COUNT // FILES))
        table = pa.table({"x": rows, "other": [str(n) for n in rows]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=7)
        with pa.OSFile(str(folder / f"{number}.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
        (folder / f"{number}.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in rows))
        (folder / f"{number}.json").write_text(json.dumps([{"x": n} for n in rows]))
        (folder / f"{number}.csv").write_text("x\n" + "".join(f"{n}\n" for n in rows))
        (folder / f"{number}.txt").write_text("".join(f"{n}\n" for n in rows))
    return folder


def in_memory() -> MemoryShardedSource:
    return MemoryShardedSource([{"x": n} for n in range(COUNT)], num_shards=FILES)


# Those that are read in place or in memory, and those that are written once.
SOURCES: dict[str, Callable[[Path], ShardedSource]] = {
    "Parquet": lambda folder: ParquetShardedSource(f"{folder}/*.parquet"),
    "columns of Parquet": lambda folder: ParquetShardedSource(f"{folder}/*.parquet", columns=["x"]),
    "Arrow": lambda folder: ArrowShardedSource(f"{folder}/*.arrow"),
    "JSON lines": lambda folder: JsonShardedSource(f"{folder}/*.jsonl"),
    "CSV": lambda folder: CsvShardedSource(f"{folder}/*.csv", types={"x": "int"}),
    "text": lambda folder: TextShardedSource(f"{folder}/*.txt"),
    "memory": lambda _: in_memory(),
    "memory and a function": lambda _: in_memory().map(lambda sample: {"x": sample["x"]}),
    "JSON arrays": lambda folder: JsonShardedSource(f"{folder}/*.json"),
    "rows of Parquet": lambda folder: ParquetShardedSource(f"{folder}/*.parquet", filter=pc.field("x") < COUNT),
    "fields of Parquet": lambda folder: ParquetShardedSource(f"{folder}/*.parquet").select_fields(["x"]),
    "composite": lambda folder: CompositeShardedSource(
        [ParquetShardedSource(f"{folder}/0.parquet", columns=["x"]), JsonShardedSource(f"{folder}/[12].jsonl")]
    ),
    "limited": lambda folder: LimitedShardedSource(JsonShardedSource(f"{folder}/*.jsonl"), COUNT),
    "mixed": lambda folder: MixedShardedSource(
        {"a": JsonShardedSource(f"{folder}/0.jsonl"), "b": JsonShardedSource(f"{folder}/[12].jsonl")},
        stop_strategy="all_exhausted",
    ),
}


def numbers(batch: dict[str, Any]) -> list[int]:
    return [int(x) for x in batch["x" if "x" in batch else "text"]]


@pytest.fixture(params=list(SOURCES.values()), ids=list(SOURCES))
def make(request: pytest.FixtureRequest, folder: Path) -> Callable[..., AsyncDataLoader]:
    def make(batch_size: int = 7, **options: Any) -> AsyncDataLoader:
        return AsyncDataLoader(request.param(folder), batch_size, shuffle=True, **{"drop_last": False, **options})

    return make


def test_every_sample_comes_once_in_each_epoch(make: Callable[..., AsyncDataLoader]) -> None:
    loader = make(seed=3)
    epochs = [[numbers(batch) for batch in loader] for _ in range(2)]
    for epoch in epochs:
        flat = [x for batch in epoch for x in batch]
        assert sorted(flat) == list(range(COUNT)) != flat
        assert [len(batch) for batch in epoch] == [7] * 12 + [6]
    assert len(loader) == 13
    assert epochs[0] != epochs[1]
    assert [numbers(batch) for batch in make(seed=3, prefetch_enabled=False)] == epochs[0]
    assert [numbers(batch) for batch in make(seed=4)] != epochs[0]
    full = make(seed=3, drop_last=True)
    assert len(full) == 12
    assert [numbers(batch) for batch in full] == epochs[0][:12]


def test_a_state_goes_on_with_other_ranks(make: Callable[..., AsyncDataLoader]) -> None:
    whole = [numbers(batch) for batch in make(8)]
    ranks = [make(4, rank=rank, world_size=2, prefetch_workers=1 + rank) for rank in range(2)]
    passes = [iter(loader) for loader in ranks]
    for expected in whole[:5]:
        assert sorted(x for each in passes for x in numbers(next(each))) == sorted(expected)
    states = [json.loads(json.dumps(loader.state_dict())) for loader in ranks]
    assert states[0] == states[1]
    for each in passes:
        each.close()
    resumed = make(8)
    resumed.load_state_dict(states[0])
    assert [numbers(batch) for batch in resumed] == whole[5:]


@pytest.mark.parametrize(("uneven", "length"), [("drop", 22), ("pad", 23)])
def test_all_ranks_get_equally_many(uneven: str, length: int, make: Callable[..., AsyncDataLoader]) -> None:
    ranks = [make(5, rank=rank, world_size=4, uneven=uneven) for rank in range(4)]
    given = [[x for batch in loader for x in numbers(batch)] for loader in ranks]
    assert {len(each) for each in given} == {length}
    assert {len(loader) for loader in ranks} == {5}
    assert len({x for each in given for x in each}) == min(4 * length, COUNT)
