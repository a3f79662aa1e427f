"""CIFAR-10: pickles of any protocol, read without running their code."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadSampleError, UnsafeTypeError
from penstock.recipes.vision.cifar10 import StreamingCIFAR10, recipe
from penstock.testing import RecipeContract
from penstock.testing.recipes import are_equal, read_rows
from tests.recipes.raw_images import in_keyed_order, make_cifar10, write

if TYPE_CHECKING:
    from pathlib import Path


class TestContract(RecipeContract):
    recipe = recipe
    num_workers = (2, 7)

    def make_raw(self, folder: Path) -> Any:
        rows = make_cifar10(folder)
        return {split: in_keyed_order(each, "cifar10", split, 0) for split, each in rows.items()}

    def may_lack(self, path: Path) -> bool:
        return path.name == "batches.meta"


@pytest.mark.parametrize(("protocol", "encoding"), [(2, "png"), (5, "pil")])
def test_pickles_and_encodings(tmp_path: Path, protocol: int, encoding: str) -> None:
    rows = make_cifar10(tmp_path / "raw", protocol=protocol)
    flags: dict[str, Any] = {"encoding": encoding, "progress_bar": 0, "workers": 1}
    recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", **flags)
    assert are_equal(read_rows(tmp_path / "out/val"), in_keyed_order(rows["val"], "cifar10", "val", 0))
    x, y = StreamingCIFAR10(local=str(tmp_path / "out"), split="train", batch_size=1)[0]
    assert (tuple(x.shape), type(y)) == ((3, 32, 32), int)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/was-run",)


@pytest.mark.parametrize(
    ("batch", "error", "text"),
    [
        (Evil(), UnsafeTypeError, r"names \w+\.system, which could run code"),
        ({b"labels": [1]}, BadSampleError, "data_batch_2 of .* is no batch of CIFAR-10"),
        ({b"labels": [1], b"data": [[1, 2]]}, BadSampleError, "data_batch_2 of .* is no batch of CIFAR-10"),
    ],
)
def test_pickles_of_anything_else_are_refused(tmp_path: Path, batch: Any, error: type[Exception], text: str) -> None:
    make_cifar10(tmp_path / "raw")
    write(tmp_path / "raw/cifar-10-batches-py/data_batch_2", pickle.dumps(batch))
    with pytest.raises(error, match=text):
        recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", progress_bar=0)
    assert not (tmp_path / "out").exists()
