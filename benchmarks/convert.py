"""How fast text rows go from Parquet to compressed MDS: one worker, two, and a loop over the original's writer.

python benchmarks/convert.py [--rows N] [--repeats N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Run, measure, median_rate

_WORDS = "the quick brown fox jumps over a lazy dog and then some more words follow it".split()  # noqa: SIM905
_FILES = 8


def text_of(number: int) -> str:
    """Make a text of some 400 characters."""
    return " ".join(_WORDS[(number * 7 + place * place) % len(_WORDS)] for place in range(80)) + f" {number}"


def write_inputs(folder: Path, num_rows: int) -> None:
    """Write the rows to a few files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for number in range(_FILES):
        ids = range(number * num_rows // _FILES, (number + 1) * num_rows // _FILES)
        pq.write_table(pa.table({"id": ids, "text": list(map(text_of, ids))}), folder / f"{number}.parquet")


def main() -> None:
    """Measure by turns, and print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="convert-") as scratch:
        write_inputs(Path(scratch, "in"), given.rows)
        ours = {"inputs": str(Path(scratch, "in"))}
        module = "penstock_convert"
        runs = {
            "one worker": Run("penstock", "run", {**ours, "workers": 1}, True, module),
            "two workers": Run("penstock", "run", {**ours, "workers": 2}, True, module),
            "mosaic": Run("mosaic", "run", {"num_rows": given.rows // 4}, True, "mosaic_convert"),
        }
        rates = {name: median_rate(results) for name, results in measure(runs, given.repeats, Path(scratch)).items()}
    for name, rate in rates.items():
        print(f"{name:<12} {rate:>10,.0f} rows/s  {rate / rates['one worker']:.2f} × one worker")
    print(f"two workers: {rates['two workers'] / rates['mosaic']:.2f} × the loop")


if __name__ == "__main__":
    main()
