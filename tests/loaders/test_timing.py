"""How fast samples come changes neither batches nor states, bit for bit: only how many are read at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    AsyncDataLoader,
    CompositeShardedSource,
    CsvShardedSource,
    JsonShardedSource,
    LimitedShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ParquetShardedSource,
    ShardedSource,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.types import Sample

# Seconds until rows are handed on, and up to which chunks grow and from which on they shrink.
SPEEDS = {"as slow as can be": (-1.0, -1.0, -1.0), "as fast as can be": (1e6, 1e6, 1e6)}


class Counting(ShardedSource):
    """A source of a user's, which does not know its lengths."""

    def __init__(self, first: int = 0, length: int = 130) -> None:
        self._first, self._length = first, length

    @property
    def shard_names(self) -> Sequence[str]:
        return "a", "b"

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:
        first = self._first + (self._length if shard_name == "b" else 0)
        return ({"x": n} for n in range(first + row, first + self._length))


def write_files(folder: Path) -> None:
    for number in range(3):
        rows = range(100 * number, 100 * number + 100)
        pq.write_table(pa.table({"x": rows}), folder / f"{number}.parquet", row_group_size=7)
        (folder / f"{number}.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in rows))
        (folder / f"{number}.json").write_text(json.dumps([{"x": n} for n in rows]))
        (folder / f"{number}.csv").write_text("x\n" + "".join(f"{n}\n" for n in rows))


def tokens(sample: Sample) -> Sample:
    return {"input_ids": [sample["x"]] * (1 + sample["x"] % 7)}


SOURCES: dict[str, Callable[[Path], ShardedSource]] = {
    "Parquet": lambda folder: ParquetShardedSource(f"{folder}/*.parquet"),
    "JSON lines": lambda folder: JsonShardedSource(f"{folder}/*.jsonl"),
    "JSON array": lambda folder: JsonShardedSource(f"{folder}/*.json"),
    "CSV": lambda folder: CsvShardedSource(f"{folder}/*.csv", types={"x": "int"}),
    "a user's": lambda _: Counting(),
    "in memory": lambda _: MemoryShardedSource([{"x": n} for n in range(300)], num_shards=3),
    "filtered": lambda _: Counting().filter(lambda sample: sample["x"] % 3),
    "expanded": lambda folder: ParquetShardedSource(f"{folder}/*.parquet").flat_map(lambda s: [s] * (s["x"] % 3)),
    "in threads": lambda _: Counting().map(lambda sample: sample, num_workers=2),
    "composite": lambda folder: CompositeShardedSource([Counting(), JsonShardedSource(f"{folder}/*.jsonl")]),
    "limited": lambda _: LimitedShardedSource(Counting(), 150),
    "packed": lambda _: PackedShardedSource(Counting().map(tokens), 8, None).select_fields(["input_ids"]),
    "mixed": lambda folder: MixedShardedSource(
        {"a": Counting(length=900), "b": JsonShardedSource(f"{folder}/*.jsonl"), "c": Counting(5000)},
        {"a": 0.6, "b": 0.3, "c": 0.1},
        stop_strategy="all_exhausted",
    ).drop_fields(["__source__"]),
}
ORDERS: dict[str, dict[str, Any]] = {
    "in order": {"shuffle_buffer_size": None},
    "through a buffer": {"shuffle_buffer_size": 60, "interleave": 2},
}


def batches_and_states(loader: AsyncDataLoader) -> list[str]:
    return [json.dumps([{k: v.tolist() for k, v in batch.items()}, loader.state_dict()]) for batch in loader]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_batches_and_states_do_not_depend_on_speed(
    make: Callable[[Path], ShardedSource], order: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    found = []
    for longest, quick, slow in SPEEDS.values():
        monkeypatch.setattr("penstock.sources.interleaving._LONGEST_S", longest)
        monkeypatch.setattr("penstock.sources.iterators._QUICK_S", quick)
        monkeypatch.setattr("penstock.sources.iterators._SLOW_S", slow)
        for is_ahead in (False, True):
            loader = AsyncDataLoader(make(tmp_path), 7, prefetch_enabled=is_ahead, drop_last=False, **order)
            found.append(batches_and_states(loader))
    assert len(found[0]) > 10
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_states_of_iterators_do_not_depend_on_speed(
    make: Callable[[Path], ShardedSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    found = []
    for _, quick, slow in SPEEDS.values():
        monkeypatch.setattr("penstock.sources.iterators._QUICK_S", quick)
        monkeypatch.setattr("penstock.sources.iterators._SLOW_S", slow)
        samples = iter(make(tmp_path))
        found.append([json.dumps(samples.state_dict()) for _ in samples])
    assert found[0] == found[1]
