"""How fast shards are read and written, in one process, beside other libraries and plain NumPy.

python benchmarks/formats.py [--quick] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import (
    Comparison,
    Run,
    Workshop,
    measure,
    median_rate,
    median_seconds,
)
from benchmarks.questions import answer

RATE = "samples/s"


@dataclass(frozen=True)
class Scale:
    """How much to read and write, and how often."""

    rows: int
    written_rows: int
    tokens: int
    slow_rows: int  # for a library at tens of thousands of rows a second
    repeats: int


# 300 000 rows fill one 64 MB shard, and so do about 8 000 token rows.
FULL = Scale(rows=300_000, written_rows=600_000, tokens=32_000, slow_rows=60_000, repeats=3)
QUICK = Scale(rows=300_000, written_rows=300_000, tokens=16_000, slow_rows=15_000, repeats=3)

Question = Callable[[Workshop, Scale], list[Comparison]]


def read_rows_in_order(shop: Workshop, scale: Scale) -> list[Comparison]:
    ours = shop.dataset("penstock", kind="rows", count=scale.rows)
    mosaic = shop.dataset("mosaic", kind="rows", count=scale.slow_rows)
    litdata = shop.dataset("litdata", count=scale.rows)
    runs = {
        "shard": Run("penstock", "read_rows_by_shard", {"directory": ours, "shuffled": False}),
        "index": Run("penstock", "read_rows_by_index", {"directory": ours, "shuffled": False}),
        "litdata": Run("litdata", "read_rows", {"directory": litdata, "count": scale.rows}),
        "mosaic": Run("mosaic", "read_rows", {"directory": mosaic, "count": scale.slow_rows}),
    }
    results = measure(runs, scale.repeats, shop.path)
    rates = {name: median_rate(result) for name, result in results.items()}
    by_shard = "rows in order, shard reader"
    by_index = "rows in order, LocalDataset[a:b]"
    return [
        Comparison(by_shard, rates["shard"], RATE, "target", 1.5e6, needed=1),
        Comparison(by_shard, rates["shard"], RATE, "litdata", rates["litdata"], needed=5),
        Comparison(by_shard, rates["shard"], RATE, "mosaicml-streaming", rates["mosaic"]),
        Comparison(by_index, rates["index"], RATE, "target", 1.5e6, needed=1),
        Comparison(by_index, rates["index"], RATE, "litdata", rates["litdata"], needed=5),
    ]


def read_rows_at_random(shop: Workshop, scale: Scale) -> list[Comparison]:
    ours = shop.dataset("penstock", kind="rows", count=scale.rows)
    runs = {
        "shard": Run("penstock", "read_rows_by_shard", {"directory": ours, "shuffled": True}),
        "index": Run("penstock", "read_rows_by_index", {"directory": ours, "shuffled": True}),
    }
    results = measure(runs, scale.repeats, shop.path)
    return [
        Comparison("rows at random, shard reader", median_rate(results["shard"]), RATE, "target", 8e5, needed=1),
        Comparison("rows at random, LocalDataset[list]", median_rate(results["index"]), RATE, "target", 8e5, needed=1),
    ]


def read_tokens(shop: Workshop, scale: Scale) -> list[Comparison]:
    ours = shop.dataset("penstock", kind="tokens", count=scale.tokens)
    flat = shop.dataset("numpy_gather", count=scale.tokens)
    sizes = shard_sizes(ours)
    comparisons = []
    for shuffled, order in [(False, "in order"), (True, "at random")]:
        runs = {
            "ours": Run("penstock", "read_tokens", {"directory": ours, "shuffled": shuffled}),
            "numpy": Run(
                "numpy_gather",
                "read_tokens",
                {"directory": flat, "shard_sizes": sizes, "shuffled": shuffled},
            ),
        }
        results = measure(runs, scale.repeats, shop.path)
        figure, mark = median_rate(results["ours"]), median_rate(results["numpy"])
        comparisons.append(Comparison(f"token columns {order}", figure, RATE, "NumPy gather", mark, needed=0.6))
    return comparisons


def write_rows(shop: Workshop, scale: Scale) -> list[Comparison]:
    return compare_writing("rows", scale.written_rows, shop, scale)


def write_tokens(shop: Workshop, scale: Scale) -> list[Comparison]:
    return compare_writing("tokens", scale.tokens, shop, scale)


def compare_writing(kind: str, count: int, shop: Workshop, scale: Scale) -> list[Comparison]:
    comparisons = beside_bare_loop(kind, count, shop, scale)
    for compression, needed in [(None, 3.0), ("zstd", 2.0)]:
        options = {"kind": kind, "count": count, "compression": compression}
        runs = {peer: Run(peer, "write", options, fresh_directory=True) for peer in ("penstock", "mosaic")}
        results = measure(runs, scale.repeats, shop.path)
        figure, mark = median_rate(results["penstock"]), median_rate(results["mosaic"])
        question = f"writing {kind}, {compression or 'raw'}"
        comparisons.append(Comparison(question, figure, RATE, "mosaicml-streaming", mark, needed=needed))
    return comparisons


# How much of the speed of a loop that only appends bytes to a file is to be left with shards, checks and an index.
OF_BARE_LOOP = {"rows": 0.45, "tokens": 0.6}


def beside_bare_loop(kind: str, count: int, shop: Workshop, scale: Scale) -> list[Comparison]:
    """Raw shards beside a bare loop: both as they are, both without flushing to the disk, and both with it."""
    options = {"kind": kind, "count": count}
    runs = {
        f"{name}, {'flushed' if flush else 'not flushed'}": Run(
            "penstock", "write", {**options, "flush": flush}, fresh_directory=True, module=module
        )
        for name, module in [("ours", "penstock"), ("bare", "bare_loop")]
        for flush in (False, True)
    }
    rates = {name: median_rate(results) for name, results in measure(runs, scale.repeats, shop.path).items()}
    question, needed = f"writing {kind}, raw", OF_BARE_LOOP[kind]
    unflushed, flushed = "not flushed to the disk", "flushed to the disk"
    return [
        Comparison(
            f"{question}, {unflushed}",
            rates["ours, not flushed"],
            RATE,
            f"bare loop, {unflushed}",
            rates["bare, not flushed"],
            needed=needed,
        ),
        Comparison(
            f"{question}, {flushed}",
            rates["ours, flushed"],
            RATE,
            f"bare loop, {flushed}",
            rates["bare, flushed"],
            needed=needed,
        ),
        Comparison(
            f"{question}, {flushed}",
            rates["ours, flushed"],
            RATE,
            f"bare loop, {unflushed}",
            rates["bare, not flushed"],
            needed=needed,
        ),
    ]


def open_shard(shop: Workshop, scale: Scale) -> list[Comparison]:
    comparisons = []
    for kind, count in [("rows", scale.rows), ("tokens", scale.tokens)]:
        ours = shop.dataset("penstock", kind=kind, count=count)
        runs = {"open": Run("penstock", "open_first_shard", {"directory": ours})}
        results = measure(runs, scale.repeats, shop.path)
        question = f"opening a 64 MB shard of {kind}, to the first row"
        comparisons.append(milliseconds(question, median_seconds(results["open"]), 20))
    return comparisons


def import_package(shop: Workshop, scale: Scale) -> list[Comparison]:
    """The package loads its parts when they are first used, so their loading is shown too, without a target."""
    comparisons = []
    for statement, needed in [("import penstock", 1), ("from penstock import LocalDataset, MDSWriter", None)]:
        runs = {"import": Run("penstock", "import", {"statement": statement})}
        results = measure(runs, scale.repeats, shop.path)
        comparisons.append(milliseconds(statement, median_seconds(results["import"]), 200, needed))
    return comparisons


def milliseconds(question: str, seconds: float, limit: float, needed: float | None = 1) -> Comparison:
    return Comparison(question, seconds * 1e3, "ms", "target", limit, needed=needed, lower_is_better=True)


def shard_sizes(directory: str) -> list[int]:
    index = json.loads(Path(directory, "index.json").read_text())
    return [shard["samples"] for shard in index["shards"]]


QUESTIONS: dict[str, Question] = {
    "import": import_package,
    "open": open_shard,
    "read-rows": read_rows_in_order,
    "read-rows-random": read_rows_at_random,
    "read-tokens": read_tokens,
    "write-rows": write_rows,
    "write-tokens": write_tokens,
}


if __name__ == "__main__":
    answer(
        "Measures the shard formats side by side with other libraries.",
        QUESTIONS,
        full=FULL,
        quick=QUICK,
        peers=("mosaic", "litdata"),
    )
