"""Whether reading stays as fast, as quick to begin and as small from 10⁵ to 10⁸ samples, beside other libraries.

python benchmarks/scale.py [--quick] [--only NAME] [--json FILE] [--plots FOLDER] [--directory FOLDER]

It takes about 10 GB of disk below the temporary directory, or below `--directory`. Run it in slices, if you have no
quiet hour: `--keep` leaves the datasets in the folder, and `--results` adds to what earlier runs have measured.

python benchmarks/scale.py --directory FOLDER --keep --results results.json --only rates --sizes 1e8 --repeats 1
python benchmarks/scale.py --results results.json --report --plots docs/images
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import order
from benchmarks.harness import BenchmarkError, Run, Workshop, python_of, run_once, table
from benchmarks.kept_results import KeptResults
from benchmarks.scale_report import BASE, TITLES, compare, draw_plots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


SETTLED_S = 3.0


@dataclass(frozen=True)
class Scale:
    """How many samples there are, in how many files, and how long they are read."""

    counts: tuple[str, ...]  # of samples, the smallest for comparison and the largest last
    rows: int  # of a shard
    distinct: int  # files; all other shards are further names of these
    many: str  # samples in `many_shards`
    many_rows: int
    many_distinct: int
    indexes: tuple[str, ...]  # shards of an index
    plans: tuple[str, ...]  # samples of orders without data
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
    indexes=("1e5", "1e6"),
    plans=("1e10", "1e12"),
    most_of_mosaic=10**7,
    seconds=5,
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
    indexes=("1e5",),
    plans=("1e10",),
    most_of_mosaic=10**6,
    seconds=3,
    long_seconds=6,
    repeats=1,
)
# The environment, the form of the data and the adapter of each library.
PEERS = {
    "ours": ("penstock", "mds", "scale_penstock"),
    "litdata": ("litdata", "litdata", "scale_litdata"),
    "by hand": ("penstock", "plain", "scale_by_hand"),
    "slices": ("penstock", "plain", "scale_by_slices"),
    "mosaic": ("mosaic", "mds", "scale_mosaic"),
}


class Questions:
    """Everything that is asked, over one set of datasets."""

    def __init__(
        self, shop: Workshop, scale: Scale, kept: KeptResults, *, sizes: Sequence[str], libraries: Sequence[str]
    ) -> None:
        self.shop, self.scale, self.kept = shop, scale, kept
        self.sizes, self.libraries = sizes, libraries  # those to measure now

    # --- Datasets and runs ----------------------------------------------------------------------------------

    def folder(self, form: str, *, many: bool = False) -> Path:
        scale = self.scale
        rows, distinct, counts = scale.rows, scale.distinct, " ".join(scale.counts)
        if many:
            rows, distinct, counts = scale.many_rows, scale.many_distinct, scale.many
        options = {"form": form, "rows": rows, "distinct": distinct, "counts": counts}
        return Path(self.shop.dataset("penstock", "many_shards", **options))

    def run(self, name: str, action: str, count: str, *, many: bool = False, **options: object) -> Run:
        peer, form, module = PEERS[name]
        directory = str(self.folder(form, many=many) / count)
        return Run(peer, action, {"directory": directory, **options}, module=module)

    def ask(
        self,
        question: str,
        action: str,
        counts: Iterable[str],
        names: Iterable[str] = tuple(TITLES),
        *,
        many: bool = False,
        **options: Any,
    ) -> None:
        """Run these libraries at these sizes, by turns, so that a slow moment of the machine meets each of them."""
        runs = {
            (question, count, name): self.run(name, action, count, many=many, **options)
            for count in counts
            for name in names
            if name in self.libraries and (name != "mosaic" or float(count) <= self.scale.most_of_mosaic)
        }
        for form in {PEERS[name][1] for _, _, name in runs}:
            read_once(self.folder(form, many=many))
        for _ in range(self.scale.repeats):
            for key, run in list(runs.items()):
                try:
                    self.kept.add(key, run_once(run, self.shop.path))
                except BenchmarkError as error:
                    if key[-1] == "ours":
                        raise
                    print(f"no figure for {key}: {error}", file=sys.stderr)
                    del runs[key]

    # --- Questions ------------------------------------------------------------------------------------------

    def rates(self) -> None:
        """The rate in the second after the first and over some more; private memory at its end."""
        self.ask("rate", "rate", self.sizes, seconds=self.scale.seconds)

    def minute(self) -> None:
        """The rate of the largest dataset over a minute, and of a small one."""
        counts = [count for count in (BASE, self.scale.counts[-1]) if count in self.sizes]
        names = ("ours", "litdata", "by hand", "slices")
        self.ask("minute", "rate", counts, names, seconds=self.scale.long_seconds)

    def cold(self) -> None:
        """The same with files that are not in the system's cache, which is the disk's speed above all."""
        # Not more samples than there are in distinct files: a link to a file that was read is not cold.
        most = self.scale.rows * self.scale.distinct
        count = [count for count in self.scale.counts if float(count) <= most][-1]
        self.ask("cold", "rate", [count], ("ours", "litdata", "by hand"), seconds=self.scale.seconds, cold=True)

    def first_sample(self) -> None:
        """From after the import to the first sample, at the beginning and at half of an epoch."""
        self.ask("first", "first", self.sizes)
        for count in self.sizes:
            self.ask("resume", "resume", [count], at=half_of(count))

    def many_shards(self) -> None:
        """The same in shards of few rows."""
        count = self.scale.many
        # The first process that opens an index parses it, and keeps its columns for all who come later; not of one
        # that was written just now, which may be written again without a trace in its time.
        wait_until_settled(self.folder("mds", many=True) / count / "index.json")
        run_once(self.run("ours", "first", count, many=True), self.shop.path)
        self.ask("first, many shards", "first", [count], ("ours", "litdata"), many=True)
        self.ask("resume, many shards", "resume", [count], ("ours", "litdata"), many=True, at=half_of(count))
        names, seconds = ("ours", "litdata", "by hand", "slices"), self.scale.seconds
        self.ask("rate, many shards", "rate", [count], names, many=True, seconds=seconds)

    def indexes(self) -> None:
        """An index of very many shards, opened for the first time and from the columns that were kept of it."""
        for count in self.scale.indexes:
            for _ in range(self.scale.repeats):
                # A folder of its own each time: columns are kept by the index's place and version.
                with self.shop.folder(f"index-{count}-") as directory:
                    options = {"directory": directory, "shards": int(float(count)), "rows": 1000}
                    run_once(Run("penstock", "write_index", options, module="many_shards"), self.shop.path)
                    wait_until_settled(Path(directory, "index.json"))
                    run = Run("penstock", "open_index", {"directory": directory}, module="scale_penstock")
                    self.kept.add(("index, first time", count, "ours"), run_once(run, self.shop.path))
                    self.kept.add(("index", count, "ours"), run_once(run, self.shop.path))

    def without_data(self) -> None:
        """The order alone, of datasets too large for any disk."""
        for count in self.scale.plans:
            for _ in range(self.scale.repeats):
                found = order.run_alone(sys.executable, "native", int(float(count)))
                begin = found["build_s"] + found["first_batch_s"]
                self.kept.add(("plan", count, "ours"), {"samples": 1, "seconds": begin})
                later = {"samples": 1, "seconds": found["batch_at_73_percent_s"]}
                self.kept.add(("plan, at 73 %", count, "ours"), later)


def half_of(count: str) -> int:
    """A position at half of an epoch, where a batch begins."""
    return int(float(count)) // 512 * 256


def wait_until_settled(path: Path) -> None:
    time.sleep(max(0.0, path.stat().st_mtime + SETTLED_S - time.time()))


def read_once(folder: Path) -> None:
    """Have all files of a dataset in the system's cache; links to them need nothing more."""
    for path in folder.glob("*.bin"):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


QUESTIONS: dict[str, Callable[[Questions], None]] = {
    "rates": Questions.rates,
    "minute": Questions.minute,
    "cold": Questions.cold,
    "first-sample": Questions.first_sample,
    "many-shards": Questions.many_shards,
    "indexes": Questions.indexes,
    "without-data": Questions.without_data,
}


def measure(arguments: argparse.Namespace, kept: KeptResults) -> None:
    scale = QUICK if arguments.quick else FULL
    scale = replace(scale, repeats=arguments.repeats or scale.repeats)
    sizes = tuple(count for count in scale.counts if not arguments.sizes or count in arguments.sizes)
    for peer in ("litdata", "mosaic"):
        python_of(peer)  # before minutes of work, not after them
    with Workshop(arguments.directory, keep=arguments.keep) as shop:
        asked = Questions(shop, scale, kept, sizes=sizes, libraries=arguments.libraries or list(TITLES))
        for name in arguments.only or QUESTIONS:
            print(f"{name} ...", file=sys.stderr)
            QUESTIONS[name](asked)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures reading at any scale, beside the peers.")
    parser.add_argument("--quick", action="store_true", help="fewer samples, shorter and single runs")
    parser.add_argument("--only", choices=list(QUESTIONS), action="append", help="one question (repeatable)")
    parser.add_argument("--sizes", nargs="+", choices=FULL.counts, help="samples of datasets (default: all)")
    parser.add_argument("--libraries", nargs="+", choices=list(TITLES), help="whom to measure (default: all)")
    parser.add_argument("--repeats", type=int, help="how often each run is repeated (default: 3, quick: 1)")
    parser.add_argument("--directory", help="where to put the datasets (default: the temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the datasets there, and use those of the last run")
    parser.add_argument("--results", type=Path, metavar="FILE", help="add to the results there, and show them all")
    parser.add_argument("--report", action="store_true", help="measure nothing: show what is in the results")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparisons there as well")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the plots of the docs there")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    kept = KeptResults.load(arguments.results)
    try:
        if not arguments.report:
            measure(arguments, kept)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
    comparisons = compare(kept)
    print(table(comparisons))
    if arguments.json:
        arguments.json.write_text(json.dumps([comparison.as_json() for comparison in comparisons], indent=2))
    if arguments.plots:
        draw_plots(kept, arguments.plots)


if __name__ == "__main__":
    main()
