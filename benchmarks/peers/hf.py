"""Hugging Face datasets, in .peers/hf: Parquet files as a stream, and an Arrow table with random access."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.peers.common import BATCH, TOKENS_PER_ROW, Result, main, make_rows, make_tokens, timed
from benchmarks.peers.streaming import WORKERS, check_samples, timed_batches, timed_samples
from datasets import Dataset, load_dataset, load_from_disk
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterable

# Each worker takes files of its own, so there have to be some.
NUM_FILES = 8
# What its documentation uses for shuffling a stream.
BUFFER = 10_000


def make_table(kind: str, count: int) -> pa.Table:
    if kind == "rows":
        return pa.Table.from_pylist(make_rows(count))
    tokens = pa.array(make_tokens(count).reshape(-1))
    return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(tokens, TOKENS_PER_ROW)})


def write(
    directory: str, kind: str, count: int, files: int = NUM_FILES, group_rows: int | None = None, codec: str = "snappy"
) -> Result:
    """Both forms, to have something to read: its writing is not compared."""
    table = make_table(kind, count)

    def work() -> int:
        parquet = Path(directory, "parquet")
        parquet.mkdir(parents=True)
        size = -(-count // files)
        for number in range(files):
            some = table.slice(number * size, size)
            pq.write_table(some, parquet / f"{number:05}.parquet", row_group_size=group_rows, compression=codec)
        Dataset(table).save_to_disk(str(Path(directory, "arrow")))
        return count

    return timed(work)


def open_dataset(directory: str, kind: str, form: str, shuffled: bool) -> Any:
    """The dataset as its documentation has it for torch: tensors where there are numbers."""
    if form == "arrow":
        dataset = load_from_disk(str(Path(directory, "arrow")))
        dataset = dataset.shuffle(seed=0) if shuffled else dataset
    else:
        files = [str(path) for path in sorted(Path(directory, "parquet").iterdir())]
        dataset = load_dataset("parquet", data_files=files, split="train", streaming=True)
        dataset = dataset.shuffle(seed=0, buffer_size=BUFFER) if shuffled else dataset
    return dataset.with_format("numpy") if kind == "tokens" else dataset


def one_by_one(directory: str, kind: str, count: int, seconds: float, form: str, shuffled: bool = True) -> Result:
    dataset: Iterable[Any] = open_dataset(directory, kind, form, shuffled)
    check_samples(kind, dataset, count)
    return timed_samples(lambda: dataset, seconds)


def loader(directory: str, kind: str, column: str, seconds: float, form: str, shuffled: bool = True) -> Result:
    dataset = open_dataset(directory, kind, form, shuffled=shuffled and form == "stream")
    # A table is shuffled by the loader, as any dataset with random access.
    options: dict[str, Any] = {"shuffle": True} if form == "arrow" and shuffled else {}
    batches = DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True, **options)
    return timed_batches(lambda: batches, seconds, column)


if __name__ == "__main__":
    main({"write": write, "one_by_one": one_by_one, "loader": loader})
