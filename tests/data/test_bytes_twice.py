"""A first batch that comes by ranges comes again with its shards: little of it, and counted."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from penstock import MDSWriter, StreamingDataset
from penstock.reading.schedule import may_read_first_alone
from penstock.storage.ranges import DEFAULT_GAP_BYTES, coalesce, fitting_gap
from penstock.types import Span
from tests.servers.faults import FaultProxy
from tests.streaming import ids_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.nginx import WebServer


class Shape(NamedTuple):
    num_samples: int
    sample_bytes: int
    shard_bytes: int
    batch_size: int


SHAPES = [
    Shape(1000, 1000, 100_000, 32),  # 10 shards
    Shape(1000, 1000, 100_000, 200),  # the first batch is a fifth of it all
    Shape(4000, 8, 4000, 64),  # tiny samples: half of each shard is its table
    Shape(300, 20_000, 200_000, 16),  # 10 large ones in a shard
    Shape(20_000, 100, 40_000, 256),  # many shards
]


def write(folder: Path, shape: Shape) -> int:
    draw = np.random.default_rng(0)
    columns = {"id": "int", "data": "bytes"}
    with MDSWriter(out=folder, columns=columns, size_limit=shape.shard_bytes) as writer:
        for number in range(shape.num_samples):
            writer.write({"id": number, "data": draw.bytes(shape.sample_bytes)})
    # Of objects that were written just now, ranges may be read once more: whether they are depends on the clock.
    before = time.time() - 3600
    for path in folder.iterdir():
        os.utime(path, (before, before))
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_little_comes_twice(nginx: WebServer, shape: Shape, num_ranks: int, places: Path) -> None:
    name = f"twice-{'-'.join(map(str, shape))}-{num_ranks}"
    num_bytes = write(nginx.files / name, shape)
    options: dict[str, Any] = {"shuffle": True, "batch_size": shape.batch_size, "world_size": num_ranks}
    with FaultProxy(nginx.url) as proxy:
        ranks = [StreamingDataset(remote=f"{proxy.url}/{name}", rank=rank, **options) for rank in range(num_ranks)]
        passes = [iter(dataset) for dataset in ranks]
        found = [next(samples) for samples in passes]  # both have their first batch before either goes on
        for samples in passes:
            found += samples
        node = ranks[0].stats().node
        for dataset in ranks:
            dataset.close()
        came = proxy.counts["bytes"]
    assert set(ids_of(found)) == set(range(shape.num_samples))
    indexes = (num_ranks - 1) * (nginx.files / name / "index.json").stat().st_size  # each rank reads it
    assert num_bytes <= came - indexes < 1.1 * num_bytes
    assert node.bytes == came
    assert node.bytes_twice == came - indexes - num_bytes


def test_which_first_batches_may_come_alone() -> None:
    assert may_read_first_alone(global_batch_size=100, num_samples=1200)
    assert not may_read_first_alone(global_batch_size=101, num_samples=1200)


def test_gaps_that_are_read_over_are_little_of_the_object() -> None:
    draw = np.random.default_rng(1)
    for extent in (10_000, 100_000, 1 << 24, 1 << 30):
        for count in (1, 2, 10, 60):
            begins = np.sort(draw.integers(0, extent, count)).tolist()
            spans = [Span(begin, begin + 10) for begin in begins]
            assert fitting_gap(spans) <= DEFAULT_GAP_BYTES
            joined = coalesce(spans, gap_bytes=fitting_gap(spans), most_bytes=1 << 30)
            assert sum(map(len, joined)) <= min(extent / 32, 512 << 10) + count * 1034
    assert fitting_gap([]) == 0
    far_apart = [Span(at << 20, (at << 20) + 10) for at in range(64)]
    beside = [Span(span.end + (100 << 10), span.end + (110 << 10)) for span in far_apart[:4]]
    joined = coalesce([*far_apart, *beside], gap_bytes=fitting_gap([*far_apart, *beside]), most_bytes=1 << 30)
    assert len(joined) == len(far_apart)  # where it is little, requests are saved
    alike = [Span(at * 1000, at * 1000 + 990) for at in range(100)]
    assert fitting_gap(alike) >= 10
    even = [Span(at << 16, (at << 16) + (1 << 15)) for at in range(100)]
    assert coalesce(even, gap_bytes=fitting_gap(even), most_bytes=1 << 30) == even  # one would be as good as another
