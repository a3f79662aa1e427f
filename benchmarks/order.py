"""What does the native order cost at any size: to plan, to reach any batch, and per id? And what do mixes cost?

Prints one JSON object per size, each measured in a process of its own; ids per second are per second of
processor time, so of one core. With `--peer`, mosaicml-streaming is measured beside it at up to 1e8 samples;
it needs an environment of its own (`make peers`). Then a table of mixes of four streams, read in the blocks that
loaders read, batches of 256: ten million ids per second are to be reached.

    python benchmarks/order.py --samples 1e6 1e8 1e10 1e12
    python benchmarks/order.py --samples --json figures.json     # the mixes alone
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# This script runs by its path, in other environments too, and has to find its neighbours by name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Comparison, python_of, table
from benchmarks.peers.empty_index import write_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.order.plan import BatchingMethod

GLOBAL_BATCH_SIZE = 4096
MIX_METHODS = ("random", "stratified", "per_stream", "device_per_stream")
NUM_IDS = 1 << 23
MAX_PEER_SAMPLES = 10**8
MIX_BATCH_SIZE = 256
MIX_IDS_AT_ONCE = 1 << 13  # as many as a loader reads in a block
MIX_REPEATS = 3
MIX_TARGET = 1e7
MIXES = {
    "equal shares": (2_500_000, 2_500_000, 2_500_000, 2_500_000),
    "10 : 5 : 2 : 1": (10_000_000, 5_000_000, 2_000_000, 1_000_000),
    "1000 : 100 : 10 : 1": (10_000_000, 1_000_000, 100_000, 10_000),
}
ROOT = Path(__file__).resolve().parents[1]


def count_shards(num_samples: int) -> int:
    """Shards of 1 000 samples, up to a million of them."""
    return min(10**6, max(1, num_samples // 1000))


def measure(num_samples: int) -> dict[str, Any]:
    """Time a world of one, then one rank of 8 × 8."""
    from penstock.order.cursor import Cursor
    from penstock.order.native import StreamPlan
    from penstock.order.options import OrderOptions, StreamShards
    from penstock.order.world import Seat, World

    num_shards = count_shards(num_samples)
    alone, member = (
        Seat(world=World()),
        Seat(world=World(num_nodes=8, ranks_per_node=8), node=3, local_rank=5),
    )

    def make() -> StreamPlan:
        lengths = np.full(num_shards, num_samples // num_shards, dtype=np.int64)
        return StreamPlan.make([StreamShards(name="one", lengths=lengths)], OrderOptions())

    plan, build_s = timed(make)
    size = plan.epoch_size(0)
    _, first_s = timed(lambda: plan.batch(Cursor(), 0, alone, GLOBAL_BATCH_SIZE))
    far = int(0.73 * size) // GLOBAL_BATCH_SIZE
    _, far_s = timed(lambda: plan.batch(Cursor(), far, alone, GLOBAL_BATCH_SIZE))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "samples": size,
        "shards": num_shards,
        "lanes": plan.num_lanes,
        "build_s": build_s,
        "first_batch_s": first_s,
        "batch_at_73_percent_s": far_s,
        "peak_mb": peak_mb,
        "ids_per_s_alone": steady_rate(plan, alone, size),
        "ids_per_s_one_rank_of_64": steady_rate(plan, member, size),
        "peak_mb_after_reading": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def steady_rate(plan: Any, seat: Any, size: int) -> float:
    from penstock.order.cursor import Cursor

    num_ids, epoch, seconds = 0, 1, 0.0
    while num_ids < NUM_IDS // seat.world.num_ranks:
        at = Cursor(epoch, 0)
        num_steps = min(plan.num_batches(at, seat, GLOBAL_BATCH_SIZE), NUM_IDS // GLOBAL_BATCH_SIZE)
        # Of a large epoch, windows are computed before the clock starts, and as many too many in the end.
        if size > NUM_IDS:
            plan.batch(at, 0, seat, GLOBAL_BATCH_SIZE)
        start = time.process_time()
        num_ids += sum(len(plan.batch(at, step, seat, GLOBAL_BATCH_SIZE)) for step in range(num_steps))
        seconds += time.process_time() - start
        epoch += 1
    return num_ids / seconds


def compare_mixes() -> list[Comparison]:
    """Measure mixes, each several times, by turns, in processes of their own."""
    questions = itertools.product(MIXES, MIX_METHODS, ("shuffled", "in order"))
    rates: dict[tuple[str, str, str], list[float]] = {question: [] for question in questions}
    for _ in range(MIX_REPEATS):
        for question, found in rates.items():
            found.append(run_alone(sys.executable, "mix", *question)["ids_per_s"])
    return [
        Comparison(
            f"mix of 4 streams, {name}, {method}, {order}",
            statistics.median(found),
            "ids/s",
            "target",
            MIX_TARGET,
            needed=1,
        )
        for (name, method, order), found in rates.items()
    ]


def measure_mix(name: str, method: BatchingMethod, order: str) -> dict[str, Any]:
    from penstock.order.cursor import Cursor
    from penstock.order.native import StreamPlan
    from penstock.order.options import OrderOptions, StreamShards
    from penstock.order.world import Seat, World

    streams = [
        StreamShards(name=str(number), lengths=np.full(size // 1000, 1000)) for number, size in enumerate(MIXES[name])
    ]
    batch = MIX_BATCH_SIZE
    options = OrderOptions(
        shuffle=order == "shuffled", batching_method=method, global_batch_size=batch, device_batch_size=batch
    )
    plan, seat, at = StreamPlan.make(streams, options), Seat(world=World()), Cursor(1, 0)
    num_steps = min(plan.num_batches(at, seat, batch), NUM_IDS // batch)
    at_once = MIX_IDS_AT_ONCE // batch
    plan.batch(at, 0, seat, batch)  # windows are computed before the clock starts, and as many too many in the end
    start = time.process_time()
    num_ids = sum(
        len(ids)
        for step in range(0, num_steps, at_once)
        for ids in plan.batches(at, range(step, min(step + at_once, num_steps)), seat, batch)
    )
    return {"ids_per_s": num_ids / (time.process_time() - start)}


def measure_peer(num_samples: int) -> dict[str, Any]:
    """Time the same questions in mosaicml-streaming: it has to compute the whole epoch before any batch."""
    from streaming import StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    num_shards = count_shards(num_samples)
    with tempfile.TemporaryDirectory() as directory:
        write_index(Path(directory), [num_samples // num_shards] * num_shards)

        def make() -> Any:
            return StreamingDataset(local=directory, shuffle=True, batch_size=GLOBAL_BATCH_SIZE, num_canonical_nodes=1)

        dataset, build_s = timed(make)
        world = World(1, 1, 1, 0)
        epoch, position = dataset._resume(world, 0)
        _, first_s = timed(lambda: generate_work("random", dataset, world, epoch, position))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"samples": num_samples, "build_s": build_s, "first_batch_s": first_s, "peak_mb": peak_mb}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def run_alone(python: str, what: str, *arguments: object) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [python, __file__, "--in-process", what, *map(str, arguments)]
    # The peer brings its own libraries and must not find ours.
    environment = {**os.environ, "PYTHONPATH": path} if what != "peer" else dict(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=float, nargs="*", default=[1e6, 1e8, 1e10, 1e12], help="sizes; none: mixes")
    parser.add_argument("--peer", action="store_true", help="measure mosaicml-streaming beside it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of mixes there as well")
    parser.add_argument("--in-process", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process:
        what, *arguments = args.in_process
        work: dict[str, Callable[..., dict[str, Any]]] = {"native": measure, "peer": measure_peer, "mix": measure_mix}
        print(json.dumps(work[what](*(arguments if what == "mix" else map(int, arguments)))))
        return
    for samples in map(int, args.samples):
        answer = {"native": run_alone(sys.executable, "native", samples)}
        if args.peer and samples <= MAX_PEER_SAMPLES:
            answer["mosaicml-streaming"] = run_alone(python_of("mosaic"), "peer", samples)
        print(json.dumps(answer, indent=2))
    mixes = compare_mixes()
    print(table(mixes))
    if args.json:
        args.json.write_text(json.dumps([comparison.as_json() for comparison in mixes], indent=2))


if __name__ == "__main__":
    main()
