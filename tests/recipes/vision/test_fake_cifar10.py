"""Random images: the same for the same seed, of all values and all classes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.recipes.vision.fake_cifar10 import random_rows, recipe
from penstock.testing.recipes import bytes_of, read_rows

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_are_the_same_however_they_are_asked_for() -> None:
    whole = random_rows(7, 0, 50)
    pieces = [row for begin in range(0, 50, 10) for row in random_rows(7, begin, begin + 10)]
    assert all(
        np.array_equal(a["pixels"], b["pixels"]) and a["y"] == b["y"] for a, b in zip(whole, pieces, strict=True)
    )
    assert not np.array_equal(whole[0]["pixels"], random_rows(8, 0, 1)[0]["pixels"])


def test_all_values_and_classes_occur_about_equally_often() -> None:
    rows = random_rows(1, 0, 2000)
    pixels = np.bincount(np.concatenate([row["pixels"].ravel() for row in rows]), minlength=256)
    assert abs(pixels / pixels.mean() - 1).max() < 0.05
    classes = Counter(row["y"] for row in rows)
    assert {*classes} == {*range(10)}
    assert min(classes.values()) > 150


def test_both_splits_are_written_with_any_number_of_processes(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"num_train": 300, "num_val": 40, "size_limit": 90000, "progress_bar": 0}
    for workers in (1, 2):
        recipe.convert(out_root=tmp_path / f"{workers}", workers=workers, **flags)
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "2")
    rows = read_rows(tmp_path / "1/train")
    assert [row["i"] for row in rows] == list(range(300))
    assert (len(read_rows(tmp_path / "1/val")), rows[0]["x"].size, type(rows[0]["y"])) == (40, (32, 32), int)
