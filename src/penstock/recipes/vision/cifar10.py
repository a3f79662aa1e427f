"""CIFAR-10: 60,000 images of 32 × 32 pixels in ten classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.errors import BadSampleError, StoreError
from penstock.recipes.base import Recipe, add_flag, run_module
from penstock.recipes.raw_files import file_infos, keyed_records, read_raw
from penstock.recipes.unpickling import load_values
from penstock.recipes.vision.base import IMAGE_CLASS_COLUMNS, StreamingVisionDataset, image_of

if TYPE_CHECKING:
    import argparse

    from penstock.conversion.converting import ConvertOptions
    from penstock.types import Sample

_FOLDER = "cifar-10-batches-py"
_TRAIN = tuple(f"{_FOLDER}/data_batch_{number}" for number in range(1, 6))
_NAMES = f"{_FOLDER}/batches.meta"
_PIXELS = 3 * 32 * 32


class Batches:
    """The images of some files, each a record with its pixels."""

    def __init__(self, root: str, names: tuple[str, ...]) -> None:
        self._files = root, names
        read = [_read_batch(root, name) for name in names]
        self._pixels, self._labels = np.concatenate([each[0] for each in read]), [y for each in read for y in each[1]]
        self._classes = class_names(root)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> Sample:
        y = self._labels[number]
        return {"pixels": self._pixels[number], "y": y, "class_name": self._classes[y] if self._classes else ""}

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, self._files  # a worker reads them itself


def _read_batch(root: str, name: str) -> tuple[Any, list[int]]:
    batch = load_values(read_raw(root, name), name)
    pixels, labels = (_entry(batch, key) for key in ("data", "labels"))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(labels or ()), _PIXELS):
        raise BadSampleError(
            f"{name} of {root} is no batch of CIFAR-10: it needs `labels`, and `data` of n × {_PIXELS}"
        )
    for number, label in enumerate(labels):
        if not 0 <= label <= 9:
            raise BadSampleError(f"record {number} of {name} of {root} has the class {label}, which is not 0 to 9")
    return pixels, [int(label) for label in labels]


def class_names(root: str) -> list[str]:
    """Return the names of the ten classes; none if their file is missing."""
    try:
        names = _entry(load_values(read_raw(root, _NAMES), _NAMES), "label_names")
    except StoreError:
        return []
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names or ()]


def _entry(batch: Any, key: str) -> Any:
    return batch.get(key.encode(), batch.get(key)) if isinstance(batch, dict) else None


def to_image(row: Sample) -> Sample:
    """Make an image of the pixels, of which a file has all red ones first."""
    return {**row, "x": image_of(row["pixels"].reshape(3, 32, 32).transpose(1, 2, 0))}


class CIFAR10Recipe(Recipe):
    """CIFAR-10, from <in_root>/cifar-10-batches-py/ with data_batch_1 to 5, test_batch and batches.meta.

    Split `train` is the data batches, any other split the test batch. Rows are written in an order that --seed decides;
    column `i` is the number of the image in the files.
    """

    name = "cifar10"
    columns = IMAGE_CLASS_COLUMNS
    transform = to_image
    defaults: ClassVar[ConvertOptions] = {"hashes": ("sha1", "xxh64"), "size_limit": 1 << 20}

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the encoding of images."""
        add_flag(parser, "--encoding", default="pil", help="pil (raw pixels), png or jpeg")

    def options(self, args: argparse.Namespace) -> ConvertOptions:
        """Return the columns."""
        return {**super().options(args), "columns": {**IMAGE_CLASS_COLUMNS, "x": args.encoding}}

    def open_split(self, args: argparse.Namespace, split: str) -> Any:
        """Open the images of a split."""
        names = _TRAIN if split == "train" else (f"{_FOLDER}/test_batch",)
        root = str(args.in_root)
        files = file_infos(root, names)
        return keyed_records(Batches(root, names), ("cifar10", split, args.seed), files.fingerprint, files.num_bytes)


class StreamingCIFAR10(StreamingVisionDataset):
    """CIFAR-10, as pairs of an image and its class."""


recipe = CIFAR10Recipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
