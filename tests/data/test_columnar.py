"""Columns put together from several shards: small values, large ones, and shards that are laid out differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from penstock import LocalDataset, MDSWriter, Stream, StreamingDataset
from penstock.errors import CorruptShardError

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
    batches[3]["tokens"][:] = 0  # writable, and not shared
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


def write_texts(folder: Path, texts: list[str], per_shard: int) -> Path:
    """Shards of so many texts each: of one length or not, short or not, which are read in ways of their own."""
    size_limit = 60 + per_shard * (12 + max(len(text.encode()) for text in texts))
    with MDSWriter(out=str(folder), columns={"text": "str"}, size_limit=size_limit) as writer:
        for text in texts:
            writer.write({"text": text})
    return folder


TEXTS = {
    "equal": [f"{number:05}" for number in range(NUM_SAMPLES)],
    "short": ["é" * (number % 7) for number in range(NUM_SAMPLES)],
    "long": [f"{number} " * (20 + number) for number in range(NUM_SAMPLES)],
    "short, then long": [f"{number}." * (1 if number < 30 else 400) for number in range(NUM_SAMPLES)],
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS.keys())
def test_texts_of_any_length(tmp_path: Path, texts: list[str]) -> None:
    folder = write_texts(tmp_path, texts, per_shard=7)
    ids = np.random.default_rng(2).integers(0, NUM_SAMPLES, 200).tolist()
    dataset = LocalDataset(folder)
    assert dataset.read_columns(ids)["text"] == [texts[number] for number in ids]
    assert [sample["text"] for sample in dataset[ids]] == [texts[number] for number in ids]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_value_that_cannot_be_decoded(tmp_path: Path, on_error: Literal["raise", "skip"]) -> None:
    folder = write_texts(tmp_path, TEXTS["equal"], per_shard=7)
    (path,) = (path for path in folder.glob("*.mds") if b"00016" in path.read_bytes())
    row = path.read_bytes()[: path.read_bytes().index(b"00016")].count(b"000")
    path.write_bytes(path.read_bytes().replace(b"00016", b"000\xff6"))
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=20, columnar=True, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(CorruptShardError, match=rf"{path.name}, row {row}: column 'text'.*utf-8"):
            list(dataset)
        return
    with dataset:
        read = [text for batch in dataset for text in batch["text"]]
        assert len(read) == NUM_SAMPLES
        assert set(read) == set(TEXTS["equal"]) - {"00016"}
        assert dataset.stats().skipped == 1
