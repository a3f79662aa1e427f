"""How fast sources are read, loaded, mixed and packed, beside bare libraries, EasyDeL's data package and Hugging Face.

python benchmarks/sources.py [--quick] [--only NAME] [--json FILE] [--keep FOLDER --results FILE]

Every figure is the median of several runs, each a process of its own, by turns with the others.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Comparison, Run, Workshop, measure, median_rate, run_once
from benchmarks.questions import answer

ROWS, TOKENS = "rows/s", "tokens/s"
EASYDATA, HF = "EasyDeL's data package", "HF IterableDataset"
BUFFER = 10_000
WEIGHTS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.07, "e": 0.03}


@dataclass(frozen=True)
class Scale:
    """How much to read, and how long and often."""

    token_rows: int
    text_rows: int
    documents: int
    large_files: int  # of 100 MB
    seconds: float
    repeats: int


FULL = Scale(token_rows=100_000, text_rows=200_000, documents=40_000, large_files=100, seconds=1, repeats=3)
QUICK = Scale(token_rows=20_000, text_rows=60_000, documents=8000, large_files=10, seconds=0.3, repeats=1)


def ours(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, module="penstock_sources")


def bare(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, module="bare_sources")


def easydata(action: str, **options: Any) -> Run:
    return Run("easydel", action, options)


def hugging_face(action: str, **options: Any) -> Run:
    return Run("hf", action, options, module="hf_sources")


def file(shop: Workshop, scale: Scale, name: str) -> str:
    folder = shop.dataset("penstock", module="penstock_sources", tokens=scale.token_rows, text=scale.text_rows)
    return str(Path(folder, name))


def compare(
    question: str, runs: dict[str, Run], needed: dict[str, float], shop: Workshop, scale: Scale, unit: str = ROWS
) -> list[Comparison]:
    """Sets what is called "ours" beside all others."""
    rates = {name: median_rate(results) for name, results in measure(runs, scale.repeats, shop.path).items()}
    return [
        Comparison(question, rates["ours"], unit, name, rate, needed=needed.get(name))
        for name, rate in rates.items()
        if name != "ours"
    ]


def token_lists(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Lists of 256 tokens from Parquet through the loader, in order and with a shuffle buffer."""
    options: dict[str, Any] = {"path": file(shop, scale, "tokens.parquet"), "seconds": scale.seconds}
    in_order = {
        "ours": ours("loader", **options),
        "Arrow to NumPy": bare("arrow_to_numpy", **options),
        EASYDATA: easydata("loader", **options),
        HF: hugging_face("loader", **options),
    }
    shuffled = {
        "ours": ours("loader", buffer=BUFFER, **options),
        EASYDATA: easydata("loader", buffer=BUFFER, **options),
        HF: hugging_face("loader", buffer=BUFFER, **options),
    }
    return [
        *compare("token lists, loader", in_order, {"Arrow to NumPy": 0.7, EASYDATA: 5}, shop, scale),
        *compare("token lists, loader, buffer of 10 000", shuffled, {EASYDATA: 1}, shop, scale),
    ]


def text_rows(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Rows of a number and some text from Parquet: samples one by one, and batches through the loader."""
    options: dict[str, Any] = {"path": file(shop, scale, "text.parquet"), "seconds": scale.seconds}
    samples = {
        "ours": ours("rows", **options),
        "pyarrow, as dicts": bare("arrow_to_dicts", **options),
        EASYDATA: easydata("rows", **options),
        HF: hugging_face("rows", **options),
    }
    needed = {"pyarrow, as dicts": 0.5, EASYDATA: 1, HF: 3}
    compared = compare("text rows of Parquet", samples, needed, shop, scale)
    for buffer in (None, BUFFER):
        batches = {
            "ours": ours("loader", buffer=buffer, **options),
            EASYDATA: easydata("loader", buffer=buffer, **options),
            HF: hugging_face("loader", buffer=buffer, **options),
        }
        question = "text rows, loader" if buffer is None else "text rows, loader, buffer of 10 000"
        compared += compare(question, batches, {EASYDATA: 1}, shop, scale)
    return compared


def lines(shop: Workshop, scale: Scale) -> list[Comparison]:
    """The same rows from JSON lines, CSV, plain text and Arrow, one by one."""
    compared = []
    for name, question in {
        "text.jsonl": "rows of JSON lines",
        "text.csv": "rows of CSV",
        "text.txt": "lines of text",
        "text.arrow": "rows of Arrow",
    }.items():
        options: dict[str, Any] = {"path": file(shop, scale, name), "seconds": scale.seconds}
        runs = {"ours": ours("rows", **options)}
        if name == "text.jsonl":
            runs["msgspec, line by line"] = bare("json_lines", **options)
        runs |= {EASYDATA: easydata("rows", **options), HF: hugging_face("rows", **options)}
        compared += compare(question, runs, {"msgspec, line by line": 0.8, EASYDATA: 1}, shop, scale)
    return compared


def packing(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Documents of mixed length into rows of 2048 tokens."""
    compared = []
    for strategy in ("greedy", "pool", "first_fit"):
        options: dict[str, Any] = {"strategy": strategy, "documents": scale.documents, "seconds": scale.seconds}
        runs = {"ours": ours("pack", **options), EASYDATA: easydata("pack", **options)}
        results = measure(runs, scale.repeats, shop.path)
        rates = {name: median_rate(each) for name, each in results.items()}
        compared += [
            Comparison(f"packing, {strategy}", rates["ours"], TOKENS, "target", 20e6, needed=1),
            Comparison(f"packing, {strategy}", rates["ours"], TOKENS, EASYDATA, rates[EASYDATA], needed=1),
        ]
        if strategy == "first_fit":
            filled = 100 * results["ours"][0]["filled"]
            compared.append(Comparison("packing, first_fit: filled", filled, "%", "target", 99, needed=1))
    return compared


def mixing(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Samples of five sources of text, mixed by weights."""
    options: dict[str, Any] = {
        "path": file(shop, scale, "text.parquet"),
        "weights": WEIGHTS,
        "count": scale.text_rows,
        "seconds": scale.seconds,
    }
    runs = {"ours": ours("mix", **options), EASYDATA: easydata("mix", **options)}
    return compare("five sources mixed", runs, {EASYDATA: 1}, shop, scale)


def large(shop: Workshop, scale: Scale) -> list[Comparison]:
    """A set of 10 GB: resuming at its end beside its start, and memory over the whole of it."""
    folder = str(shop.path / f"large-{scale.large_files}")
    if not Path(folder).exists():
        run_once(ours("write_large", directory=f"{folder}.half", files=scale.large_files, rows=100_000), shop.path)
        Path(f"{folder}.half").rename(folder)
    compared = []
    for buffer in (None, BUFFER):
        found = measure({"ours": ours("large", directory=folder, repeats=9, buffer=buffer)}, 1, shop.path)["ours"]
        how = "" if buffer is None else ", buffer of 10 000"
        start, end, early, late = (
            median(result[name] for result in found) for name in ("start_ms", "end_ms", "early_mb", "late_mb")
        )
        compared += [
            Comparison(f"resuming at the end{how}", end, "ms", "at the start", start, 0.8, lower_is_better=True),
            Comparison(f"memory at the end{how}", late, "MB", "after a tenth", early, 0.9, lower_is_better=True),
        ]
    return compared


QUESTIONS = {
    "token-lists": token_lists,
    "text-rows": text_rows,
    "lines": lines,
    "packing": packing,
    "mixing": mixing,
    "large": large,
}

if __name__ == "__main__":
    answer(__doc__ or "", QUESTIONS, full=FULL, quick=QUICK, peers=["easydel", "hf"])
