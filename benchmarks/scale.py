"""Whether reading stays as fast, as quick to begin and as small from 10⁵ to 10⁸ samples, beside other libraries.

python benchmarks/scale.py [--quick] [--only NAME] [--json FILE] [--plots FOLDER] [--directory FOLDER]

It takes about 8 GB of disk below the temporary directory, or below `--directory`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import order
from benchmarks.harness import BenchmarkError, Comparison, Result, Run, Workshop, measure, python_of, run_once, table
from benchmarks.line_plot import Line, draw

if TYPE_CHECKING:
    from collections.abc import Callable

RATE = "samples/s"
TITLES = {
    "ours": "penstock",
    "litdata": "litdata (shuffles within chunks)",
    "by hand": "numpy.memmap and a permutation, by hand",
    "slices": "slices of mmap and a permutation, by hand",
    "mosaic": "mosaicml-streaming",
}
COLORS = {"ours": "#0b6", "litdata": "#c40", "by hand": "#06c", "slices": "#6bf", "mosaic": "#888"}


@dataclass(frozen=True)
class Scale:
    """How many samples there are, in how many files, and how long they are read."""

    counts: tuple[str, ...]  # of samples, the smallest for comparison and the largest last
    rows: int  # of a shard
    distinct: int  # files; all other shards are further names of these
    many: str  # samples in `many_shards`
    many_rows: int
    many_distinct: int
    indexes: tuple[tuple[int, int], ...]  # shards of an index, and how many milliseconds it may take to open it
    plans: tuple[int, ...]  # samples of orders without data
    most_of_mosaic: int  # samples that its epochs are planned for in bearable time
    seconds: float
    long_seconds: float
    repeats: int


FULL = Scale(
    counts=("1e5", "3e5", "1e6", "1e7", "1e8"),
    rows=38_000,
    distinct=264,
    many="1e8",
    many_rows=1000,
    many_distinct=4000,
    indexes=((10**5, 500), (10**6, 4000)),
    plans=(10**10, 10**12),
    most_of_mosaic=10**7,
    seconds=8,
    long_seconds=60,
    repeats=3,
)
QUICK = Scale(
    counts=("1e5", "3e5", "1e7"),
    rows=38_000,
    distinct=64,
    many="1e7",
    many_rows=1000,
    many_distinct=1000,
    indexes=((10**5, 500),),
    plans=(10**10,),
    most_of_mosaic=10**6,
    seconds=3,
    long_seconds=6,
    repeats=1,
)
BASE = "3e5"  # all fits into few shards; what larger datasets are held against

Figures = dict[str, dict[str, list[Result]]]  # by number of samples and library


@dataclass
class Answers:
    """What was measured: comparisons for the table, and figures for the plots."""

    comparisons: list[Comparison]
    figures: dict[str, dict[str, dict[str, float]]]  # by plot, library and number of samples


class Questions:
    """Everything that is asked, over one set of datasets."""

    def __init__(self, shop: Workshop, scale: Scale) -> None:
        self.shop, self.scale = shop, scale
        self.largest = scale.counts[-1]
        self.answers = Answers([], {})

    # --- Datasets and runs ----------------------------------------------------------------------------------

    def folder(self, form: str, *, many: bool = False) -> str:
        scale = self.scale
        rows, distinct, counts = scale.rows, scale.distinct, " ".join(scale.counts)
        if many:
            rows, distinct, counts = scale.many_rows, scale.many_distinct, scale.many
        return self.shop.dataset("penstock", "many_shards", form=form, rows=rows, distinct=distinct, counts=counts)

    def run(self, name: str, action: str, count: str, *, many: bool = False, **options: object) -> Run:
        peers = {
            "ours": ("penstock", "mds", "scale_penstock"),
            "litdata": ("litdata", "litdata", "scale_litdata"),
            "by hand": ("penstock", "plain", "scale_by_hand"),
            "slices": ("penstock", "plain", "scale_by_slices"),
            "mosaic": ("mosaic", "mds", "scale_mosaic"),
        }
        peer, form, module = peers[name]
        directory = str(Path(self.folder(form, many=many), count))
        return Run(peer, action, {"directory": directory, **options}, module=module)

    def names(self, count: str) -> list[str]:
        return [name for name in TITLES if name != "mosaic" or float(count) <= self.scale.most_of_mosaic]

    def ask(self, action: str, counts: tuple[str, ...], **options: Any) -> Figures:
        """Run every library at every size, by turns."""
        runs = {
            (count, name): self.run(name, action, count, **options) for count in counts for name in self.names(count)
        }
        return self.ask_all(runs)

    def ask_all(self, runs: dict[tuple[str, str], Run]) -> Figures:
        results = measure(
            {f"{count} {name}": run for (count, name), run in runs.items()},
            self.scale.repeats,
            self.shop.path,
            optional=[f"{count} {name}" for count, name in runs if name == "mosaic"],
        )
        figures: Figures = {}
        for count, name in runs:
            if found := results.get(f"{count} {name}"):
                figures.setdefault(count, {})[name] = found
        return figures

    def note(self, plot: str, figures: Figures, value: Callable[[Result], float]) -> dict[str, dict[str, float]]:
        """Keep the medians for a plot; give them by number of samples and library."""
        medians = {
            count: {name: statistics.median(map(value, results)) for name, results in by_name.items()}
            for count, by_name in figures.items()
        }
        for count, by_name in medians.items():
            for name, figure in by_name.items():
                self.answers.figures.setdefault(plot, {}).setdefault(name, {})[count] = figure
        return medians

    # --- Questions ------------------------------------------------------------------------------------------

    def rates(self) -> list[Comparison]:
        """The rate at every size, in the second after the first and over some more; private memory at its end."""
        figures = self.ask("rate", self.scale.counts, seconds=self.scale.seconds)
        early = self.note("early rate", figures, lambda result: result["early_samples"] / result["early_seconds"])
        later = self.note("rate", figures, lambda result: result["samples"] / result["seconds"])
        self.note(
            "rate per second of processor time", figures, lambda result: result["samples"] / result["cpu_seconds"]
        )
        memory = self.note("memory", figures, lambda result: result["private_mb"])
        comparisons = [*self.compare_rates("second second", early), *self.compare_rates("some seconds", later)]
        for count in self.scale.counts:
            limit = 25.0 if float(count) >= 1e7 else None
            question = f"private memory of a worker, {count} samples"
            figure = memory[count]["ours"]
            comparisons.append(megabytes(question, figure, "target", 25, needed=1 if limit else None))
            for name in ("litdata", "by hand"):
                comparisons.append(megabytes(question, figure, TITLES[name], memory[count][name]))
        return comparisons

    def minute(self) -> list[Comparison]:
        """The rate of the largest dataset over a minute."""
        runs = {
            (count, name): self.run(name, "rate", count, seconds=self.scale.long_seconds)
            for count in (BASE, self.largest)
            for name in ("ours", "litdata", "by hand", "slices")
        }
        rates = self.note("long rate", self.ask_all(runs), lambda result: result["samples"] / result["seconds"])
        return self.compare_rates(f"{self.scale.long_seconds:.0f} s", rates)

    def compare_rates(self, how_long: str, rates: dict[str, dict[str, float]]) -> list[Comparison]:
        question = f"rows shuffled, {self.largest} samples, {how_long}"
        ours = rates[self.largest]["ours"]
        return [
            Comparison(question, ours, RATE, f"penstock, {BASE} samples", rates[BASE]["ours"], needed=0.7),
            Comparison(question, ours, RATE, TITLES["by hand"], rates[self.largest]["by hand"], needed=2),
            Comparison(question, ours, RATE, TITLES["slices"], rates[self.largest]["slices"]),
            Comparison(question, ours, RATE, TITLES["litdata"], rates[self.largest]["litdata"], needed=3),
        ]

    def cold(self) -> list[Comparison]:
        """The same with files that are not in the system's cache, which is the disk's speed above all."""
        count = "1e7" if "1e7" in self.scale.counts else self.largest
        runs = {
            (count, name): self.run(name, "rate", count, seconds=self.scale.seconds, cold=True)
            for name in ("ours", "litdata", "by hand")
        }
        rates = self.note("cold rate", self.ask_all(runs), lambda result: result["samples"] / result["seconds"])
        question, ours = f"rows shuffled, {count} samples, cold", rates[count]["ours"]
        return [Comparison(question, ours, RATE, TITLES[name], rates[count][name]) for name in ("litdata", "by hand")]

    def first_sample(self) -> list[Comparison]:
        """From after the import to the first sample, at the beginning and at half of an epoch."""
        first = self.note("first sample", self.ask("first", self.scale.counts), lambda result: 1e3 * result["seconds"])
        runs = {
            (count, name): self.run(name, "resume", count, at=int(float(count)) // 512 * 256)
            for count in self.scale.counts
            for name in self.names(count)
        }
        resumed = self.note("resume", self.ask_all(runs), lambda result: 1e3 * result["seconds"])
        return [
            *self.compare_times(f"first shuffled sample, {self.largest} samples", first[self.largest], 150),
            *self.compare_times(f"resume at 50 %, {self.largest} samples", resumed[self.largest], 100),
        ]

    def compare_times(self, question: str, times: dict[str, float], limit_ms: float) -> list[Comparison]:
        ours, litdata = times["ours"], times["litdata"]
        return [
            milliseconds(question, ours, "target", limit_ms, needed=1),
            milliseconds(question, ours, TITLES["litdata"], litdata, needed=1 / 1.5),
        ]

    def many_shards(self) -> list[Comparison]:
        """The same in shards of few rows."""
        count = self.scale.many
        at = int(float(count)) // 512 * 256
        # Whoever opens an index for the first time parses it, and keeps its columns for all who come later.
        run_once(self.run("ours", "first", count, many=True), self.shop.path)
        where = f"{count} samples in {float(count) / self.scale.many_rows:.0e} shards".replace("e+0", "e")
        comparisons = []
        for action, question, limit, options in [
            ("first", "first shuffled sample", 150, {}),
            ("resume", "resume at 50 %", 100, {"at": at}),
        ]:
            runs = {(count, name): self.run(name, action, count, many=True, **options) for name in ("ours", "litdata")}
            times = self.note(f"{action}, many shards", self.ask_all(runs), lambda result: 1e3 * result["seconds"])
            comparisons += self.compare_times(f"{question}, {where}", times[count], limit)
        runs = {
            (count, name): self.run(name, "rate", count, many=True, seconds=self.scale.seconds)
            for name in ("ours", "litdata", "by hand")
        }
        figures = self.ask_all(runs)
        rates = self.note("rate, many shards", figures, lambda result: result["samples"] / result["seconds"])[count]
        memory = statistics.median(result["private_mb"] for result in figures[count]["ours"])
        question = f"rows shuffled, {where}"
        return [
            *comparisons,
            Comparison(question, rates["ours"], RATE, TITLES["by hand"], rates["by hand"], needed=2),
            Comparison(question, rates["ours"], RATE, TITLES["litdata"], rates["litdata"], needed=3),
            megabytes(f"private memory of a worker, {where}", memory, "target", 25, needed=1),
        ]

    def indexes(self) -> list[Comparison]:
        """A dataset of very many shards is opened from the columns that were kept of its index."""
        comparisons = []
        for num_shards, limit_ms in self.scale.indexes:
            directory = self.shop.path / f"index-{num_shards}"
            options = {"directory": str(directory), "shards": num_shards, "rows": 1000}
            run_once(Run("penstock", "write_index", options, module="many_shards"), self.shop.path)
            run = Run("penstock", "open_index", {"directory": str(directory)}, module="scale_penstock")
            run_once(run, self.shop.path)
            results = measure({"ours": run}, self.scale.repeats, self.shop.path)["ours"]
            question = f"open an index of {num_shards:,} shards again"
            seconds = statistics.median(result["seconds"] for result in results)
            comparisons.append(milliseconds(question, 1e3 * seconds, "target", limit_ms, needed=1))
            if num_shards == 10**5:
                memory = statistics.median(result["private_mb"] for result in results)
                comparisons.append(megabytes(question, memory, "target", 60, needed=1))
        return comparisons

    def without_data(self) -> list[Comparison]:
        """The order alone, of datasets that nobody has room for."""
        comparisons = []
        for num_samples in self.scale.plans:
            found = order.measure(num_samples)
            begin = found["build_s"] + found["first_batch_s"]
            comparisons += [
                milliseconds(f"plan and first ids, {num_samples:.0e} samples", 1e3 * begin, "target", 150, needed=1),
                milliseconds(
                    f"ids at 73 %, {num_samples:.0e} samples",
                    1e3 * found["batch_at_73_percent_s"],
                    "target",
                    100,
                    needed=1,
                ),
            ]
        return comparisons


def milliseconds(question: str, figure: float, against: str, mark: float, needed: float | None = None) -> Comparison:
    return Comparison(question, figure, "ms", against, mark, needed=needed, lower_is_better=True)


def megabytes(question: str, figure: float, against: str, mark: float, needed: float | None = None) -> Comparison:
    # Less than nothing is noise.
    return Comparison(question, max(1.0, figure), "MB", against, max(1.0, mark), needed=needed, lower_is_better=True)


QUESTIONS: dict[str, Callable[[Questions], list[Comparison]]] = {
    "rates": Questions.rates,
    "minute": Questions.minute,
    "cold": Questions.cold,
    "first-sample": Questions.first_sample,
    "many-shards": Questions.many_shards,
    "indexes": Questions.indexes,
    "without-data": Questions.without_data,
}
PLOTS = {
    "rate": ("scale_rate.svg", "samples per second, shuffled"),
    "first sample": ("scale_first_sample.svg", "milliseconds to the first shuffled sample"),
    "memory": ("scale_memory.svg", "private memory of the process, MB"),
}


def draw_plots(figures: dict[str, dict[str, dict[str, float]]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for plot, (file_name, title) in PLOTS.items():
        lines = [
            Line(TITLES[name], COLORS[name], [(float(count), max(figure, 0.1)) for count, figure in by_count.items()])
            for name, by_count in figures.get(plot, {}).items()
        ]
        if lines:
            (folder / file_name).write_text(draw(lines, "samples of the dataset", title))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures reading at any scale, beside the peers.")
    parser.add_argument("--quick", action="store_true", help="fewer samples, shorter and single runs")
    parser.add_argument("--only", choices=list(QUESTIONS), action="append", help="one question (repeatable)")
    parser.add_argument("--repeats", type=int, help="how often each run is repeated (default: 3, quick: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the plots of the docs there")
    parser.add_argument("--directory", help="where to put the datasets (default: the temporary directory)")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    scale = replace(scale, repeats=arguments.repeats or scale.repeats)
    comparisons = []
    try:
        for peer in ("litdata", "mosaic"):
            python_of(peer)  # before minutes of work, not after them
        with Workshop(arguments.directory) as shop:
            asked = Questions(shop, scale)
            for name in arguments.only or QUESTIONS:
                print(f"{name} ...", file=sys.stderr)
                comparisons += QUESTIONS[name](asked)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
    print(table(comparisons))
    if arguments.json:
        rows = [comparison.as_json() for comparison in comparisons]
        arguments.json.write_text(json.dumps({"comparisons": rows, "figures": asked.answers.figures}, indent=2))
    if arguments.plots:
        draw_plots(asked.answers.figures, arguments.plots)


if __name__ == "__main__":
    main()
