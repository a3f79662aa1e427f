"""ImageNet, and any other folder of images with a folder for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.errors import BadSampleError
from penstock.recipes.base import Recipe, add_flag, listed, run_module
from penstock.recipes.raw_files import VALIDATE, keyed_records, list_files, read_image
from penstock.recipes.vision.base import IMAGE_CLASS_COLUMNS, StreamingVisionDataset
from penstock.storage.base import shown_url
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    import argparse

    from penstock.conversion.converting import ConvertOptions
    from penstock.recipes.raw_files import FileList
    from penstock.types import Int64Array, Sample


@dataclass(frozen=True, slots=True, eq=False)
class ClassFolders:
    """The images of a split by number, in the order of their names, so that those of a class follow each other."""

    files: FileList
    classes: tuple[str, ...]
    starts: Int64Array  # the first image of each class

    @classmethod
    def list(cls, root: str, split: str, suffixes: tuple[str, ...]) -> ClassFolders:
        """List the images of a split."""
        files = list_files(root, split, suffixes)
        classes: list[str] = []
        starts: list[int] = []
        for number, name in enumerate(files):
            folder, slash, file = name[len(split) + 1 :].partition("/")
            if not slash or "/" in file:
                raise BadSampleError(
                    f"{shown_url(join_url(root, name))} is not in the folder of a class: it must be"
                    f" {split}/<class>/<image>",
                    file=name,
                )
            if not classes or classes[-1] != folder:
                classes.append(folder)
                starts.append(number)
        return cls(files, tuple(classes), np.array(starts, np.int64))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Sample:
        y = int(self.starts.searchsorted(number, side="right")) - 1
        return {"file": self.files[number], "y": y, "class_name": self.classes[y]}


def read_file(row: Sample) -> Sample:
    """Read the file of an image."""
    return {**row, "x": read_image(row, row["file"])}


class ImageNetRecipe(Recipe):
    """ImageNet, or any images in class folders: <in_root>/<split>/<class>/<image>.

    The bytes of the files are kept as they are. Classes are numbered in the order of their names, which are kept as
    `class_name`; all splits need the same ones. Rows are written in an order that --seed decides; column `i` is the
    number of the file among all of its split, sorted by name.
    """

    name = "imagenet"
    columns: ClassVar[dict[str, str]] = {**IMAGE_CLASS_COLUMNS, "x": "jpeg"}
    transform = read_file
    defaults: ClassVar[ConvertOptions] = {"hashes": ("sha1", "xxh64"), "size_limit": 1 << 26}

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add which files are images, and whether they are decoded."""
        add_flag(parser, "--validate", **VALIDATE)
        add_flag(parser, "--extensions", type=listed, default="jpeg,jpg", help="endings of image files, in any case")

    def run(self, args: argparse.Namespace) -> Any:
        """Convert all splits, once it is known that they have the same classes."""
        suffixes = tuple(f".{each.lower().lstrip('.')}" for each in args.extensions)
        args.found = {split: ClassFolders.list(str(args.in_root), split, suffixes) for split in args.splits}
        (first, known), *others = args.found.items()
        for split, found in others:
            if other := sorted(set(found.classes) ^ set(known.classes)):
                raise BadSampleError(
                    f"the splits {first} and {split} have other classes, such as {other[0]}: only one of them has it"
                )
        return super().run(args)

    def open_split(self, args: argparse.Namespace, split: str) -> Any:
        """Open the images of a split."""
        found = args.found[split]
        files, shared = found.files, {"root": str(args.in_root), "validates": args.validate}
        return keyed_records(found, ("imagenet", split, args.seed), files.fingerprint, files.num_bytes, **shared)


class StreamingImageNet(StreamingVisionDataset):
    """ImageNet, as pairs of an image and its class; images have many sizes, so pass `transform=`."""


recipe = ImageNetRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
