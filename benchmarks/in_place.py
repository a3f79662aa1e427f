"""How fast files that other programs wrote are read where they lie, beside other libraries and beside MDS.

python benchmarks/in_place.py [--quick] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Comparison, Run, Workshop, measure, median_rate
from benchmarks.questions import answer

RATE = "samples/s"


@dataclass(frozen=True)
class Scale:
    """How much data there is, and how long and often it is read."""

    rows: int
    tokens: int  # samples of 2048 of them
    blobs: int  # samples of 50 kB
    seconds: float
    repeats: int


FULL = Scale(rows=1_200_000, tokens=48_000, blobs=16_000, seconds=4, repeats=3)
QUICK = Scale(rows=400_000, tokens=16_000, blobs=4000, seconds=1, repeats=1)

Question = Callable[[Workshop, Scale], list[Comparison]]


def medians(runs: dict[str, Run], shop: Workshop, scale: Scale) -> dict[str, float]:
    return {name: median_rate(results) for name, results in measure(runs, scale.repeats, shop.path).items()}


# --- Parquet --------------------------------------------------------------------------------------------------

GROUP_ROWS = {"rows": 10_000, "tokens": 2000}
COLUMN = {"rows": "id", "tokens": "tokens"}
HF_STREAM = "HF streaming, buffer 10 000"


def of_parquet(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, module="penstock_parquet")


def parquet_files(shop: Workshop, kind: str, scale: Scale) -> str:
    count = scale.rows if kind == "rows" else scale.tokens
    return shop.dataset("hf", kind=kind, count=count, group_rows=GROUP_ROWS[kind], codec="zstd")


def parquet_rows(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled rows of Parquet, unpacked copies present, one process, sample by sample."""
    return in_one_process("rows", shop, scale, scale.rows, needed_of_mds=0.9, needed_of_hf=5)


def parquet_tokens(shop: Workshop, scale: Scale) -> list[Comparison]:
    """The same of lists of 2048 tokens."""
    return in_one_process("tokens", shop, scale, scale.tokens, needed_of_mds=1, needed_of_hf=9)


def in_one_process(
    kind: str, shop: Workshop, scale: Scale, count: int, needed_of_mds: float, needed_of_hf: float
) -> list[Comparison]:
    directory = parquet_files(shop, kind, scale)
    mds = shop.dataset("penstock", kind=kind, count=count)
    common = {"kind": kind, "count": count, "seconds": scale.seconds}
    by_column = {"column": COLUMN[kind], "seconds": scale.seconds}
    rates = medians(
        {
            "ours": of_parquet("one_by_one", directory=directory, **common),
            "columns": of_parquet("columnar", directory=directory, **by_column),
            "mds": Run("penstock", "one_by_one", {"directory": mds, **common}, module="penstock_stream"),
            "mds columns": Run("penstock", "columnar", {"directory": mds, **by_column}, module="penstock_stream"),
            "hf stream": Run("hf", "one_by_one", {"directory": directory, "form": "stream", **common}),
            "hf arrow": Run("hf", "one_by_one", {"directory": directory, "form": "arrow", **common}),
        },
        shop,
        scale,
    )
    question = f"Parquet, {kind} shuffled, one process"
    columnar = f"Parquet, {kind} shuffled, columnar"
    return [
        Comparison(question, rates["ours"], RATE, f"MDS of the same {kind}", rates["mds"], needed=needed_of_mds),
        Comparison(question, rates["ours"], RATE, HF_STREAM, rates["hf stream"], needed=needed_of_hf),
        Comparison(question, rates["ours"], RATE, "HF Arrow, random access", rates["hf arrow"]),
        Comparison(columnar, rates["columns"], RATE, f"MDS of the same {kind}", rates["mds columns"]),
    ]


def parquet_loader(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled Parquet through a stock DataLoader with 2 workers."""
    comparisons = []
    for kind in ("rows", "tokens"):
        options = {"directory": parquet_files(shop, kind, scale), "column": COLUMN[kind], "seconds": scale.seconds}
        runs = {
            "ours": of_parquet("loader", **options),
            "hf": Run("hf", "loader", {"form": "stream", "kind": kind, **options}),
        }
        rates = medians(runs, shop, scale)
        question = f"Parquet, {kind} shuffled, 2 workers"
        comparisons.append(Comparison(question, rates["ours"], RATE, HF_STREAM, rates["hf"], needed=3))
    return comparisons


def unpacking(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Row groups to what readers map, in one thread."""
    comparisons = []
    for kind in ("rows", "tokens"):
        options = {"directory": parquet_files(shop, kind, scale), "out": str(shop.path / "unpacked")}
        runs = {"ours": of_parquet("unpack", **options), "bare": of_parquet("bare_unpack", **options)}
        rates = medians(runs, shop, scale)
        against = "pyarrow: decoded, written"
        comparisons.append(
            Comparison(f"Parquet, {kind} unpacked", rates["ours"], RATE, against, rates["bare"], needed=0.8)
        )
    return comparisons


# --- Lines and tars -------------------------------------------------------------------------------------------


def of_rows(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, module="penstock_rows")


def jsonl(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled rows of JSON lines, one process, sample by sample."""
    directory = shop.dataset("penstock", "penstock_rows", kind="jsonl", count=scale.rows)
    mds = shop.dataset("penstock", kind="rows", count=scale.rows)
    checked = {"directory": directory, "count": scale.rows, "seconds": scale.seconds}
    rates = medians(
        {
            "ours": of_rows("lines", **checked),
            "columns": of_rows("line_columns", directory=directory, seconds=scale.seconds),
            "msgspec": of_rows("bare_parser", directory=directory, seconds=scale.seconds, parser="msgspec"),
            "json": of_rows("bare_parser", directory=directory, seconds=scale.seconds, parser="json"),
            "mds": of_rows("lines", **{**checked, "directory": mds}),
            "hf": Run("hf", "lines", checked, module="hf_lines"),
        },
        shop,
        scale,
    )
    question = "JSON lines shuffled, one process"
    return [
        Comparison(question, rates["ours"], RATE, "target", 300_000, needed=1),
        Comparison(question, rates["ours"], RATE, "msgspec alone, line by line", rates["msgspec"], needed=0.5),
        Comparison(question, rates["ours"], RATE, "json alone, line by line", rates["json"], needed=0.5),
        Comparison(question, rates["ours"], RATE, "MDS of the same rows", rates["mds"]),
        Comparison(question, rates["ours"], RATE, "HF streaming, buffer 10 000", rates["hf"]),
        Comparison("JSON lines shuffled, columnar", rates["columns"], RATE, "by sample", rates["ours"]),
    ]


def tar(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled samples of tars, a blob of 50 kB and a little JSON each, one process."""
    directory = shop.dataset("penstock", "penstock_rows", kind="tar", count=scale.blobs)
    options = {"directory": directory, "count": scale.blobs, "seconds": scale.seconds}
    runs = {
        "ours": of_rows("tars", **options),
        "webdataset": Run("webdataset", "tars", options, module="webdataset_tars"),
    }
    rates = medians(runs, shop, scale)
    question = "tar of 50 kB samples shuffled, one process"
    return [Comparison(question, rates["ours"], RATE, "webdataset, buffer 1000", rates["webdataset"], needed=2)]


QUESTIONS: dict[str, Question] = {
    "parquet-rows": parquet_rows,
    "parquet-tokens": parquet_tokens,
    "parquet-loader": parquet_loader,
    "unpack": unpacking,
    "jsonl": jsonl,
    "tar": tar,
}

if __name__ == "__main__":
    answer(__doc__ or "", QUESTIONS, full=FULL, quick=QUICK, peers=["hf", "webdataset"])
