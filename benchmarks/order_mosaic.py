"""What does one epoch of a MosaicML-compatible order cost, in time and memory, here and in the original?

Each measurement is a process of its own, the two libraries by turns. Prints one JSON object for each size.
Needs mosaicml-streaming in an environment of its own (`make peers`):

    python benchmarks/order_mosaic.py --samples 1e6 1e7 1e8 --compare
"""

from __future__ import annotations

import argparse
import json
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

from benchmarks.harness import python_of
from benchmarks.peers.empty_index import write_index

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
BATCH_SIZE = 32
RANKS_PER_NODE = 8


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def prepare_ours(spec: dict[str, Any]) -> Callable[[], Any]:
    from penstock.order.cursor import Cursor
    from penstock.order.mosaic.plan import MosaicPlan
    from penstock.order.mosaic.rules import MosaicOptions
    from penstock.order.world import World

    options = MosaicOptions(shuffle=True, shuffle_algo=spec["algo"], num_canonical_nodes=spec["canonical_nodes"])
    world = World(num_nodes=spec["nodes"], ranks_per_node=RANKS_PER_NODE)
    plan = MosaicPlan.make([shard_sizes(spec)], options, num_nodes=world.num_nodes)
    return lambda: plan.epoch_batches(Cursor(1, 0), world, BATCH_SIZE * world.num_ranks)


def prepare_theirs(spec: dict[str, Any]) -> Callable[[], Any]:
    from streaming import StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    with tempfile.TemporaryDirectory() as directory:
        write_index(Path(directory), shard_sizes(spec))
        dataset = StreamingDataset(
            local=directory,
            batch_size=BATCH_SIZE,
            shuffle=True,
            shuffle_algo=spec["algo"],
            num_canonical_nodes=spec["canonical_nodes"],
        )
    world = World(spec["nodes"], RANKS_PER_NODE, 1, 0)
    epoch, sample_in_epoch = dataset._resume(world, 1)
    return lambda: generate_work("random", dataset, world, epoch, sample_in_epoch)


def shard_sizes(spec: dict[str, Any]) -> list[int]:
    return [spec["shard"]] * (spec["samples"] // spec["shard"])


def measure(library: str, spec: dict[str, Any]) -> None:
    """Order one epoch in this process and print what it took."""
    order_epoch = (prepare_ours if library == "ours" else prepare_theirs)(spec)
    ready = rss_bytes()
    begun, cpu_begun = time.perf_counter(), time.process_time()
    order = order_epoch()
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if spec["save"]:
        grid = order.by_worker(1) if library == "ours" else order
        np.save(Path(spec["save"], f"{library}.npy"), grid.astype(np.int32, copy=False))
    report = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_gb": peak / 1e9,
        "growth_gb": (peak - ready) / 1e9,
    }
    print(json.dumps(report))


def run_once(library: str, spec: dict[str, Any]) -> dict[str, float]:
    command = [
        sys.executable if library == "ours" else python_of("mosaic"),
        str(Path(__file__)),
        "--measure",
        library,
        json.dumps(spec),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{library} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def count_differing(directory: Path) -> int:
    """Count places in which the two orders differ: samples with equal random places may be swapped."""
    ours, theirs = (np.load(directory / f"{library}.npy", mmap_mode="r") for library in ("ours", "theirs"))
    if ours.shape != theirs.shape:
        raise SystemExit(f"the shapes differ: {ours.shape} here, {theirs.shape} there")
    return int(np.count_nonzero(ours != theirs))


def compare_libraries(spec: dict[str, Any], repeats: int, should_compare: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        spec = {**spec, "save": directory if should_compare else ""}
        runs = [{library: run_once(library, spec) for library in ("theirs", "ours")} for _ in range(repeats)]
        differing = count_differing(Path(directory)) if should_compare else None
    report: dict[str, Any] = {name: value for name, value in spec.items() if name != "save"}
    for figure in ("seconds", "cpu_seconds", "peak_gb", "growth_gb"):
        theirs, ours = (statistics.median(run[name][figure] for run in runs) for name in ("theirs", "ours"))
        report[figure] = {
            "ours": round(ours, 3),
            "theirs": round(theirs, 3),
            "ratio": round(ours / theirs, 3),
        }
    return report if differing is None else {**report, "differing": differing}


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--samples", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--shard", type=int, default=10_000, help="samples in a shard")
    parser.add_argument("--algo", default="py1e")
    parser.add_argument("--canonical-nodes", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--compare", action="store_true", help="count the places in which the orders differ")
    given = parser.parse_args()
    for samples in given.samples:
        spec = {
            "samples": int(samples),
            "shard": given.shard,
            "algo": given.algo,
            "canonical_nodes": given.canonical_nodes,
            "nodes": given.nodes,
        }
        print(json.dumps(compare_libraries(spec, given.repeats, given.compare)), flush=True)


if __name__ == "__main__":
    main()
