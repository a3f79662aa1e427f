"""Folders of images: bytes and class names kept, every image decoded, the same classes in all splits."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from penstock.errors import BadSampleError, EmptyDatasetError, TransformError
from penstock.recipes.vision.imagenet import StreamingImageNet, recipe
from tests.recipes.raw_images import (
    ImageFilesContract,
    image_bytes,
    in_keyed_order,
    make_image_folder,
    stored_rows,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestContract(ImageFilesContract):
    recipe = recipe

    def make_raw(self, folder: Path) -> Any:
        rows = make_image_folder(folder)
        return {split: in_keyed_order(each, "imagenet", split, 0) for split, each in rows.items()}

    def may_lack(self, path: Path) -> bool:
        return True


def size_and_class(x: Any, y: Any) -> tuple[int, int]:
    return sum(x.size), y


def pixel_sum(image: Any) -> int:
    return int(np.asarray(image).sum())


def test_a_shuffled_pass_in_workers_gives_each_image_once(tmp_path: Path) -> None:
    rows = make_image_folder(tmp_path / "raw", per_class=9)["train"]
    recipe.convert(in_root=tmp_path / "raw", out_root=tmp_path / "out", size_limit=2000, progress_bar=0, workers=1)
    options: dict[str, Any] = {"local": str(tmp_path / "out"), "split": "train", "shuffle": True, "batch_size": 1}
    dataset = StreamingImageNet(image_mode="RGB", **options)
    pairs = list(DataLoader(dataset, batch_size=None, num_workers=2))
    expected = [(pixel_sum(Image.open(io.BytesIO(row["x"]))), row["y"]) for row in rows]
    assert sorted((round(x.sum().item() * 255), y) for x, y in pairs) == sorted(expected)
    assert list(StreamingImageNet(transforms=size_and_class, **options)) == [(18, y) for _, y in pairs]


def test_other_seeds_write_other_orders(tmp_path: Path) -> None:
    rows = make_image_folder(tmp_path / "raw", per_class=9)["val"]
    for seed in (0, 1):
        out = tmp_path / f"out{seed}"
        recipe.convert(in_root=tmp_path / "raw", out_root=out, splits="val", seed=seed, progress_bar=0, workers=1)
        assert stored_rows(out / "val") == in_keyed_order(rows, "imagenet", "val", seed)


def test_images_of_which_pixels_are_missing_are_found_or_left_out(tmp_path: Path) -> None:
    make_image_folder(tmp_path / "raw", per_class=5)
    broken = tmp_path / "raw/train/n01443537/n01443537_3.JPEG"
    write(broken, image_bytes(1, size=(64, 64))[:-900])
    flags: dict[str, Any] = {"in_root": tmp_path / "raw", "splits": "train", "progress_bar": 0, "workers": 1}
    with pytest.raises(TransformError, match=r"n01443537_3\.JPEG is no image, or a damaged one"):
        recipe.convert(out_root=tmp_path / "out", **flags)
    assert not list((tmp_path / "out").glob("*/index.json"))
    report = recipe.convert(out_root=tmp_path / "skipped", on_error="skip", **flags)["train"]
    assert (report.num_rows, report.num_rejected) == (9, 1)
    assert recipe.convert(out_root=tmp_path / "all", validate=0, **flags)["train"].num_rows == 10


def test_splits_of_other_classes_and_images_without_a_class_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    make_image_folder(tmp_path / "raw")
    flags: dict[str, Any] = {"in_root": tmp_path / "raw", "out_root": tmp_path / "out", "progress_bar": 0}
    write(tmp_path / "raw/val/n09/a.jpeg", image_bytes(1))
    with pytest.raises(BadSampleError, match="splits train and val have other classes, such as n09"):
        recipe.convert(**flags)
    write(tmp_path / "raw/train/lost.jpeg", image_bytes(1))
    with pytest.raises(BadSampleError, match=r"lost\.jpeg is not in the folder of a class"):
        recipe.convert(**flags)
    with pytest.raises(EmptyDatasetError, match=r"no file \*\.tiff"):
        recipe.convert(extensions="tiff", **flags)
    assert not (tmp_path / "out").exists()
