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
    blobs: int  # samples of 50 kB
    seconds: float
    repeats: int


FULL = Scale(rows=1_200_000, blobs=16_000, seconds=4, repeats=3)
QUICK = Scale(rows=400_000, blobs=4000, seconds=1, repeats=1)

Question = Callable[[Workshop, Scale], list[Comparison]]


def medians(runs: dict[str, Run], shop: Workshop, scale: Scale) -> dict[str, float]:
    return {name: median_rate(results) for name, results in measure(runs, scale.repeats, shop.path).items()}


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


QUESTIONS: dict[str, Question] = {"jsonl": jsonl, "tar": tar}

if __name__ == "__main__":
    answer(__doc__ or "", QUESTIONS, full=FULL, quick=QUICK, peers=["hf", "webdataset"])
