"""Batches of NumPy arrays: what is stacked, what is padded, and what is left as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import PadCollator, collate_batch
from penstock.errors import ConfigError, MissingColumnError


def test_what_is_stacked() -> None:
    samples = [{"n": n, "f": n / 2, "b": n > 1, "a": np.full(3, n), "l": [n, n], "d": {"x": n}} for n in range(3)]
    batch = collate_batch(samples)
    assert batch["n"].tolist() == [0, 1, 2]
    assert batch["f"].dtype == np.float64
    assert batch["b"].dtype == bool
    assert batch["a"].shape == (3, 3)
    assert batch["l"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["d"]["x"].tolist() == [0, 1, 2]
    assert collate_batch([]) == {}


def test_text_bytes_and_ragged_lists_stay_what_they_are() -> None:
    samples: list[dict[str, Any]] = [
        {"text": "a", "data": b"a\0\0", "ragged": [1], "arrays": np.zeros(1), "none": None, "mixed": 1},
        {"text": "ß" * 9, "data": b"", "ragged": [1, 2], "arrays": np.zeros(2), "none": 1, "mixed": "x"},
    ]
    batch = collate_batch(samples)
    assert batch["text"] == ["a", "ß" * 9]
    assert batch["data"] == [b"a\0\0", b""]
    assert batch["ragged"] == [[1], [1, 2]]
    assert [len(array) for array in batch["arrays"]] == [1, 2]
    assert batch["none"] == [None, 1]
    assert batch["mixed"] == [1, "x"]


def test_a_field_that_only_some_have_is_an_error() -> None:
    with pytest.raises(MissingColumnError, match="some samples of a batch have b and some do not"):
        collate_batch([{"a": 1}, {"a": 1, "b": 2}])


def test_padding() -> None:
    samples = [
        {"input_ids": [1, 2, 3], "labels": np.array([1, 2, 3]), "text": "a"},
        {"input_ids": [4], "labels": np.array([4]), "text": "b"},
    ]
    batch = PadCollator({"input_ids": 9}, mask_field="attention_mask")(samples)
    assert list(batch) == ["input_ids", "labels", "text", "attention_mask"]
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["text"] == ["a", "b"]
    assert PadCollator(pad_to_multiple_of=8)(samples)["input_ids"].shape == (2, 8)
    assert PadCollator(max_length=5)(samples)["labels"].shape == (2, 5)
    with pytest.raises(ConfigError, match="3 values, more than max_length=2"):
        PadCollator(max_length=2)(samples)
    assert PadCollator()([{"a": []}, {"a": []}])["a"].shape == (2, 0)
