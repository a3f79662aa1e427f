"""How fast sources are read, packed, mixed and loaded, beside the bare libraries that they stand on.

python benchmarks/sources.py [--quick] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import io
import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Comparison, Workshop
from benchmarks.questions import answer

from penstock import (
    AsyncDataLoader,
    JsonShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ParquetShardedSource,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, TOKENS = "rows/s", "tokens/s"
SEQ_LENGTH = 2048


@dataclass(frozen=True)
class Scale:
    """How much to read, and how often."""

    token_rows: int
    text_rows: int
    documents: int
    repeats: int


FULL = Scale(token_rows=100_000, text_rows=300_000, documents=40_000, repeats=5)
QUICK = Scale(token_rows=20_000, text_rows=60_000, documents=8_000, repeats=3)


def rates(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Run by turns, one turn that is not counted first, and give the median rate of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            count = run()
            if turn:
                seconds[name].append((time.perf_counter() - begin) / count)
    return {name: 1 / median(each) for name, each in seconds.items()}


def token_lists(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Lists of 256 tokens from Parquet, through the loader, beside a loop from Arrow to NumPy."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(shop.path) / "token-lists"
    folder.mkdir()
    tokens = np.random.default_rng(0).integers(0, 50_000, 256 * scale.token_rows, dtype=np.int32)
    column = pa.ListArray.from_arrays(np.arange(0, len(tokens) + 1, 256, dtype=np.int32), tokens)
    pq.write_table(pa.table({"input_ids": column}), folder / "0.parquet", row_group_size=10_000)

    def bare() -> int:
        count = 0
        for batch in pq.ParquetFile(folder / "0.parquet").iter_batches(256):
            count += len(batch.column(0).values.to_numpy().reshape(-1, 256).copy())
        return count

    def ours() -> int:
        loader = AsyncDataLoader(ParquetShardedSource(str(folder)), 256, drop_last=False)
        return sum(len(batch["input_ids"]) for batch in loader)

    found = rates({"bare": bare, "ours": ours}, scale.repeats)
    return [
        Comparison("token lists through the loader", found["ours"], ROWS, "Arrow to NumPy", found["bare"], needed=0.7)
    ]


def text_rows(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Text rows as dicts, from Parquet and from JSON lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(shop.path) / "text-rows"
    folder.mkdir()
    rows = [{"id": n, "text": f"some text about number {n} " * 6} for n in range(scale.text_rows)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "0.parquet", row_group_size=20_000)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "0.jsonl").write_bytes(lines)

    def bare_parquet() -> int:
        return sum(len(batch.to_pylist()) for batch in pq.ParquetFile(folder / "0.parquet").iter_batches(1024))

    def read(source: Any) -> int:
        count, samples = 0, iter(source)
        while chunk := samples.read():
            count += len(chunk)
        return count

    def bare_json() -> int:
        from msgspec.json import Decoder

        decode = Decoder().decode
        return sum(len(decode(line)) > 0 for line in io.BytesIO((folder / "0.jsonl").read_bytes()))

    found = rates(
        {
            "bare parquet": bare_parquet,
            "parquet": lambda: read(ParquetShardedSource(str(folder / "0.parquet"))),
            "loader": lambda: sum(
                len(batch["id"]) for batch in AsyncDataLoader(ParquetShardedSource(str(folder / "0.parquet")), 256)
            ),
            "bare json": bare_json,
            "json": lambda: read(JsonShardedSource(str(folder / "0.jsonl"))),
        },
        scale.repeats,
    )
    return [
        Comparison(
            "text rows of Parquet", found["parquet"], ROWS, "pyarrow, as dicts", found["bare parquet"], needed=0.5
        ),
        Comparison("text rows through the loader", found["loader"], ROWS, "pyarrow, as dicts", found["bare parquet"]),
        Comparison("JSON lines", found["json"], ROWS, "msgspec, line by line", found["bare json"], needed=0.8),
    ]


def packing(shop: Workshop, scale: Scale) -> list[Comparison]:  # noqa: ARG001
    """Documents of mixed length into rows of 2048 tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(5.5, 1.2, scale.documents).astype(int).clip(1, 20_000)
    documents = MemoryShardedSource([{"input_ids": rng.integers(2, 50_000, n, dtype=np.int32)} for n in lengths])
    sources = {
        strategy: PackedShardedSource(documents, SEQ_LENGTH, 1, strategy=strategy)
        for strategy in ("greedy", "pool", "first_fit")
    }

    def run(source: PackedShardedSource) -> int:
        rows = source.open_shard("packed")
        while rows.take(64):
            pass
        return int(lengths.sum())

    found = rates({name: partial(run, source) for name, source in sources.items()}, scale.repeats)
    filled = sources["first_fit"].stats().filled
    return [
        *(Comparison(f"packing, {name}", rate, TOKENS, "target", 20e6, needed=1) for name, rate in found.items()),
        Comparison("packing, first_fit: filled", filled, "of 1", "target", 0.99, needed=1),
    ]


def mixing(shop: Workshop, scale: Scale) -> list[Comparison]:  # noqa: ARG001
    """Samples of five sources, mixed, beside the same samples of one."""
    samples = [{"id": n} for n in range(10_000)]
    one = MemoryShardedSource(samples)
    weights = dict(zip("abcde", (0.4, 0.3, 0.2, 0.07, 0.03), strict=True))
    mixed = MixedShardedSource({name: MemoryShardedSource(samples) for name in weights}, weights)
    count = scale.text_rows // 3

    def alone() -> int:
        return sum(len(iter(one).take(10_000)) for _ in range(count // 10_000))

    found = rates({"alone": alone, "mixed": lambda: len(iter(mixed).take(count))}, scale.repeats)
    return [Comparison("mixing five sources", found["mixed"], ROWS, "one source", found["alone"])]


QUESTIONS = {"token-lists": token_lists, "text-rows": text_rows, "packing": packing, "mixing": mixing}

if __name__ == "__main__":
    answer(__doc__ or "", QUESTIONS, full=FULL, quick=QUICK, peers=[])
