"""`penstock.convert` to MDS, with some workers of some engine: how long it takes, and what memory it needs."""

from __future__ import annotations

import os
import resource
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.peers.common import Result, main

import penstock

_LOOK_EVERY_S = 0.1


def run(directory: str, inputs: str, workers: int, engine: str = "local", tokenizer: str = "", few: str = "") -> Result:
    """Convert; with `few`, some other inputs are converted before, so that the engine has been started."""
    os.environ["TOKENIZER"] = tokenizer
    options: dict[str, Any] = {"compression": "zstd", "workers": workers, "progress": False, "engine": engine}
    if few:
        if engine in ("ray", "spark"):
            start(engine, workers)
        penstock.convert(few, directory + "-few", **options)
    found, is_over = list[int](), threading.Event()
    looker = threading.Thread(target=look, args=(found, is_over))
    looker.start()
    begin = time.perf_counter()
    report = penstock.convert(inputs, directory, transform=tokens if tokenizer else None, **options)
    seconds = time.perf_counter() - begin
    is_over.set()
    looker.join()
    third = max(1, len(found) // 3)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "samples": report.num_rows,
        "seconds": seconds,
        "cpu_seconds": sum(each.ru_utime + each.ru_stime for each in used),
        "tasks": report.num_tasks,
        "first_third_mb": max(found[:third], default=0) >> 20,
        "last_third_mb": max(found[-third:], default=0) >> 20,
    }


def start(engine: str, workers: int) -> None:
    """Start an engine with so many workers, which later conversions find."""
    if engine == "ray":
        import ray

        os.environ.update(RAY_worker_niceness="0")  # as the others: by default, its workers give way to all else
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
        return
    import sys

    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false").getOrCreate()


def look(found: list[int], is_over: threading.Event) -> None:
    """Note the memory that the processes which this one has started have together."""
    while not is_over.wait(_LOOK_EVERY_S):
        total = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(words[1]) == os.getpid():
                total += int(words[21]) * resource.getpagesize()
        found.append(total)


def tokens(sample: dict[str, Any]) -> dict[str, Any]:
    """Tokenize a text."""
    import numpy as np

    return {"tokens": np.array(_tokenizer().encode(sample["text"]).ids, np.uint16)}


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(os.environ["TOKENIZER"])


if __name__ == "__main__":
    main({"run": run})
