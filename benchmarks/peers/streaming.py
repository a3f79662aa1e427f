"""What the adapters of stream.py and remote.py share: endless passes against the clock, and memory.

It runs in every library's own environment, so it needs nothing but NumPy.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.common import BATCH, TEXT_BYTES, Result, Sample, corpus, cpu_seconds, make_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WORKERS = 2
# Small enough that looking at the clock once per chunk is no imprecision, large enough that it costs nothing.
CHUNK = 1024


def endless(new_pass: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """One pass after the other, joined in C: a generator around every sample would be part of the figure."""
    return chain.from_iterable(iter(new_pass, None))


def timed_samples(new_pass: Callable[[], Iterable[Any]], seconds: float, chunk: int = CHUNK) -> Result:
    """Takes samples one by one: as long to get warm as for the figure. A pass that ends is followed by the next one."""
    stream = endless(new_pass)

    def take() -> int:
        samples = 0
        for _ in islice(stream, chunk):
            samples += 1
        return samples

    return timed_twice(take, seconds)


def timed_batches(new_pass: Callable[[], Iterable[Any]], seconds: float, column: str | int) -> Result:
    """Takes whole batches, and counts the rows of one of their columns."""
    stream = endless(new_pass)
    return timed_twice(lambda: len(next(stream)[column]), seconds)


def timed_twice(take: Callable[[], int], seconds: float) -> Result:
    """Takes until the time is over, first to get warm, then for the figure."""
    result: Result = {}
    for _ in range(2):
        samples = 0
        busy = cpu_seconds()
        begin = now = time.perf_counter()
        while now - begin < seconds:
            samples += take()
            now = time.perf_counter()
        result = {"samples": samples, "seconds": now - begin, "cpu_seconds": cpu_seconds() - busy}
    return result


def check_samples(kind: str, samples: Iterable[Sample], count: int) -> None:
    """Fails unless the first samples of a pass are ones that were written, each of them once."""
    some = list(islice(samples, BATCH))
    if kind == "rows":
        text = corpus()
        room = len(text) - TEXT_BYTES
        numbers = [int(sample["id"]) for sample in some]
        starts = [number * TEXT_BYTES % room for number in numbers]
        good = [text[at : at + TEXT_BYTES] for at in starts] == [sample["text"] for sample in some]
    else:
        known = {row.tobytes(): number for number, row in enumerate(make_tokens(count)[:, :8])}
        heads = [np.asarray(sample["tokens"][:8], np.int32).tobytes() for sample in some]
        good = all(head in known for head in heads)
        numbers = [known.get(head, -1) for head in heads]
    if not good or len(set(numbers)) != BATCH:
        raise SystemExit(f"the {kind} were not read back as they were written")


def summed_pss() -> dict[str, float]:
    """Memory of this process and its workers in MB, shared pages divided among those who share them."""
    totals = {"pss_mb": 0.0, "anon_mb": 0.0}
    names = {"Pss:": "pss_mb", "Pss_Anon:": "anon_mb"}
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, kilobytes, *_ = line.split()
            if name in names:
                totals[names[name]] += int(kilobytes) / 1000
    return totals


def peak_memory(batches: Iterable[Any], seconds: float) -> Result:
    """Goes through batches for some time, and gives the most memory that was in use at any look."""
    peak = {"pss_mb": 0.0, "anon_mb": 0.0}
    begin = time.perf_counter()
    next_look, samples, now = begin, 0, begin
    for batch in batches:
        samples += len(next(iter(batch.values())))
        now = time.perf_counter()
        if now >= next_look:
            looked = summed_pss()
            peak = {name: max(value, looked[name]) for name, value in peak.items()}
            next_look = time.perf_counter() + seconds / 20
        if now - begin >= seconds:
            break
    return {"samples": samples, "seconds": now - begin, **peak}
