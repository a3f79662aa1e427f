"""What the adapters of remote.py share: the store's address and keys, and a run from an empty cache."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

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


def run_cold(open_batches: Callable[[], Iterable[Any]], column: str, seconds: float) -> Result:
    """Opens a dataset and goes through one epoch, or as far as it gets: the clock runs from before the opening on."""
    begin = time.perf_counter()
    samples, first = 0, 0.0
    for batch in open_batches():
        samples += len(batch[column])
        now = time.perf_counter() - begin
        first = first or now
        if now > seconds:
            break
    return {"samples": samples, "seconds": time.perf_counter() - begin, "first_s": first}
