"""Large samples are read a few at a time: the same samples in the same order, resumed and skipped as any others."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MDSWriter, StreamingDataset
from penstock.reading.schedule import decoded_at_once, portion_size

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES, NUM_BYTES = 300, 40_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large")
    with MDSWriter(out=str(path), columns={"id": "int", "data": "bytes"}, size_limit=1 << 20) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"id": number, "data": content(number)})
    return path


def content(number: int) -> bytes:
    return number.to_bytes(2, "little") * (NUM_BYTES // 2)


def taken(samples: Any) -> list[int]:
    samples = list(samples)
    assert all(each["data"] == content(each["id"]) for each in samples)
    return [int(each["id"]) for each in samples]


def test_portions_are_few_samples_of_those_that_are_large() -> None:
    assert portion_size(200) is None
    assert portion_size(8192) is None
    assert 1 < (portion_size(NUM_BYTES) or 0) < 100
    assert portion_size(1e9) == 1


def test_blocks_are_decoded_in_equal_parts() -> None:
    assert decoded_at_once(2048, 200) == 2048
    assert decoded_at_once(4096, 200) == 2048
    assert decoded_at_once(1024, 8204) == 256
    assert decoded_at_once(256, 8204) == 256  # a little more than the bytes: not cut off from the others
    assert decoded_at_once(3, 1e9) == 1
    assert decoded_at_once(0, 8192) == 1


@pytest.mark.parametrize("is_remote", [False, True])
def test_order_and_resume(folder: Path, tmp_path: Path, is_remote: bool) -> None:
    place: dict[str, Any] = {"remote": folder, "local": tmp_path} if is_remote else {"local": folder}
    with (
        StreamingDataset(**place, shuffle=True, batch_size=100, columnar=True) as by_column,
        StreamingDataset(**place, shuffle=True, batch_size=100) as dataset,
    ):
        expected = [int(number) for batch in by_column for number in batch["id"]]
        assert taken(dataset) == expected
        assert sorted(expected) == list(range(NUM_SAMPLES))
        second = taken(dataset)
        dataset.set_epoch(0)
        samples = iter(dataset)
        for count in (1, 28, 80):  # within a portion, a batch, and past one
            start = dataset.state_dict()["position"] if count > 1 else 0
            assert taken(islice(samples, count)) == expected[start : start + count]
            state = dataset.state_dict()
            assert state["position"] == start + count
            with StreamingDataset(**place, shuffle=True, batch_size=100) as other:
                other.load_state_dict(state)
                assert taken(other) == expected[start + count :]
                assert taken(other) == second


def test_skipping(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    bad = sorted(tmp_path.glob("*.mds"))[3]
    bad.write_bytes(bad.read_bytes()[:100])
    with StreamingDataset(local=tmp_path, shuffle=True, batch_size=100, on_error="skip") as dataset:
        found = taken(dataset)
        skipped = dataset.stats().skipped
    assert len(found) == NUM_SAMPLES
    assert len(set(found)) == NUM_SAMPLES - skipped
    assert 20 < skipped < 30


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subclass_sees_each_once(folder: Path, workers: int) -> None:
    from torch.utils.data import DataLoader

    dataset = Lengths(local=folder, shuffle=True, batch_size=100)
    rows = [row for batch in DataLoader(dataset, batch_size=100, num_workers=workers) for row in batch.tolist()]
    assert sorted(rows) == [[number, NUM_BYTES] for number in range(NUM_SAMPLES)]


class Lengths(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        sample = super().get_item(sample_id)
        return np.array([sample["id"], len(sample["data"])])


def test_arrays_of_any_size_come_whole_from_several_shards(tmp_path: Path) -> None:
    """NumPy cannot view all memory as items of more than some 30 kB: larger ones are copied another way."""
    shape = (300, 250)  # of float64: 600 kB
    with MDSWriter(out=tmp_path, columns={"id": "int", "x": "ndarray:float64:300,250"}, size_limit="2mb") as writer:
        for number in range(8):
            writer.write({"id": number, "x": np.full(shape, number, np.float64)})
    with StreamingDataset(local=tmp_path, shuffle=True, batch_size=4) as dataset:
        assert dataset.num_shards > 2
        samples = {sample["id"]: sample["x"] for sample in dataset}
        arrays = np.asarray(dataset.read_columns([6, 0, 3])["x"])
    assert all((samples[number] == np.full(shape, number)).all() for number in range(8))
    assert arrays.shape == (3, *shape)
    assert arrays[:, 0, 0].tolist() == [6, 0, 3]
