"""How fast text rows go from Parquet to compressed MDS: one worker, two, and a loop over the original's writer.

python benchmarks/convert.py [--rows N] [--repeats N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Run, measure, median_rate

_FILES = 8
_NUM_WORDS = 30_000
_WORDS_OF_TEXT = 70


def texts_of(first: int, count: int) -> list[str]:
    """Make texts of some 400 characters, whose words are as unequally frequent as those of a language."""
    letters = np.random.default_rng(0).integers(97, 123, (_NUM_WORDS, 12), dtype=np.uint8)
    lengths = np.random.default_rng(1).integers(2, 9, _NUM_WORDS)
    words = np.array([bytes(letters[n, : lengths[n]]).decode() for n in range(_NUM_WORDS)], object)
    drawn = np.random.default_rng(first).random((count, _WORDS_OF_TEXT))
    return list(map(" ".join, words[(np.exp(drawn * np.log(_NUM_WORDS)) - 1).astype(np.int64)]))


def write_inputs(folder: Path, num_rows: int) -> None:
    """Write the rows to a few files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for number in range(_FILES):
        first, end = number * num_rows // _FILES, (number + 1) * num_rows // _FILES
        table = pa.table({"id": range(first, end), "text": texts_of(first, end - first)})
        pq.write_table(table, folder / f"{number}.parquet")


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
