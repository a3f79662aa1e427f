"""Going on far into a huge epoch costs what going on near its start costs; and a mix on a schedule goes on too."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from penstock import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from penstock.order.schedule import MixSchedule
from penstock.reading.shard_table import ShardTable
from tests.streaming import batch_ids, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.reading.source import OpenShard

NUM_SHARDS, PER_SHARD = 10**4, 10**5
NUM_SAMPLES = NUM_SHARDS * PER_SHARD
BATCH, NUM_BATCHES = 32, 12


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10⁹ samples: one shard under ten thousand names."""
    folder = tmp_path_factory.mktemp("huge")
    with MDSWriter(out=folder, columns={"row": "uint32"}, size_limit=None) as writer:
        for row in range(PER_SHARD):
            writer.write({"row": row})
    index = json.loads((folder / "index.json").read_text())
    (shard,) = index["shards"]
    assert shard["samples"] == PER_SHARD
    names = [f"shard.{number:05}.mds" for number in range(NUM_SHARDS)]
    index["shards"] = [{**shard, "raw_data": {**shard["raw_data"], "basename": name}} for name in names]
    (folder / "index.json").write_text(json.dumps(index))
    for name in names[1:]:
        os.link(folder / names[0], folder / name)
    return folder


@dataclass
class Cost:
    """What it took to read on from some place: shards opened, Python calls, bytes of memory at the peak."""

    shards: list[int] = field(default_factory=list)
    num_calls: int = 0
    peak_bytes: int = 0


class Metered:
    """A dataset of which it is known what each resumption costs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cost = Cost()
        really_open = ShardTable.open

        def open_shard(table: ShardTable, shard: int) -> OpenShard:
            self._cost.shards.append(shard)
            return really_open(table, shard)

        monkeypatch.setattr(ShardTable, "open", open_shard)
        self.dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)

    def read_from(self, position: int, num_batches: int = NUM_BATCHES) -> tuple[list[int], Cost]:
        """Go to a position of the second epoch, with no shard open, and read some batches there."""
        dataset, self._cost = self.dataset, Cost()
        dataset.close()
        state = {**dataset.state_dict(), "epoch": 1, "position": position}
        tracemalloc.start()
        sys.setprofile(self._count)
        try:
            dataset.load_state_dict(state)
            rows = [each["row"] for each in islice(dataset, BATCH * num_batches)]
            later = dataset.state_dict()
        finally:
            sys.setprofile(None)
            self._cost.peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert (later["epoch"], later["position"]) == (1, position + len(rows))
        return rows, self._cost

    def _count(self, frame: object, event: str, argument: object) -> None:
        self._cost.num_calls += event in ("call", "c_call")


@pytest.fixture
def metered(huge: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Metered]:
    metered = Metered(huge, monkeypatch)
    with metered.dataset:
        yield metered


def test_resuming_far_is_as_cheap_as_near(metered: Metered) -> None:
    metered.read_from(NUM_SAMPLES // 3, 1)  # what is done once in a process
    _, start = metered.read_from(0)
    _, near = metered.read_from(NUM_SAMPLES // 100)
    for share in (50, 99):
        rows, far = metered.read_from(NUM_SAMPLES * share // 100)
        assert len(rows) == BATCH * NUM_BATCHES
        # Where the first shards of an epoch begin fewer of them are open; from there on it is the same everywhere.
        for other, factor in ((near, 1.25), (start, 1.75)):
            assert len(far.shards) <= factor * len(other.shards)
            assert far.num_calls <= factor * other.num_calls
            assert far.peak_bytes <= factor * other.peak_bytes


def test_resuming_far_goes_on_with_the_same_samples(metered: Metered) -> None:
    position = NUM_SAMPLES * 99 // 100
    rows, _ = metered.read_from(position)
    for taken in (1, NUM_BATCHES // 2):
        assert metered.read_from(position + taken * BATCH, NUM_BATCHES - taken)[0] == rows[taken * BATCH :]
    dataset = metered.dataset  # to the very end: what is left of the epoch, and then the next one
    dataset.load_state_dict({**dataset.state_dict(), "epoch": 1, "position": NUM_SAMPLES - 100})
    assert len(list(dataset)) == 100
    next(iter(dataset))
    assert dataset.state_dict()["epoch"] == 2


# --- A schedule ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("pair")
    return [write_samples(out / "a", 200), write_samples(out / "b", 200, first_id=1000)]


def open_scheduled(pair: list[Path]) -> StreamingDataset:
    """Two epochs of 240 samples: all from the first stream, then over to the second, and there in the second epoch."""
    schedule = MixSchedule(positions=(0, 80, 320), proportions=((1, 0), (1, 0), (0, 1)), shape="linear", block=40)
    return StreamingDataset(
        streams=[Stream(local=path) for path in pair], shuffle=True, epoch_size=240, batch_size=8, schedule=schedule
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 13, 29, 30, 31, 47])
def test_a_schedule_goes_on_in_the_middle(pair: list[Path], workers: int, taken: int) -> None:
    whole = StreamingDataLoader(open_scheduled(pair))
    batches = [batch for _ in range(2) for batch in batch_ids(whole)]
    assert len(batches) == 60
    assert share_of_second(batches[:10]) == 0
    assert 0.1 < share_of_second(batches[10:20]) < share_of_second(batches[20:30]) < share_of_second(batches[30:40]) < 1
    assert share_of_second(batches[40:]) == 1

    begun = StreamingDataLoader(open_scheduled(pair), num_workers=workers)
    found: list[list[int]] = []
    while len(found) < taken:
        found += batch_ids(islice(begun, taken - len(found)))
    state = json.loads(json.dumps(begun.state_dict()))
    resumed = StreamingDataLoader(open_scheduled(pair), num_workers=2 - workers)
    resumed.load_state_dict(state)
    while len(found) < 60:
        found += batch_ids(resumed)
    assert found == batches


def share_of_second(batches: list[list[int]]) -> float:
    numbers = [number for batch in batches for number in batch]
    return sum(number >= 1000 for number in numbers) / len(numbers)
