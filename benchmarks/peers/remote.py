"""What the adapters of remote.py share: the store's address and keys, and a run from an empty cache."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.common import cpu_seconds, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.peers.common import Result

BUCKET = "bench"
KEYS = {"key": "benchmark", "secret": "benchmark"}


def use_store(endpoint: str) -> None:
    """Sets what libraries look for in the environment: a server of this machine, and keys that mean nothing."""
    os.environ.update(
        AWS_ACCESS_KEY_ID=KEYS["key"],
        AWS_SECRET_ACCESS_KEY=KEYS["secret"],
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_ENDPOINT_URL=endpoint,
        S3_ENDPOINT_URL=endpoint,
        AWS_ALLOW_HTTP="true",
    )


def run_first(open_samples: Callable[[], Iterable[Any]]) -> Result:
    """Opens a dataset and waits for its first sample, in this process."""

    def work() -> int:
        next(iter(open_samples()))
        return 1

    return timed(work)


def run_cold(open_batches: Callable[[], Iterable[Any]], column: str, seconds: float) -> Result:
    """Opens a dataset and goes through one epoch, or so many seconds of it from the first batch on.

    The clock runs from before the opening on. What comes is checked afterwards: no row twice.
    """
    busy, begin = cpu_seconds(), time.perf_counter()
    first = 0.0
    heads = []
    for batch in open_batches():
        values = batch[column]
        # A copy: a view would keep the whole batch.
        heads.append(np.array(values[:, 0] if column == "tokens" else values))
        now = time.perf_counter() - begin
        first = first or now
        if now - first > seconds:
            break
    spent, busy = time.perf_counter() - begin, cpu_seconds() - busy
    seen = np.concatenate(heads)
    if column == "id" and len(np.unique(seen)) < len(seen):
        raise SystemExit(f"{len(seen) - len(np.unique(seen))} of {len(seen)} samples came again")
    return {"samples": len(seen), "seconds": spent, "first_s": first, "cpu_seconds": busy}
