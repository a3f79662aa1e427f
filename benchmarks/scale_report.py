"""What scale.py has measured, as a table of comparisons and as plots."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Result
from benchmarks.line_plot import Line, draw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.kept_results import KeptResults

RATE = "samples/s"
TITLES = {
    "ours": "penstock",
    "litdata": "litdata (shuffles within chunks)",
    "by hand": "numpy.memmap and a permutation, by hand",
    "slices": "slices of mmap and a permutation, by hand",
    "mosaic": "mosaicml-streaming",
}
COLORS = {"ours": "#0b6", "litdata": "#c40", "by hand": "#06c", "slices": "#6bf", "mosaic": "#888"}
BASE = "3e5"  # all fits into few shards; what larger datasets are held against

Medians = dict[str, dict[str, float]]  # by number of samples and library


def rate_of(result: Result) -> float:
    return result["samples"] / result["seconds"]


def early_rate_of(result: Result) -> float:
    return result["early_samples"] / result["early_seconds"]


def milliseconds_of(result: Result) -> float:
    return 1e3 * result["seconds"]


def memory_of(result: Result) -> float:
    return max(1.0, result["private_mb"])  # less than nothing is noise


def medians(kept: KeptResults, question: str, value: Callable[[Result], float]) -> Medians:
    found: Medians = {}
    for (asked, count, name), results in kept.results.items():
        if asked == question:
            found.setdefault(count, {})[name] = statistics.median(map(value, results))
    return found


def largest_of(figures: Medians) -> str:
    return max(figures, key=float)


# --- Comparisons, each of one question; a question that was not asked has none -----------------------------------


def compare(kept: KeptResults) -> list[Comparison]:
    """Everything that was measured beside what is to be reached."""
    rate, long_rate = medians(kept, "rate", rate_of), medians(kept, "minute", rate_of)
    return [
        *rates("second second", medians(kept, "rate", early_rate_of)),
        *rates("some seconds", rate),
        *rates("a minute", long_rate),
        *memory(medians(kept, "rate", memory_of)),
        *cold(medians(kept, "cold", rate_of)),
        *times("first shuffled sample", medians(kept, "first", milliseconds_of), 150),
        *times("resume at 50 %", medians(kept, "resume", milliseconds_of), 100),
        *times("first shuffled sample, 1e3 rows a shard", medians(kept, "first, many shards", milliseconds_of), 150),
        *times("resume at 50 %, 1e3 rows a shard", medians(kept, "resume, many shards", milliseconds_of), 100),
        *many_rates(medians(kept, "rate, many shards", rate_of)),
        *memory(medians(kept, "rate, many shards", memory_of), ", 1e3 rows a shard"),
        *indexes(kept),
        *plans(kept),
    ]


def rates(how_long: str, figures: Medians) -> list[Comparison]:
    if not figures:
        return []
    largest = largest_of(figures)
    if "ours" not in figures[largest]:
        return []
    question, at_largest = f"rows shuffled, {largest} samples, {how_long}", figures[largest]
    ours, found = at_largest["ours"], []
    if largest != BASE and BASE in figures:
        found.append(Comparison(question, ours, RATE, f"penstock, {BASE} samples", figures[BASE]["ours"], needed=0.7))
    return [*found, *against_peers(question, at_largest, {"by hand": 2, "slices": None, "litdata": 3, "mosaic": None})]


def against_peers(question: str, figures: dict[str, float], needed: dict[str, float | None]) -> list[Comparison]:
    return [
        Comparison(question, figures["ours"], RATE, TITLES[name], figures[name], needed=times)
        for name, times in needed.items()
        if name in figures
    ]


def cold(figures: Medians) -> list[Comparison]:
    return [
        comparison
        for count, by_name in figures.items()
        for comparison in against_peers(
            f"rows shuffled, {count} samples, cold", by_name, dict.fromkeys(["litdata", "by hand", "slices"])
        )
    ]


def many_rates(figures: Medians) -> list[Comparison]:
    return [
        comparison
        for count, by_name in figures.items()
        for comparison in against_peers(
            f"rows shuffled, {count} samples, 1e3 rows a shard", by_name, {"by hand": 2, "slices": None, "litdata": 3}
        )
    ]


def memory(figures: Medians, where: str = "") -> list[Comparison]:
    found = []
    for count, by_name in figures.items():
        question, ours = f"private memory of a worker, {count} samples{where}", by_name["ours"]
        found.append(megabytes(question, ours, "target", 25, needed=1 if float(count) >= 1e7 else None))
        for name in ("litdata", "by hand", "slices", "mosaic"):
            if name in by_name:
                found.append(megabytes(question, ours, TITLES[name], by_name[name]))
    return found


def times(question: str, figures: Medians, limit_ms: float) -> list[Comparison]:
    found = []
    for count, by_name in figures.items():
        asked = f"{question}, {count} samples"
        last = count == largest_of(figures)
        found.append(milliseconds(asked, by_name["ours"], "target", limit_ms, needed=1 if last else None))
        for name in ("litdata", "by hand", "mosaic"):
            if name in by_name:
                needed = 1 / 1.5 if last and name == "litdata" else None
                found.append(milliseconds(asked, by_name["ours"], TITLES[name], by_name[name], needed=needed))
    return found


def indexes(kept: KeptResults) -> list[Comparison]:
    found = []
    limits = {"1e5": (500.0, 60.0), "1e6": (4000.0, None)}
    for again, question in [(True, "open an index again"), (False, "open an index for the first time")]:
        label = "index" if again else "index, first time"
        spent = medians(kept, label, milliseconds_of)
        taken = medians(kept, label, memory_of)
        for count, by_name in spent.items():
            limit_ms, limit_mb = limits[count]
            needed = 1 if again else None
            asked = f"{question}, {count} shards"
            found.append(milliseconds(asked, by_name["ours"], "target", limit_ms, needed=needed))
            mark = limit_mb or 60.0
            found.append(megabytes(asked, taken[count]["ours"], "target", mark, needed=needed if limit_mb else None))
    return found


def plans(kept: KeptResults) -> list[Comparison]:
    first, later = medians(kept, "plan", milliseconds_of), medians(kept, "plan, at 73 %", milliseconds_of)
    return [
        milliseconds(f"{question}, {count} samples", by_name["ours"], "target", limit_ms, needed=1)
        for question, figures, limit_ms in [("plan and first ids", first, 150.0), ("ids at 73 %", later, 100.0)]
        for count, by_name in figures.items()
    ]


def milliseconds(question: str, figure: float, against: str, mark: float, needed: float | None = None) -> Comparison:
    return Comparison(question, figure, "ms", against, mark, needed=needed, lower_is_better=True)


def megabytes(question: str, figure: float, against: str, mark: float, needed: float | None = None) -> Comparison:
    return Comparison(question, figure, "MB", against, mark, needed=needed, lower_is_better=True)


# --- Plots ----------------------------------------------------------------------------------------------------------

PLOTS: list[tuple[str, str, Callable[[Result], float], str]] = [
    ("scale_rate.svg", "rate", rate_of, "samples per second, shuffled"),
    ("scale_first_sample.svg", "first", milliseconds_of, "milliseconds to the first shuffled sample"),
    ("scale_memory.svg", "rate", memory_of, "private memory of the process, MB"),
]


def draw_plots(kept: KeptResults, folder: Path) -> None:
    """Draw all libraries into one picture, for each of the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, question, value, title in PLOTS:
        figures = medians(kept, question, value)
        lines = [
            Line(TITLES[name], COLORS[name], points)
            for name in TITLES
            if (points := [(float(count), by_name[name]) for count, by_name in figures.items() if name in by_name])
        ]
        if lines:
            (folder / file_name).write_text(draw(lines, "samples of the dataset", title))
