"""What every adapter shares: the samples, the stopwatch, and how a result gets back to the harness.

It runs in every library's own environment, so it needs nothing but NumPy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

BATCH = 256
TEXT_BYTES = 200
TOKENS_PER_ROW = 2048
VOCABULARY = 50_000
SIZE_LIMIT = 1 << 26
ROW_COLUMNS = {"id": "int64", "text": "str"}
TOKEN_COLUMNS = {"tokens": f"ndarray:int32:{TOKENS_PER_ROW}"}
# Long enough that no compressor's window sees the text come round again.
CORPUS_BYTES = 16 << 20

Sample = dict[str, Any]
Result = dict[str, float]


def corpus() -> str:
    """Invented words, frequent ones more often, and some numbers: compresses about as prose does."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    lengths = 2 + (rng.random(4000) * 8).astype(int)
    words = ["".join(letters[(rng.random(n) ** 2 * 26).astype(int)]) for n in lengths]
    words += [str(number) for number in range(0, 100_000, 97)]
    ranks = (rng.random(CORPUS_BYTES // 5) ** 3 * len(words)).astype(int)
    return " ".join([words[rank] for rank in ranks.tolist()])


def make_rows(count: int) -> list[Sample]:
    text = corpus()
    room = len(text) - TEXT_BYTES
    starts = [number * TEXT_BYTES % room for number in range(count)]
    return [{"id": number, "text": text[at : at + TEXT_BYTES]} for number, at in enumerate(starts)]


def make_tokens(count: int) -> npt.NDArray[np.int32]:
    rng = np.random.default_rng(1)
    return rng.integers(0, VOCABULARY, size=(count, TOKENS_PER_ROW), dtype=np.int32)


def make_samples(kind: str, count: int) -> list[Sample]:
    """The samples as a user would hold them before writing: all in memory."""
    if kind == "rows":
        return make_rows(count)
    return [{"tokens": row} for row in make_tokens(count)]


def shard_orders(sizes: list[int], shuffled: bool) -> list[npt.NDArray[np.int64]]:
    """For each shard the order of its rows: as they lie, or at random."""
    rng = np.random.default_rng(2)
    return [rng.permutation(size) if shuffled else np.arange(size) for size in sizes]


def batches(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """Groups single samples, for libraries that hand them out one by one."""
    batch: list[Sample] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def check_rows(batch: list[Sample], first: int) -> None:
    """Fails unless the batch holds the rows that were written, starting with number `first`."""
    expected = make_rows(first + len(batch))[first:]
    got = [{"id": int(sample["id"]), "text": sample["text"]} for sample in batch]
    if got != expected:
        raise SystemExit(f"rows {first} and on were not read back as they were written")


def check_tokens(block: npt.NDArray[Any], row_numbers: npt.NDArray[np.int64], total: int) -> None:
    if not np.array_equal(block, make_tokens(total)[row_numbers]):
        raise SystemExit("tokens were not read back as they were written")


def timed(work: Callable[[], int]) -> Result:
    """Runs `work` once and returns how many samples it handled in how many seconds."""
    busy, begin = cpu_seconds(), time.perf_counter()
    samples = work()
    seconds = time.perf_counter() - begin
    return {"samples": samples, "seconds": seconds, "cpu_seconds": cpu_seconds() - busy}


def cpu_seconds() -> float:
    """Processor time of all processes of this run so far, workers and helpers included.

    That of others is known in ticks of 10 ms; its own is exact, for short runs.
    """
    mark = f"PENSTOCK_BENCHMARK_RUN={os.environ.get('PENSTOCK_BENCHMARK_RUN')}".encode()
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                own = 0 if process.name == str(os.getpid()) else sum(map(int, fields[11:13]))
                ticks += own + sum(map(int, fields[13:15]))  # and that of children that have ended
        except OSError:  # gone, or another user's
            continue
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def timed_warm(work: Callable[[], int]) -> Result:
    """Runs `work` until it has taken a second, and at least three times; gives the median run.

    The first run is not counted: after it, files are in the page cache and code is loaded.
    """
    work()
    results: list[Result] = []
    while len(results) < 3 or sum(result["seconds"] for result in results) < 1:
        results.append(timed(work))
    return sorted(results, key=lambda result: result["seconds"])[len(results) // 2]


def timed_writing(
    writer_class: Any, directory: str, kind: str, count: int, compression: str | None, size_limit: int = SIZE_LIMIT
) -> Result:
    """Writes the samples with a class that has the arguments of `MDSWriter`, once to warm up and once for the clock.

    Without the first pass the figure is that of the system handing out memory for the files, not of the library.
    """
    samples = make_samples(kind, count)
    columns = ROW_COLUMNS if kind == "rows" else TOKEN_COLUMNS

    def write_to(folder: str) -> int:
        with writer_class(out=folder, columns=columns, compression=compression, size_limit=size_limit) as writer:
            for sample in samples:
                writer.write(sample)
        return count

    write_to(directory)
    shutil.rmtree(directory)
    return timed(lambda: write_to(directory))


def main(actions: Mapping[str, Callable[..., Result]]) -> None:
    """`python -m benchmarks.peers.NAME ACTION OPTIONS`: the result is the last line, as JSON."""
    action, options = sys.argv[1:]
    result = actions[action](**json.loads(options))
    print(json.dumps(result))
