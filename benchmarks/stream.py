"""How fast, and in how much memory, samples of a warm local dataset reach the training loop, beside other libraries.

python benchmarks/stream.py [--quick] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import (
    Comparison,
    Result,
    Run,
    Workshop,
    measure,
    median_rate,
    median_seconds,
)
from benchmarks.questions import answer

RATE = "samples/s"
COLUMN = {"rows": "id", "tokens": "tokens"}
TITLES = {
    "mosaic": "mosaicml-streaming",
    "litdata": "litdata (shuffles within chunks)",
    "hf stream": "HF streaming Parquet",
    "hf arrow": "HF Arrow",
    "hf arrow in order": "HF Arrow, in order",
    "webdataset": "webdataset",
}


@dataclass(frozen=True)
class Scale:
    """How much data there is, and how long and often it is read."""

    rows: int
    tokens: int
    slow_rows: int  # for a library that takes long to write them
    images: int
    seconds: float
    repeats: int


FULL = Scale(rows=1_200_000, tokens=48_000, slow_rows=100_000, images=1500, seconds=4, repeats=3)
QUICK = Scale(rows=600_000, tokens=16_000, slow_rows=20_000, images=300, seconds=1, repeats=1)

Question = Callable[[Workshop, Scale], list[Comparison]]


def ours(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, module="penstock_stream")


def our_dataset(shop: Workshop, kind: str, scale: Scale) -> str:
    return shop.dataset("penstock", kind=kind, count=count_of(kind, scale))


def count_of(kind: str, scale: Scale) -> int:
    return scale.rows if kind == "rows" else scale.tokens


def peer_runs(shop: Workshop, scale: Scale, kind: str, through: str) -> dict[str, Run]:
    """Every peer over the same samples: `through` is one process (`one_by_one`) or a loader with workers (`loader`)."""
    count = count_of(kind, scale)
    few = min(count, scale.slow_rows)
    mosaic, litdata, hf, tars = (
        our_dataset(shop, kind, scale),
        shop.dataset("litdata", "litdata_stream", kind=kind, count=count),
        shop.dataset("hf", kind=kind, count=count),
        shop.dataset("webdataset", kind=kind, count=few),
    )
    if through == "loader":
        common: dict[str, Any] = {"column": COLUMN[kind], "seconds": scale.seconds}
        mosaic_action, few_common = "stock_loader", common
        hf_common = {**common, "kind": kind}
    else:
        common = {"kind": kind, "count": count, "seconds": scale.seconds}
        mosaic_action, few_common, hf_common = "one_by_one", {**common, "count": few}, common
    arrow = {"directory": hf, "form": "arrow", **hf_common}
    return {
        "mosaic": Run("mosaic", mosaic_action, {"directory": mosaic, **common}, module="mosaic_stream"),
        "litdata": Run("litdata", through, {"directory": litdata, **common}, module="litdata_stream"),
        "hf stream": Run("hf", through, {"directory": hf, "form": "stream", **hf_common}),
        "hf arrow": Run("hf", through, arrow),
        "hf arrow in order": Run("hf", through, {**arrow, "shuffled": False}),
        "webdataset": Run("webdataset", through, {"directory": tars, **few_common}),
    }


def beside_peers(question: str, rates: dict[str, float], needed: float) -> list[Comparison]:
    return [
        Comparison(question, rates["ours"], RATE, title, rates[name], needed=needed)
        for name, title in TITLES.items()
        if name in rates
    ]


def medians(runs: dict[str, Run], shop: Workshop, scale: Scale) -> dict[str, float]:
    return {name: median_rate(results) for name, results in measure(runs, scale.repeats, shop.path).items()}


def rows_in_one_process(shop: Workshop, scale: Scale) -> list[Comparison]:
    directory = our_dataset(shop, "rows", scale)
    options = {"directory": directory, "kind": "rows", "count": scale.rows, "seconds": scale.seconds}
    rates = medians(
        {"ours": ours("one_by_one", **options), **peer_runs(shop, scale, "rows", "one_by_one")}, shop, scale
    )
    question = "rows, shuffled, one process"
    target = Comparison(question, rates["ours"], RATE, "target", 7.5e5, needed=1)
    return [target, *beside_peers(question, rates, needed=3)]


def tokens_in_one_process(shop: Workshop, scale: Scale) -> list[Comparison]:
    options = {"directory": our_dataset(shop, "tokens", scale), "column": "tokens", "seconds": scale.seconds}
    runs = {"ours": ours("columnar", **options), **peer_runs(shop, scale, "tokens", "one_by_one")}
    return beside_peers("tokens, shuffled, columnar, one process", medians(runs, shop, scale), needed=5)


def rows_through_stock_loader(shop: Workshop, scale: Scale) -> list[Comparison]:
    return through_stock_loader("rows", shop, scale)


def tokens_through_stock_loader(shop: Workshop, scale: Scale) -> list[Comparison]:
    return through_stock_loader("tokens", shop, scale)


def through_stock_loader(kind: str, shop: Workshop, scale: Scale) -> list[Comparison]:
    directory = our_dataset(shop, kind, scale)
    common = {"column": COLUMN[kind], "seconds": scale.seconds}
    constant = {**common, "kind": kind, "count": count_of(kind, scale)}
    runs = {
        "ours": ours("stock_loader", directory=directory, **common),
        "constant": Run("penstock", "stock_loader", constant, module="constant"),
        "in memory": Run("penstock", "stock_loader", {**constant, "num_samples": 8192}, module="constant"),
        **peer_runs(shop, scale, kind, "loader"),
    }
    rates = medians(runs, shop, scale)
    question = f"{kind}, stock DataLoader, 2 workers"
    ceilings = [
        Comparison(question, rates["ours"], RATE, "one constant sample", rates.pop("constant"), needed=0.8),
        Comparison(question, rates["ours"], RATE, "8192 samples in memory", rates.pop("in memory")),
    ]
    return [*ceilings, *beside_peers(question, rates, needed=1)]


def through_own_loader(shop: Workshop, scale: Scale) -> list[Comparison]:
    comparisons = []
    for kind, target in [("rows", 1e6), ("tokens", 4e5)]:
        options = {"directory": our_dataset(shop, kind, scale), "column": COLUMN[kind], "seconds": scale.seconds}
        runs = {
            "no thread": ours("own_loader", **options),
            "thread": ours("own_loader", workers=2, **options),
        }
        rates = medians(runs, shop, scale)
        question = f"{kind} as tensors, own loader, columnar"
        comparisons += [
            Comparison(question, rates["no thread"], RATE, "target", target, needed=1),
            Comparison(f"{question}, in a thread", rates["thread"], RATE, "no thread", rates["no thread"], needed=0.95),
        ]
    return comparisons


def overridden_get_item(shop: Workshop, scale: Scale) -> list[Comparison]:
    options = {"directory": our_dataset(shop, "rows", scale), "seconds": scale.seconds}
    rates = medians({"ours": ours("overridden", **options)}, shop, scale)
    return [Comparison("rows, own get_item, one process", rates["ours"], RATE, "target", 2e5, needed=1)]


def images_as_arrays(shop: Workshop, scale: Scale) -> list[Comparison]:
    directory = shop.dataset("penstock", "jpegs", count=scale.images)
    options = {"count": scale.images, "seconds": scale.seconds}
    runs = {
        "ours": ours("images", directory=directory, **options),
        "bare": Run("penstock", "decode", options, module="jpegs"),
        "mosaic": Run("mosaic", "images", {"directory": directory, **options}, module="mosaic_stream"),
    }
    rates = medians(runs, shop, scale)
    question = "JPEGs as arrays, one process"
    return [
        Comparison(question, rates["ours"], RATE, "bare libjpeg-turbo loop", rates["bare"], needed=0.95),
        Comparison(question, rates["ours"], RATE, TITLES["mosaic"], rates["mosaic"], needed=1.5),
    ]


def images_by_column(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Batches of 256 images are 144 MB: the training loop holds one, and one is made; a thread holds one more."""
    directory = shop.dataset("penstock", "jpegs", count=scale.images)
    options = {"count": scale.images, "seconds": scale.seconds}
    runs = {
        "no thread": ours("columnar_images", directory=directory, **options),
        "thread": ours("columnar_images", directory=directory, workers=2, **options),
        "bare": Run("penstock", "decode", options, module="jpegs"),
    }
    results = measure(runs, scale.repeats, shop.path)
    rates = {name: median_rate(found) for name, found in results.items()}
    question = "JPEGs as columns of arrays, own loader"
    return [
        Comparison(question, rates["no thread"], RATE, "bare libjpeg-turbo loop", rates["bare"], needed=1.7),
        Comparison(f"{question}, in a thread", rates["thread"], RATE, "no thread", rates["no thread"], needed=0.95),
        megabytes(f"{question}, memory", median_of("added_mb", results["no thread"]), "target", 400, needed=1),
        megabytes(
            f"{question}, in a thread, memory", median_of("added_mb", results["thread"]), "target", 600, needed=1
        ),
    ]


def rows_in_order(shop: Workshop, scale: Scale) -> list[Comparison]:
    """What the order takes of a pass that needs least of everything else."""
    directory = our_dataset(shop, "rows", scale)
    results = measure({"ours": ours("in_order", directory=directory, seconds=scale.seconds)}, scale.repeats, shop.path)
    share = 100 * median_of("order_share", results["ours"])
    question = "rows in order, columnar, one process: time in the order"
    return [Comparison(question, share, "%", "target", 15, needed=1, lower_is_better=True)]


def memory(shop: Workshop, scale: Scale) -> list[Comparison]:
    small = shop.dataset("penstock", "huge", count=10**7, shards=10**3)
    large = shop.dataset("penstock", "huge", count=10**9, shards=10**4)
    seconds = 3 * scale.seconds
    runs = {
        "constant": Run("penstock", "memory", {"seconds": seconds}, module="constant"),
        "small": ours("memory", directory=small, seconds=seconds),
        "large": ours("memory", directory=large, seconds=seconds),
        "mosaic constant": Run("mosaic", "memory", {"seconds": seconds}, module="constant"),
        "mosaic": Run("mosaic", "memory", {"directory": small, "seconds": seconds}, module="mosaic_stream"),
    }
    results = measure(runs, scale.repeats, shop.path)
    added = {
        name: median_of("anon_mb", results[name]) - median_of("anon_mb", results[floor])
        for name, floor in [("small", "constant"), ("large", "constant"), ("mosaic", "mosaic constant")]
    }
    at_10_7 = "private memory, 10⁷ samples in 10³ shards, 2 workers"
    at_10_9 = "private memory, 10⁹ samples in 10⁴ shards, 2 workers"
    return [
        megabytes(at_10_7, added["small"], "target", 60, needed=1),
        megabytes(at_10_7, added["small"], TITLES["mosaic"], added["mosaic"]),
        megabytes(at_10_9, added["large"], "target", 100, needed=1),
    ]


def first_batch(shop: Workshop, scale: Scale) -> list[Comparison]:
    comparisons = []
    for count, shards, limit_ms, title in [
        (10**9, 10**4, 1000, "10⁹ samples in 10⁴ shards"),
        (10**9, 10**5, 3000, "10⁹ samples in 10⁵ shards"),
    ]:
        directory = shop.dataset("penstock", "huge", count=count, shards=shards, linked=True)
        runs = {f"{n} workers": ours("first_batch", directory=directory, workers=n) for n in (0, 2)}
        for name, results in measure(runs, max(3, scale.repeats), shop.path).items():
            question = f"first batch, {title}, {name}"
            figure = median_seconds(results) * 1e3
            comparisons.append(Comparison(question, figure, "ms", "target", limit_ms, needed=1, lower_is_better=True))
    return comparisons


def median_of(name: str, results: list[Result]) -> float:
    return statistics.median(result[name] for result in results)


def megabytes(question: str, figure: float, against: str, mark: float, needed: float | None = None) -> Comparison:
    # Less than nothing is noise of the two runs.
    return Comparison(question, max(1.0, figure), "MB", against, max(1.0, mark), needed=needed, lower_is_better=True)


QUESTIONS: dict[str, Question] = {
    "rows": rows_in_one_process,
    "tokens": tokens_in_one_process,
    "loader-rows": rows_through_stock_loader,
    "loader-tokens": tokens_through_stock_loader,
    "own-loader": through_own_loader,
    "get-item": overridden_get_item,
    "images": images_as_arrays,
    "images-columnar": images_by_column,
    "in-order": rows_in_order,
    "memory": memory,
    "first-batch": first_batch,
}


if __name__ == "__main__":
    answer(
        "Measures streaming from a warm local dataset, beside the peers.",
        QUESTIONS,
        full=FULL,
        quick=QUICK,
        peers=("mosaic", "litdata", "hf", "webdataset"),
    )
