"""What does the native order cost at any size: to plan, to reach any batch, and per id?

Prints one JSON object per size, each measured in a process of its own; ids per second are per second of
processor time, so of one core. With `--peer`, mosaicml-streaming is measured beside it at up to 1e8 samples;
it needs an environment of its own (`make peers`).

    python benchmarks/order.py --samples 1e6 1e8 1e10 1e12
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# This script runs by its path, in other environments too, and has to find its neighbours by name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import python_of
from benchmarks.peers.empty_index import write_index

if TYPE_CHECKING:
    from collections.abc import Callable

GLOBAL_BATCH_SIZE = 4096
NUM_IDS = 1 << 23
MAX_PEER_SAMPLES = 10**8
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


def run_alone(python: str, what: str, num_samples: int) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [python, __file__, "--in-process", what, "--samples", str(num_samples)]
    # The peer brings its own libraries and must not find ours.
    environment = {**os.environ, "PYTHONPATH": path} if what == "native" else dict(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=float, nargs="+", default=[1e6, 1e8, 1e10, 1e12])
    parser.add_argument("--peer", action="store_true", help="measure mosaicml-streaming beside it")
    parser.add_argument("--in-process", choices=("native", "peer"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process:
        work = {"native": measure, "peer": measure_peer}[args.in_process]
        print(json.dumps(work(int(args.samples[0]))))
        return
    for samples in map(int, args.samples):
        answer = {"native": run_alone(sys.executable, "native", samples)}
        if args.peer and samples <= MAX_PEER_SAMPLES:
            answer["mosaicml-streaming"] = run_alone(python_of("mosaic"), "peer", samples)
        print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
