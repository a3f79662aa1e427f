"""ADE20K for scene parsing: images, and a class for each of their pixels."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import BadSampleError
from penstock.recipes.base import Recipe, add_flag, run_module
from penstock.recipes.raw_files import VALIDATE, keyed_records, list_files, read_image
from penstock.recipes.vision.base import StreamingVisionDataset

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from penstock.conversion.converting import ConvertOptions
    from penstock.types import Sample

_FOLDERS = {"train": "training", "val": "validation"}
_COUNTS = {"train": 20206, "val": 2000}
_CORRUPT = frozenset({"00001701", "00003020", "00008455", "00013508"})  # of the split train, in the published files
_SHOWN = 5


def read_pair(row: Sample) -> Sample:
    """Read both files."""
    return {**row, "x": read_image(row, row["image"]), "y": read_image(row, row["annotation"])}


class ADE20KRecipe(Recipe):
    """ADE20K, from <in_root>/images/{training,validation}/*.jpg and <in_root>/annotations/{...}/*.png.

    The bytes of the files are kept as they are; four images that are known to be corrupt are left out. The split train
    is written in an order that --seed decides; column `i` is the number of the image, sorted by name.
    """

    name = "ade20k"
    columns: ClassVar[dict[str, str]] = {"i": "int", "uid": "bytes", "x": "jpeg", "y": "png"}
    transform = read_pair
    defaults: ClassVar[ConvertOptions] = {"hashes": ("sha1", "xxh64"), "size_limit": 1 << 22}

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add whether images are decoded."""
        add_flag(parser, "--validate", **VALIDATE)

    def open_split(self, args: argparse.Namespace, split: str) -> Any:
        """Pair the files of a split by name."""
        folder, root = _FOLDERS.get(split, split), str(args.in_root)
        images = list_files(root, f"images/{folder}", [".jpg"])
        masks_found = list_files(root, f"annotations/{folder}", [".png"])
        pairs = {_stem(name): name for name in images}
        masks = {_stem(name): name for name in masks_found}
        if alone := sorted(pairs.keys() ^ masks.keys()):
            shown = ", ".join(pairs.get(stem) or masks[stem] for stem in alone[:_SHOWN])
            raise BadSampleError(
                f"{len(alone)} files of {folder} have no partner, an image and an annotation of the same name: {shown}"
                + (" …" if len(alone) > _SHOWN else "")
            )
        records = [
            {"i": i, "uid": stem[-8:].encode(), "image": pairs[stem], "annotation": masks[stem]}
            for i, stem in enumerate(sorted(pairs))
            if split != "train" or stem[-8:] not in _CORRUPT
        ]
        if len(records) != (expected := _COUNTS.get(split, len(records))):
            warnings.warn(f"{folder} has {len(records):,} pairs; all of ADE20K has {expected:,}", stacklevel=2)
        key = ("ade20k", split, args.seed) if split == "train" else None
        told, num_bytes = f"{images.fingerprint}-{masks_found.fingerprint}", images.num_bytes + masks_found.num_bytes
        return keyed_records(records, key, told, num_bytes, root=root, validates=args.validate)


def _stem(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]


class StreamingADE20K(StreamingVisionDataset):
    """ADE20K, as pairs of an image and the image of its classes.

    Args:
        joint_transform: A function of the pair that returns a pair; it is called before the others.
        **options: All that `StreamingVisionDataset` takes.
    """

    without_transform = None

    def __init__(
        self, *, joint_transform: Callable[[tuple[Any, Any]], tuple[Any, Any]] | None = None, **options: Any
    ) -> None:
        self.joint_transform = joint_transform
        super().__init__(**options)

    def pair_of(self, sample: Sample) -> tuple[Any, Any]:
        """Return both images of a sample."""
        pair = super().pair_of(sample)
        return pair if self.joint_transform is None else self.joint_transform(pair)


recipe = ADE20KRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
