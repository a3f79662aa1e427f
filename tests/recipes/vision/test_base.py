"""What datasets of images share: tensors as torchvision makes them, modes, functions; any dataset of images written."""

from __future__ import annotations

import io
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock import MDSWriter
from penstock.errors import ConfigError, OutputExistsError
from penstock.recipes.vision.base import (
    StandardTransform,
    StreamingVisionDataset,
    convert_image_class_dataset,
    to_tensor,
)
from penstock.testing.recipes import read_rows
from tests.recipes.raw_images import image_bytes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("mode", "shape", "dtype"),
    [
        ("RGB", (3, 2, 4), torch.float32),
        ("L", (1, 2, 4), torch.float32),
        ("1", (1, 2, 4), torch.float32),
        ("CMYK", (4, 2, 4), torch.float32),
        ("I", (1, 2, 4), torch.int32),
        ("F", (1, 2, 4), torch.float32),
    ],
)
def test_tensors_are_those_of_torchvision(mode: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    image = Image.new(mode, (4, 2))
    image.putpixel((3, 1), Image.new(mode, (1, 1), 1 if mode in ("I", "F") else "white").getpixel((0, 0)))  # type: ignore[arg-type]
    tensor = to_tensor(image)
    assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
    assert tensor[0, 1, 3] == 1
    assert tensor[:, 0].sum() == 0


def test_gray_and_cmyk_images_come_out_as_rgb_when_asked(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={"x": "jpeg", "y": "int"}) as writer:
        for y, mode in enumerate(("L", "CMYK", "RGB")):
            writer.write({"x": image_bytes(y, mode), "y": y})
    options: dict[str, Any] = {"local": str(tmp_path), "batch_size": 1}
    assert [x.shape[0] for x, _ in StreamingVisionDataset(**options)] == [1, 4, 3]
    assert [x.shape[0] for x, _ in StreamingVisionDataset(image_mode="RGB", **options)] == [3, 3, 3]
    assert [(x.mode, y) for x, y in StreamingVisionDataset(transforms=same, **options)][1] == ("CMYK", 1)
    both = StreamingVisionDataset(transform=np.asarray, target_transform=str, **options)[2]
    assert (both[0].shape, both[1]) == ((8, 10, 3), "2")
    with pytest.raises(ConfigError, match="either transforms="):
        StreamingVisionDataset(transforms=same, transform=np.asarray, **options)
    assert StandardTransform(None, str)(Image.new("L", (1, 1)), 3)[1] == "3"


def same(x: Any, y: Any) -> tuple[Any, Any]:
    return x, y


class Pairs:
    classes = ("ant", "bee")

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return Image.open(io.BytesIO(image_bytes(number))), np.int64(number % 2)  # no plain integer


def test_any_dataset_of_images_is_written(tmp_path: Path) -> None:
    options: dict[str, Any] = {"hashes": ["xxh64"], "size_limit": 4000, "progress_bar": False, "encoding": "png"}
    report = convert_image_class_dataset(Pairs(), str(tmp_path), "train", **options)
    rows = read_rows(tmp_path / "train")
    assert report.num_rows == 30
    assert sorted(row["i"] for row in rows) == list(range(30))
    for row in rows:
        assert (row["y"], row["class_name"]) == (row["i"] % 2, Pairs.classes[row["i"] % 2])
        assert np.array_equal(np.asarray(row["x"]), np.asarray(Pairs()[row["i"]][0]))
    assert convert_image_class_dataset(Pairs(), str(tmp_path), "train", **options).num_found == report.num_tasks
    unknown = Pairs()
    unknown.lock = Lock()  # type: ignore[attr-defined]  # which cannot be pickled
    convert_image_class_dataset(unknown, str(tmp_path / "once"), **options)
    with pytest.raises(OutputExistsError):
        convert_image_class_dataset(unknown, str(tmp_path / "once"), **options)
