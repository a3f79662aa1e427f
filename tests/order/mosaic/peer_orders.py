"""Asks mosaicml-streaming for whole epochs: run by the interpreter of its own environment.

Reads cases as JSON from standard input and answers on standard output with one result each: the shape and the
ids of the epoch, or the error.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

# This script runs by its path, in an environment of its own.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.peers.empty_index import write_index
from streaming import Stream, StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World


def order_epoch(case: dict[str, Any], directory: Path) -> dict[str, Any]:
    streams = []
    for number, stream in enumerate(case["streams"]):
        local = directory / str(number)
        write_index(local, stream["shards"])
        weight = {name: value for name, value in stream.items() if name != "shards"}
        streams.append(Stream(local=str(local), **weight))
    dataset = StreamingDataset(streams=streams, **case["args"])
    if case["resume"] is not None:
        dataset.load_state_dict(case["resume"])
    world = World(**case["world"], worker=0)
    epoch, sample_in_epoch = dataset._resume(world, case["epoch"])
    ids = generate_work(dataset.batching_method, dataset, world, epoch, sample_in_epoch)
    return {"shape": list(ids.shape), "ids": ids.reshape(-1).tolist()}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        try:
            return order_epoch(case, Path(directory))
        except FileExistsError:
            # The name of its shared memory is just being freed by the process before.
            time.sleep(0.1)
            return answer(case)
        except Exception as error:  # noqa: BLE001
            return {"error": type(error).__name__, "message": str(error)}


def main() -> None:
    warnings.simplefilter("ignore")
    # Each dataset keeps files and shared memory open until its process ends.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=10) as pool:
        json.dump(pool.map(answer, json.load(sys.stdin), chunksize=1), sys.stdout)


if __name__ == "__main__":
    main()
