"""Our sources: samples one by one, the loader, mixing, packing, and a set that is far larger than memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.peers.common import Result, main
from benchmarks.peers.source_runs import (
    BATCH,
    SEQ_LENGTH,
    count_batches,
    count_rows,
    fields_of,
    make_documents,
    timed_passes,
    write_text,
    write_tokens,
)

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CsvShardedSource,
    JsonShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ParquetShardedSource,
    TextShardedSource,
)

SOURCES: dict[str, Any] = {
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "jsonl": JsonShardedSource,
    "csv": CsvShardedSource,
    "txt": TextShardedSource,
}


def open_source(path: str) -> Any:
    return SOURCES[path.rsplit(".", 1)[1]](path)


def write(directory: str, tokens: int, text: int) -> Result:
    Path(directory).mkdir()
    write_tokens(Path(directory, "tokens.parquet"), tokens)
    write_text(Path(directory), text)
    return {"samples": tokens + text, "seconds": 1}


def rows(path: str, seconds: float) -> Result:
    return timed_passes(lambda: count_rows(open_source(path)), seconds)


def loader(path: str, seconds: float, buffer: int | None = None) -> Result:
    def read() -> int:
        made = AsyncDataLoader(open_source(path), batch_size=BATCH, shuffle_buffer_size=buffer, seed=1)
        return count_batches(made, fields_of(path)[0])

    return timed_passes(read, seconds)


def mix(path: str, weights: dict[str, float], count: int, seconds: float) -> Result:
    def read() -> int:
        return count_rows(MixedShardedSource({name: open_source(path) for name in weights}, weights), count)

    return timed_passes(read, seconds)


def pack(strategy: Any, documents: int, seconds: float) -> Result:
    lengths, samples = make_documents(documents)
    packed = PackedShardedSource(MemoryShardedSource(samples), SEQ_LENGTH, 1, strategy=strategy)

    def read() -> int:
        count_rows(packed)
        return int(lengths.sum())

    return {**timed_passes(read, seconds), "filled": packed.stats().filled}


# --- A large set --------------------------------------------------------------------------------------------------


def write_large(directory: str, files: int, rows: int) -> Result:
    """One file under many names: it is read as often as it has names, and lies on the disk once."""
    Path(directory).mkdir()
    first = Path(directory, "tokens-0000.parquet")
    write_tokens(first, rows)
    for number in range(1, files):
        Path(directory, f"tokens-{number:04}.parquet").hardlink_to(first)
    return {"samples": files * rows, "seconds": 1}


def large(directory: str, repeats: int, buffer: int | None = None) -> Result:
    """A whole pass and its memory; then the first batch after states from its start and its end, by turns."""

    def make() -> AsyncDataLoader:
        return AsyncDataLoader(ParquetShardedSource(directory), BATCH, shuffle_buffer_size=buffer, seed=1)

    passing = make()
    num_files = len(list(Path(directory).iterdir()))
    # Equally far into a row group, which is read from its beginning.
    places = [len(passing) // num_files - 2, len(passing) - 2]
    states: list[Any] = []
    memory: list[float] = []
    begin = time.perf_counter()
    for number, batch in enumerate(passing):
        if number in places:
            states.append(passing.state_dict())
        if number % 50 == 0:
            memory.append(resident_mb())
        del batch
    seconds = time.perf_counter() - begin
    found: list[list[float]] = [[], []]
    for _ in range(repeats):
        for state, times in zip(states, found, strict=True):
            resumed = make()
            resumed.load_state_dict(state)
            begin = time.perf_counter()
            batches = iter(resumed)
            next(batches)
            times.append(time.perf_counter() - begin)
            batches.close()
    at_start, at_end = (1000 * sorted(times)[len(times) // 2] for times in found)
    tenth = len(memory) // 10
    return {
        "samples": len(passing) * BATCH,
        "seconds": seconds,
        "start_ms": at_start,
        "end_ms": at_end,
        "early_mb": max(memory[tenth : 2 * tenth]),
        "late_mb": max(memory[-tenth:]),
    }


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    main(
        {
            "write": write,
            "rows": rows,
            "loader": loader,
            "mix": mix,
            "pack": pack,
            "write_large": write_large,
            "large": large,
        }
    )
