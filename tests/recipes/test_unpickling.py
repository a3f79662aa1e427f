"""Pickles without their code: plain values, arrays and tensors come back, all else is refused."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import CorruptShardError, UnsafeTypeError
from penstock.recipes.unpickling import load_values
from penstock.testing.recipes import are_equal


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True], "b": ("text", b"bytes")},
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        [np.float64(2.5), np.arange(3, dtype=">i4"), np.zeros((0, 4))],
        OrderedDict(x=np.ones(2, bool)),
    ],
    ids=["plain", "bytes", "columns first", "several", "ordered"],
)
def test_values_come_back(value: Any, protocol: int) -> None:
    assert are_equal(load_values(pickle.dumps(value, protocol)), value)


def test_tensors_come_back() -> None:
    value: dict[str, Any] = {
        "boxes": torch.rand(2, 4),
        "labels": [torch.tensor([3, 4])],
        "part": torch.arange(12).reshape(3, 4)[1:, ::2],
    }
    found = load_values(pickle.dumps(value))
    assert torch.equal(found["boxes"], value["boxes"])
    assert torch.equal(found["labels"][0], value["labels"][0])
    assert torch.equal(found["part"], value["part"])


@pytest.mark.parametrize("value", [print, Decimal("1.5"), np.array(["a", None], object), np.array([b"ab"])])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(UnsafeTypeError):
        load_values(pickle.dumps(value))


def test_damaged_pickles_are_errors_that_name_the_file() -> None:
    data = pickle.dumps(np.arange(100))
    for end in range(0, len(data) - 1, 7):
        with pytest.raises(CorruptShardError, match="batch_1 is no pickle, or a damaged one"):
            load_values(data[:end], "batch_1")
    large = pickle.dumps(np.zeros(3, np.uint8), 2).replace(b"K\x03\x85", b"J\xff\xff\xff\x7f\x85")
    assert large != pickle.dumps(np.zeros(3, np.uint8), 2)
    with pytest.raises(CorruptShardError, match="3 bytes"):
        load_values(large)
