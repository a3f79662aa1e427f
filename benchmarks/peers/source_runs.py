"""What adapters of sources share: the files, the documents, and passes over them. Writing them takes pyarrow."""

from __future__ import annotations

import csv
import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.peers.common import Result, make_rows, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

BATCH = 256
TOKENS_PER_LIST = 256
SEQ_LENGTH = 2048


def fields_of(path: str) -> tuple[str, ...]:
    """The columns of a file, by its name."""
    if Path(path).stem.startswith("tokens"):
        return ("input_ids",)
    return ("text",) if path.endswith(".txt") else ("id", "text")


def write_tokens(path: Path, count: int) -> None:
    """Lists of 256 tokens, 10 000 in a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tokens = np.random.default_rng(0).integers(0, 50_000, TOKENS_PER_LIST * count, dtype=np.int32)
    bounds = np.arange(0, len(tokens) + 1, TOKENS_PER_LIST, dtype=np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(bounds, tokens)})
    pq.write_table(table, path, row_group_size=10_000)


def write_text(folder: Path, count: int) -> None:
    """Rows of a number and 200 bytes of text, in a file of each format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = make_rows(count)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "text.parquet", row_group_size=10_000)
    with pa.ipc.new_file(folder / "text.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text("".join(row["text"] + "\n" for row in rows))
    with (folder / "text.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows)


def make_documents(count: int) -> tuple[npt.NDArray[np.int64], list[dict[str, Any]]]:
    """Documents of mixed length, and their lengths."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(5.5, 1.2, count).astype(np.int64).clip(1, 20_000)
    return lengths, [{"input_ids": rng.integers(2, 50_000, n, dtype=np.int32)} for n in lengths]


def count_rows(samples: Iterable[Any], limit: int | None = None) -> int:
    """Takes samples one by one, as a user does."""
    count = 0
    for _ in islice(samples, limit):
        count += 1
    return count


def count_batches(batches: Iterable[Any], field: str) -> int:
    count = 0
    for batch in batches:
        count += len(batch[field])
    return count


def timed_passes(work: Callable[[], int], seconds: float) -> Result:
    """Runs `work` until it has taken so long, and at least twice after a first run that does not count."""
    work()
    results: list[Result] = []
    while len(results) < 2 or sum(result["seconds"] for result in results) < seconds:
        results.append(timed(work))
    return sorted(results, key=lambda result: result["seconds"])[len(results) // 2]
