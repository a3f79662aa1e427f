"""Random images of the shape of CIFAR-10, for benchmarks: as many as you like, the same for the same seed."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.conversion.inputs import TableSource
from penstock.order.keys import hash_key
from penstock.recipes.base import Recipe, add_flag, add_writing_flags, run_module
from penstock.recipes.vision.base import IMAGE_CLASS_COLUMNS, image_of

if TYPE_CHECKING:
    import argparse

    from penstock.conversion.converting import ConvertOptions
    from penstock.types import Sample

_SHAPE = (32, 32, 3)
_PIXELS = 32 * 32 * 3
_WORDS_OF_ROW = _PIXELS // 8 + 4  # random words of 64 bits; the generator makes four at a time


def random_rows(key: int, begin: int, end: int) -> list[Sample]:
    """Return random images, which depend on a key and their numbers alone."""
    # The raw words of a counter, which are the same in all releases of NumPy.
    words = np.random.Philox(key=key, counter=begin * _WORDS_OF_ROW // 4).random_raw((end - begin) * _WORDS_OF_ROW)
    rows = words.astype("<u8").reshape(end - begin, _WORDS_OF_ROW)
    pixels = rows[:, : _PIXELS // 8].copy().view(np.uint8).reshape(-1, *_SHAPE)
    labels = (rows[:, _PIXELS // 8] % np.uint64(10)).tolist()
    return [{"i": begin + n, "pixels": pixels[n], "y": label, "class_name": ""} for n, label in enumerate(labels)]


def to_image(row: Sample) -> Sample:
    """Make an image of the pixels."""
    return {**row, "x": image_of(row["pixels"])}


class FakeCIFAR10Recipe(Recipe):
    """Random images of 32 × 32 pixels in ten classes, for benchmarks; the same for the same --seed."""

    name = "fake_cifar10"
    columns: ClassVar[dict[str, str]] = {**IMAGE_CLASS_COLUMNS, "x": "pil"}
    transform = to_image
    defaults: ClassVar[ConvertOptions] = {"size_limit": 1 << 24}

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add flags of its own in place of those of raw files."""
        out = f"{tempfile.gettempdir()}/fake_cifar10"
        add_flag(parser, "--out", dest="out_root", default=out, help="the folder or URL of both splits")
        add_flag(parser, "--num_train", type=int, default=1048576, help="images of the split train")
        add_flag(parser, "--num_val", type=int, default=131072, help="images of the split val")
        parser.set_defaults(splits=self.splits)
        add_writing_flags(parser, self.defaults)

    def open_split(self, args: argparse.Namespace, split: str) -> Any:
        """Return the random images of a split."""
        size = args.num_train if split == "train" else args.num_val
        key = hash_key("fake_cifar10", split, args.seed)
        return TableSource(key, size, random_rows, f"fake-{key}", size * _PIXELS)


recipe = FakeCIFAR10Recipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
