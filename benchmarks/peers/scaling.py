"""What the adapters of scale.py share: the first sample, the rate after it, and private memory.

It runs in every library's own environment, so it needs nothing but NumPy.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.common import TEXT_BYTES, Result, corpus, cpu_seconds, main
from benchmarks.peers.streaming import endless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    # Opens a dataset, shuffled, and gives its samples: from the beginning, or from where a state says.
    Open = Callable[[str, Any], Iterable[Any]]
    # Gives the state of a run after so many samples.
    MakeState = Callable[[str, int], Any]

CHUNK = 1024
WARM_UP = 1.0


def private_mb() -> float:
    """Memory that is this process's alone: what would be needed once more for a second worker.

    Not `Private_Dirty`: that counts pages of mapped files, too, until the system has written them to the disk.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines}
    return (sizes["Pss_Anon:"] + sizes.get("Swap:", 0)) / 1000


def first(open_samples: Open, directory: str, state: Any = None) -> Result:
    """From before the dataset is opened to the first sample in hand; libraries are imported."""
    begin = time.perf_counter()
    sample = next(iter(open_samples(directory, state)))
    seconds = time.perf_counter() - begin
    check(sample)
    return {"samples": 1, "seconds": seconds}


def rate(open_samples: Open, directory: str, seconds: float, cold: bool = False) -> Result:
    """The rate in the second after the first one, and over all of the time after it; the most private memory."""
    if cold:
        forget_files(Path(directory))
    before = private_mb()
    stream = endless(lambda: open_samples(directory, None))
    sample = next(stream)
    take(stream, WARM_UP)
    busy = cpu_seconds()
    early = take(stream, 1)
    memory = private_mb()
    later = take(stream, seconds - 1)
    memory = max(memory, private_mb()) - before
    busy = cpu_seconds() - busy
    check(sample)  # not before: what it takes would count
    return {
        "samples": early["samples"] + later["samples"],
        "seconds": early["seconds"] + later["seconds"],
        "cpu_seconds": busy,
        "early_samples": early["samples"],
        "early_seconds": early["seconds"],
        "private_mb": memory,
    }


def take(stream: Iterator[Any], seconds: float) -> Result:
    """Take samples until the time is over."""
    samples = 0
    begin = now = time.perf_counter()
    while now - begin < seconds:
        samples += sum(1 for _ in islice(stream, CHUNK))
        now = time.perf_counter()
    return {"samples": samples, "seconds": now - begin}


def check(sample: Any) -> None:
    """Fail unless a sample is one that was written."""
    text = corpus()
    start = int(sample["id"]) * TEXT_BYTES % (len(text) - TEXT_BYTES)
    if sample["text"] != text[start : start + TEXT_BYTES]:
        raise SystemExit("the rows were not read back as they were written")


def forget_files(folder: Path) -> None:
    """Have the system drop the files from its cache; pages not on the disk yet would stay there."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resume(open_samples: Open, make_state: MakeState, directory: str, at: int) -> Result:
    """The same from the middle of an epoch; the state comes from a process of its own, as it does from a file."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        state = other.submit(make_state, directory, at).result()
    return first(open_samples, directory, state)


def answer(open_samples: Open, make_state: MakeState, **further: Callable[..., Result]) -> None:
    """Run what the command line asks for."""
    main(
        {
            "first": lambda **options: first(open_samples, **options),
            "resume": lambda **options: resume(open_samples, make_state, **options),
            "rate": lambda **options: rate(open_samples, **options),
            **further,
        }
    )
