"""How fast rows go from Parquet to compressed MDS: one worker and two, and a loop over the original's writer.

python benchmarks/convert.py [texts|tokens|pictures|engines] [--rows N] [--repeats N]
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


def write_tokenizer(path: Path) -> None:
    """Train a tokenizer on some texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts_of(0, 5000), trainers.BpeTrainer(vocab_size=8000, show_progress=False))
    tokenizer.save(str(path))


def write_pictures(folder: Path, count: int) -> None:
    """Write rows with a JPEG each: noise, as large as one of 500 by 375 pixels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    drawn = np.random.default_rng(0)
    for number in range(_FILES):
        jpegs = [b"\xff\xd8" + drawn.bytes(110_000) + b"\xff\xd9" for _ in range(count // _FILES)]
        pq.write_table(pa.table({"jpg": jpegs, "cls": range(len(jpegs))}), folder / f"{number}.parquet")


def runs_of(what: str, scratch: Path, num_rows: int) -> dict[str, Run]:
    """Return what is measured by turns, and write what it reads; ratios are to the first."""
    inputs, few, module = str(scratch / "in"), str(scratch / "few"), "penstock_convert"
    if what == "pictures":
        write_pictures(scratch / "in", num_rows // 100)
    else:
        write_inputs(scratch / "in", num_rows)
    ours: dict[str, object] = {"inputs": inputs}
    if what == "tokens":
        write_tokenizer(scratch / "tokenizer.json")
        ours["tokenizer"] = str(scratch / "tokenizer.json")
    if what == "engines":
        write_inputs(scratch / "few", 4000)
        ours |= {"few": few, "workers": 2}
        names = ("local", "dask", "ray", "spark")
        return {name: Run("engines", "run", {**ours, "engine": name}, True, module) for name in names}
    runs = {f"{n} workers": Run("penstock", "run", {**ours, "workers": n}, True, module) for n in (1, 2)}
    if what == "texts":
        runs["mosaic"] = Run("mosaic", "run", {"inputs": inputs, "num_rows": num_rows // 4}, True, "mosaic_convert")
    return runs


def main() -> None:
    """Measure by turns, and print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="texts", choices=["texts", "tokens", "pictures", "engines"])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="convert-") as scratch:
        runs = runs_of(given.what, Path(scratch), given.rows)
        results = measure(runs, given.repeats, Path(scratch))
    first = median_rate(next(iter(results.values())))
    for name, each in results.items():
        rate, last = median_rate(each), each[-1]
        told = ", ".join(f"{key} {value:,.6g}" for key, value in last.items() if key not in ("samples", "seconds"))
        print(f"{name:<10} {rate:>10,.0f} rows/s  {rate / first:.2f} × the first  ({told})")


if __name__ == "__main__":
    main()
