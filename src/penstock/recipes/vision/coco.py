"""COCO 2017 for detection: images with boxes around their objects."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.data.dataset import StreamingDataset
from penstock.errors import BadSampleError
from penstock.recipes.base import Recipe, add_flag, run_module
from penstock.recipes.raw_files import VALIDATE, keyed_records, list_files, read_image, read_raw
from penstock.recipes.unpickling import load_values
from penstock.recipes.vision.base import to_mode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from penstock.conversion.converting import ConvertOptions
    from penstock.data.stream import DatasetSettings
    from penstock.types import Sample

_COUNTS = {"train": 117266, "val": 4952}  # of images with boxes


def read_detection(row: Sample) -> Sample:
    """Read the image, and make arrays of its boxes."""
    boxes = np.array(row["boxes"], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]  # left, top, width, height → left, top, right, bottom
    boxes /= np.array([row["wtot"], row["htot"]] * 2)
    return {
        **row,
        "img": read_image(row, row["file"]),
        "bbox_sizes": boxes.astype(np.float32),
        "bbox_labels": np.array(row["labels"], np.int64),
        "bbox_iscrowd": np.array(row["crowds"], np.uint8),
        "bbox_areas": np.array(row["areas"], np.float64),
    }


class COCORecipe(Recipe):
    """COCO detection, from <in_root>/{train,val}2017/*.jpg and <in_root>/annotations/instances_{train,val}2017.json.

    The bytes of the images are kept as they are; images without a box are left out. Boxes are left, top, right, bottom
    from 0 to 1; classes are numbered from 1, in the order of the file. The split train is written in an order that
    --seed decides; column `i` is the number of the image in the file.
    """

    name = "coco"
    columns: ClassVar[dict[str, str]] = {
        "i": "int",
        "img": "jpeg",
        "img_id": "int",
        "htot": "int",
        "wtot": "int",
        "bbox_sizes": "ndarray:float32",
        "bbox_labels": "ndarray:int64",
        "bbox_iscrowd": "ndarray:uint8",
        "bbox_areas": "ndarray:float64",
        "bbox_names": "json",
    }
    transform = read_detection
    defaults: ClassVar[ConvertOptions] = {"hashes": ("sha1", "xxh64"), "size_limit": 1 << 25}

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add whether images are decoded."""
        add_flag(parser, "--validate", **VALIDATE)

    def open_split(self, args: argparse.Namespace, split: str) -> Any:
        """Read the annotations of a split."""
        root, name = str(args.in_root), f"annotations/instances_{split}2017.json"
        data = read_raw(root, name)
        try:
            records = _records_of(json.loads(data), f"{split}2017")
        except (KeyError, TypeError, ValueError) as error:
            raise BadSampleError(f"{name} is no file of COCO annotations: {error!r}", file=name) from error
        files = list_files(root, f"{split}2017", [".jpg", ".jpeg"])
        known = set(files)
        if missing := [record["file"] for record in records if record["file"] not in known]:
            raise BadSampleError(f"{name} names {len(missing)} images that are not there, such as {missing[0]}")
        if len(records) != (expected := _COUNTS.get(split, len(records))):
            warnings.warn(f"{name} has {len(records):,} images with boxes; all of COCO has {expected:,}", stacklevel=2)
        key, told = ("coco", split, args.seed) if split == "train" else None, hashlib.sha256(data).hexdigest()
        return keyed_records(
            records, key, f"{files.fingerprint}-{told}", files.num_bytes, root=root, validates=args.validate
        )


def _records_of(document: Mapping[str, Any], folder: str) -> list[Sample]:
    """Return the images of a file of annotations that have boxes, each with its boxes."""
    categories = {each["id"]: (number, each["name"]) for number, each in enumerate(document["categories"], 1)}
    images: dict[int, Sample] = {}
    for number, each in enumerate(document["images"]):
        if each["id"] in images:
            raise BadSampleError(f"image {each['id']} stands twice in the annotations of {folder}")
        if min(each["height"], each["width"]) < 1:
            raise BadSampleError(f"image {each['id']} of {folder} is said to be of no size")
        about = {"i": number, "file": f"{folder}/{each['file_name']}", "img_id": each["id"]}
        lists: Sample = {name: [] for name in ("boxes", "labels", "crowds", "areas", "bbox_names")}
        images[each["id"]] = {**about, "htot": each["height"], "wtot": each["width"], **lists}
    for each in document["annotations"]:
        image, (label, name) = images[each["image_id"]], categories[each["category_id"]]
        image["boxes"].append(each["bbox"])
        image["labels"].append(label)
        image["crowds"].append(each.get("iscrowd", 0))
        image["areas"].append(each.get("area", each["bbox"][2] * each["bbox"][3]))
        image["bbox_names"].append(name)
    return [image for image in images.values() if image["boxes"]]


class StreamingCOCO(StreamingDataset):
    """COCO detection: samples are (image, its id, (height, width), boxes, classes of the boxes).

    Boxes and classes of shards that MosaicML Streaming 0.5 wrote are pickles of tensors; nothing else of these is read.

    Args:
        transform: A function of (RGB image, (height, width), boxes, classes) that returns the same four.
        **options: All that `StreamingDataset` takes.
    """

    def __init__(self, *, transform: Callable[..., tuple[Any, ...]] | None = None, **options: Any) -> None:
        self._of_sample = transform
        super().__init__(**options)

    def _open(self, settings: DatasetSettings, batch_size: int | None) -> None:
        super()._open(replace(settings, decoding=replace(settings.decoding, unpickle=load_values)), batch_size)

    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:
        """Return an image with its boxes."""
        sample = super().get_item(sample_id, *retry, **named)
        image, size = to_mode(sample["img"], "RGB"), (sample["htot"], sample["wtot"])
        boxes, labels = sample["bbox_sizes"], sample["bbox_labels"]
        if self._of_sample is not None:
            image, size, boxes, labels = self._of_sample(image, size, boxes, labels)
        return image, sample["img_id"], size, boxes, labels


recipe = COCORecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
