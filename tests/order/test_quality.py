from __future__ import annotations

import warnings

import numpy as np
import pytest
from benchmarks.quality import measure_shuffling, measure_traffic

from penstock.order.conveyor import Conveyor
from penstock.order.id_spans import IdSpans
from penstock.order.lanes import lane_length, lane_start
from penstock.order.mosaic.shuffle import ShuffleRule, shuffle_algorithm


def test_the_stored_order_is_the_worst() -> None:
    spans = IdSpans([10] * 20)
    stored = measure_shuffling(np.arange(200), spans, 10)
    assert stored.displacement == 0
    assert stored.neighbour_distance == pytest.approx(1 / 200)
    assert stored.neighbours_together == 1
    assert stored.batch_distance == pytest.approx(0.95)
    traffic = measure_traffic(np.arange(200), spans, 10, num_nodes=1, prefetch_steps=1)
    assert (traffic.shards_open, traffic.peak_shards_held, traffic.peak_new_shards) == (1, 2, 1)
    assert traffic.fetched == 1


def test_dealing_shards_to_all_nodes_fetches_them_everywhere() -> None:
    traffic = measure_traffic(np.arange(200), IdSpans([10] * 20), 20, num_nodes=2, prefetch_steps=0)
    assert traffic.fetched == 2


@pytest.mark.parametrize("kind", ["equal", "unequal"])
@pytest.mark.parametrize("num_nodes", [1, 8])
def test_native_is_at_least_as_good_as_py1e_at_equal_shards_held(kind: str, num_nodes: int) -> None:
    drawn = np.random.default_rng(1).lognormal(0, 1, 640)
    lengths = np.full(640, 64) if kind == "equal" else np.maximum(1, drawn * 40).astype(np.int64)
    spans, window, batch = IdSpans(lengths), 16, 64 * num_nodes
    size = spans.num_samples
    shuffling, traffic = {}, {}
    for name in ("native", "py1e"):
        measured = []
        for seed in range(4):
            if name == "native":
                order = Conveyor(lengths, seed=seed, num_lanes=num_nodes, window=window)
                ids = order.ids(0, 0, range(size))
            else:
                rule = ShuffleRule(num_canonical_nodes=num_nodes, seed=seed, epoch=0, block_size=window * size // 640)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    shuffled = shuffle_algorithm("py1e")(lengths, rule)
                ids = np.empty(size, dtype=np.int64)
                for lane in range(num_nodes):
                    begin = lane_start(size, num_nodes, lane)
                    ids[lane::num_nodes] = shuffled[begin : begin + lane_length(size, num_nodes, lane)]
            measured.append((measure_shuffling(ids, spans, batch), measure_traffic(ids, spans, batch, num_nodes, 4)))
        shuffling[name] = [pair[0] for pair in measured]
        traffic[name] = [pair[1] for pair in measured]

    def mean(name: str, column: str) -> float:
        rows = shuffling[name] if hasattr(shuffling[name][0], column) else traffic[name]
        return float(np.mean([getattr(row, column) for row in rows]))

    # Where a shard lands in the epoch is pure chance for both, so displacement agrees up to that.
    assert mean("native", "displacement") >= 0.95 * mean("py1e", "displacement")
    assert mean("native", "neighbour_distance") >= mean("py1e", "neighbour_distance")
    for column in ("neighbours_together", "batch_distance", "peak_shards_held", "peak_new_shards", "fetched"):
        assert mean("native", column) <= mean("py1e", column), column
