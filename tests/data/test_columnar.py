"""Columns put together from several shards: small values, large ones, and shards that are laid out differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MDSWriter, Stream, StreamingDataset

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES = 60
LARGE = 1024  # numbers of four bytes: copied once, when their batch is taken


def tokens(number: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(number, number + LARGE, dtype=np.int32)


def write(folder: Path, encoding: str, first: int = 0) -> Path:
    columns = {"id": "int", "text": "str", "tokens": encoding}
    with MDSWriter(out=str(folder), columns=columns, size_limit=40_000) as writer:
        for number in range(first, first + NUM_SAMPLES):
            writer.write({"id": number, "text": f"{number}.", "tokens": tokens(number)})
    assert len(list(folder.glob("*.mds"))) > 3
    return folder


def check(columns: dict[str, Any], ids: list[int]) -> None:
    assert columns["id"].tolist() == ids
    assert columns["text"] == [f"{number}." for number in ids]
    assert np.array_equal(np.stack(list(columns["tokens"])), np.stack([tokens(number) for number in ids]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("columns") / "fixed", f"ndarray:int32:{LARGE}")


def test_in_any_order_and_more_than_once(folder: Path) -> None:
    ids = np.random.default_rng(0).integers(0, NUM_SAMPLES, 200).tolist()
    with StreamingDataset(local=folder) as dataset:
        check(dataset.read_columns(ids), ids)


def test_batches_of_one_block_are_each_their_own(folder: Path) -> None:
    with StreamingDataset(local=folder, shuffle=True, batch_size=7, columnar=True) as dataset:
        batches = list(dataset)
    assert [len(batch["id"]) for batch in batches] == [7] * 8 + [4]
    for batch in batches:
        check(batch, batch["id"].tolist())
    batches[3]["tokens"][:] = 0  # writable, and nobody else's
    for number in (2, 4):
        check(batches[number], batches[number]["id"].tolist())


def test_they_outlive_the_dataset(folder: Path) -> None:
    with StreamingDataset(local=folder, batch_size=16, columnar=True) as dataset:
        batches = list(dataset)
    for batch in batches:
        check(batch, batch["id"].tolist())


def test_shards_that_store_a_column_differently(folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "shaped", "ndarray:int32", first=NUM_SAMPLES)
    ids = np.random.default_rng(1).permutation(2 * NUM_SAMPLES).tolist()
    with StreamingDataset(streams=[Stream(local=folder), Stream(local=other)]) as dataset:
        check(dataset.read_columns(ids), ids)
