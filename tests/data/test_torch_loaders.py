"""Batches that come out of workers are what torch makes of the same samples without workers."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from penstock import MDSWriter, StreamingDataset

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES, BATCH = 40, 8
ARRAYS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
NUMBERS = [name for name in ARRAYS if name != "uint64"]  # torch makes no tensor of such NumPy scalars
LARGE = 50_000  # bytes: a batch of them is too large to travel inside the message
COLUMNS = {
    **{name: name for name in NUMBERS},
    **{f"array_{name}": f"ndarray:{name}:2,3" for name in ARRAYS},
    "int": "int",
    "bytes": "bytes",
    "text": "str",
    "float": "str_float",
    "shaped": "ndarray:float32",
    "any": "ndarray",
    "nested": "json",
    "large": f"ndarray:uint8:{LARGE}",
}


def sample(number: int) -> dict[str, Any]:
    return {
        **{name: np.dtype(name).type(number) for name in NUMBERS},
        **{f"array_{name}": np.full((2, 3), number, name) for name in ARRAYS},
        "int": number,
        "bytes": bytes([number]),
        "text": f"{number}.",
        "float": number / 4,
        "shaped": np.full((3,), number, np.float32),
        "any": np.full((1, 2), number, np.int32),
        "nested": {"number": number, "list": [number, number + 1], "text": "t"},
        "large": np.full(LARGE, number, np.uint8),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collate")
    with MDSWriter(out=str(folder), columns=COLUMNS, size_limit=1 << 19) as writer:
        for number in range(NUM_SAMPLES):
            writer.write(sample(number))
    return folder


def load(folder: Path, num_workers: int, kind: type[StreamingDataset] = StreamingDataset, **options: Any) -> list[Any]:
    dataset = kind(local=folder, shuffle=True, batch_size=BATCH)
    return list(DataLoader(dataset, batch_size=BATCH, num_workers=num_workers, **options))


def assert_same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        assert torch.equal(got, wanted)
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for name in wanted:
            assert_same(got[name], wanted[name])
    elif isinstance(wanted, list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
    else:
        assert got == wanted


def test_every_encoding(folder: Path) -> None:
    assert_same(load(folder, num_workers=2), load(folder, num_workers=0))


def test_small_tensors_do_not_pass_through_shared_memory(folder: Path) -> None:
    for batch in load(folder, num_workers=1):
        tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        assert [name for name, tensor in tensors.items() if tensor.untyped_storage().is_shared()] == ["large"]


def test_they_can_be_written_to(folder: Path) -> None:
    first, second = load(folder, num_workers=1)[:2]
    before = second["int64"].clone()
    first["int64"] += 1
    first["array_float32"].zero_()
    assert torch.equal(second["int64"], before)


def add_mask(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = default_collate([{"id": one["int"], "text": one["text"]} for one in samples])
    batch["mask"] = (batch["id"] % 2 == 0).to(torch.bfloat16)
    batch["strided"] = batch["id"].repeat(2, 1).T
    batch["grad"] = torch.ones(2, requires_grad=True)
    batch["tiny"] = torch.ones(2).to(torch.float8_e4m3fn)
    batch["array"] = np.arange(3)
    del batch["text"]
    return batch


def test_a_function_of_the_users_that_adds_to_the_batch(folder: Path) -> None:
    with_workers = load(folder, num_workers=2, collate_fn=add_mask)
    for got, wanted in zip(with_workers, load(folder, num_workers=0, collate_fn=add_mask), strict=True):
        assert np.array_equal(got.pop("array"), wanted.pop("array"))
        assert got["grad"].requires_grad
        assert torch.equal(got.pop("tiny").float(), wanted.pop("tiny").float())
        assert_same({**got, "grad": got["grad"].detach()}, {**wanted, "grad": wanted["grad"].detach()})


class Ordered(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        found = super().get_item(sample_id)
        return OrderedDict(id=found["int"], inner={"id": found["int64"]})


class Pairs(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        found = super().get_item(sample_id)
        return found["int64"], {"array": found["array_int16"]}


class Mixed(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        found = super().get_item(sample_id)
        return {"number": int(sample_id) if sample_id % 2 else np.int64(sample_id), "flag": np.bool_(found["int"] % 2)}


@pytest.mark.parametrize("kind", [Ordered, Pairs, Mixed])
def test_samples_of_other_shapes(folder: Path, kind: type[StreamingDataset]) -> None:
    assert_same(load(folder, num_workers=2, kind=kind), load(folder, num_workers=0, kind=kind))


class Ragged(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        return {"array": np.zeros(sample_id % 3 + 1)}


class Words(StreamingDataset):
    def get_item(self, sample_id: int) -> Any:
        return {"array": np.array(["word"])}


@pytest.mark.parametrize(("kind", "error"), [(Ragged, RuntimeError), (Words, TypeError)])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_torch_refuses_is_refused(
    folder: Path, num_workers: int, kind: type[StreamingDataset], error: type[Exception]
) -> None:
    with pytest.raises(error):
        load(folder, num_workers, kind=kind)
