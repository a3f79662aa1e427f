"""Runs adapters, each in its library's own environment, by turns, and sets the medians side by side."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

ROOT = Path(__file__).resolve().parents[1]
# These need only what penstock needs (those for streaming also torch).
AT_HOME = {"penstock", "numpy_gather"}

Result = dict[str, float]  # at least `samples` and `seconds`


class BenchmarkError(Exception):
    """A run that gives no figure."""


def python_of(peer: str) -> str:
    """The interpreter of the environment that holds `peer`."""
    if peer in AT_HOME:
        return sys.executable
    default = ROOT / ".peers" / peer / "bin" / "python"
    python = Path(os.environ.get(f"PENSTOCK_PEER_{peer.upper()}", default))
    if not python.exists():
        raise BenchmarkError(f"{peer} has no environment at {python}: run `make peers`")
    return str(python)


@dataclass(frozen=True)
class Run:
    """One workload of one adapter."""

    peer: str
    action: str
    options: dict[str, Any] = field(default_factory=dict)
    # Gets a directory of its own as the option `directory`, removed afterwards.
    fresh_directory: bool = False
    # The adapter, where it is not the one that has the name of its environment.
    module: str = ""


def run_once(run: Run, scratch: Path, variables: Mapping[str, str] | None = None) -> Result:
    """Runs the adapter as a process of its own, with further variables, and returns what it printed last."""
    # Processes that a library leaves behind for a moment may still write there: the workshop's end removes the rest.
    with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as fresh:
        options = dict(run.options)
        if run.fresh_directory:
            options["directory"] = str(Path(fresh, "out"))
        command = [
            python_of(run.peer),
            "-m",
            f"benchmarks.peers.{run.module or run.peer}",
            run.action,
            json.dumps(options),
        ]
        # What a library leaves in the temporary directory goes with the run.
        # Its name marks all processes of the run, see `cpu_seconds` of the adapters.
        environment = {**os.environ, "TMPDIR": fresh, "PENSTOCK_BENCHMARK_RUN": fresh, **(variables or {})}
        # Compiled modules are kept, as everywhere else: without them, start-up is what Python's compiler takes.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{run.peer} {run.action} failed:\n{done.stderr or done.stdout}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(
    runs: dict[str, Run],
    repeats: int,
    scratch: Path,
    optional: Collection[str] = (),
    before_each: Callable[[], None] = lambda: None,
) -> dict[str, list[Result]]:
    """Runs them all by turns (A, B, A, B ...), so that a slow moment of the machine meets each of them.

    A run that fails ends everything, unless it is optional: then it is said, and left out.
    """
    results: dict[str, list[Result]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name in list(results):
            before_each()
            try:
                results[name].append(run_once(runs[name], scratch))
            except BenchmarkError as error:
                if name not in optional:
                    raise
                print(f"no figure for {name}: {error}", file=sys.stderr)
                del results[name]
    return results


def median_rate(results: list[Result]) -> float:
    return statistics.median(result["samples"] / result["seconds"] for result in results)


def median_seconds(results: list[Result]) -> float:
    return statistics.median(result["seconds"] for result in results)


@dataclass(frozen=True)
class Comparison:
    """One figure of ours beside what it is measured against: a peer's figure, or a fixed mark."""

    question: str
    figure: float
    unit: str
    against: str
    mark: float
    # How many times the mark the figure has to reach; None where nothing was promised.
    needed: float | None = None
    lower_is_better: bool = False

    @property
    def ratio(self) -> float:
        return self.mark / self.figure if self.lower_is_better else self.figure / self.mark

    @property
    def verdict(self) -> str:
        if self.needed is None:
            return ""
        return "met" if self.ratio >= self.needed else "MISSED"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "verdict": self.verdict}

    def cells(self) -> list[str]:
        needed = "" if self.needed is None else f"≥ {self.needed:g}×"
        return [
            self.question,
            show(self.figure, self.unit),
            self.against,
            show(self.mark, self.unit),
            f"{self.ratio:.2f}×",
            needed,
            self.verdict,
        ]


def show(figure: float, unit: str) -> str:
    if unit == "ms":
        return f"{figure:,.1f} ms"
    return f"{figure:,.0f} {unit}"


HEADINGS = ["question", "penstock", "against", "its figure", "ratio", "needed", "verdict"]


def table(comparisons: list[Comparison]) -> str:
    lines = [HEADINGS, *(comparison.cells() for comparison in comparisons)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [lines[0], rule, *lines[1:]]
    )


class Workshop:
    """A scratch directory in which each dataset is written once, by the library that will read it.

    It is removed in the end, unless `keep` says to leave the datasets in `directory` for the next run.
    """

    def __init__(self, directory: str | None = None, *, keep: bool = False) -> None:
        self.keep = keep
        if keep:
            self.path = Path(directory or tempfile.gettempdir()).resolve()
            self.path.mkdir(parents=True, exist_ok=True)
        else:
            self.path = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=directory))

    def dataset(self, peer: str, module: str = "", **options: Any) -> str:
        label = "-".join([module or peer, *(f"{key}={value}" for key, value in sorted(options.items()))])
        path = self.path / label
        if not path.exists():
            # Under its name only when it is whole: a run may be stopped, and the next one find what it left.
            half = path.with_name(f"{label}.half")
            shutil.rmtree(half, ignore_errors=True)
            run_once(Run(peer, "write", {"directory": str(half), **options}, module=module), self.path)
            half.rename(path)
        return str(path)

    def folder(self, prefix: str) -> tempfile.TemporaryDirectory[str]:
        """A folder that is removed after use."""
        return tempfile.TemporaryDirectory(prefix=prefix, dir=self.path)

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.keep:
            shutil.rmtree(self.path)
