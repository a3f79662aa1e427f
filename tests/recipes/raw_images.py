"""Tiny raw data in the layouts of the datasets of images."""

from __future__ import annotations

import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from penstock import StreamingDataset
from penstock.order.keys import hash_key, permutation
from penstock.testing import RecipeContract

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def image_bytes(seed: int, mode: str = "RGB", kind: str = "JPEG", size: tuple[int, int] = (10, 8)) -> bytes:
    """Make an image file."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], bands), np.uint8)
    out = io.BytesIO()
    Image.frombytes(mode, size, pixels.tobytes()).save(out, format=kind)
    return out.getvalue()


def write(path: Path, data: bytes) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def make_image_folder(
    root: Path, splits: tuple[str, ...] = ("train", "val"), per_class: int = 3
) -> dict[str, list[Any]]:
    """Make class folders, and return the rows of each split in the order of names."""
    rows: dict[str, list[Any]] = {}
    for split in splits:
        rows[split] = []
        for y, name in enumerate(("n01440764", "n01443537")):
            for number in range(per_class):
                ending = "JPEG" if number else "jpg"
                seed = 100 * y + number + (50 if split == "val" else 0)
                data = write(root / split / name / f"{name}_{number}.{ending}", image_bytes(seed))
                rows[split].append({"i": len(rows[split]), "x": data, "y": y, "class_name": name})
    return rows


def make_cifar10(root: Path, per_file: int = 3, protocol: int = 2) -> dict[str, list[Any]]:
    """Make the pickles of CIFAR-10 with few images."""
    folder, rows = root / "cifar-10-batches-py", {"train": [], "val": []}  # type: ignore[var-annotated]
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        data = np.random.default_rng(number).integers(0, 256, (per_file, 3072), np.uint8)
        labels = [(3 * number + n) % 10 for n in range(per_file)]
        write(folder / name, pickle.dumps({b"data": data, b"labels": labels, b"batch_label": name.encode()}, protocol))
        split = rows["val" if name == "test_batch" else "train"]
        for pixels, y in zip(data, labels, strict=True):
            image = Image.fromarray(pixels.reshape(3, 32, 32).transpose(1, 2, 0).copy())
            split.append({"i": len(split), "x": image, "y": y, "class_name": CLASSES[y]})
    write(folder / "batches.meta", pickle.dumps({"label_names": CLASSES}, protocol))
    return rows


def make_ade20k(root: Path, numbers: tuple[int, ...] = (1, 2, 3, 1701, 1702, 1703)) -> dict[str, list[Any]]:
    """Make pairs of images, one of them known to be corrupt in the split train."""
    rows: dict[str, list[Any]] = {}
    for split, folder in (("train", "training"), ("val", "validation")):
        rows[split] = []
        for i, number in enumerate(numbers):
            stem = f"ADE_{split}_{number:08}"
            x = write(root / "images" / folder / f"{stem}.jpg", image_bytes(number))
            y = write(root / "annotations" / folder / f"{stem}.png", image_bytes(number, "L", "PNG"))
            if split == "val" or number != 1701:
                rows[split].append({"i": i, "uid": b"%08d" % number, "x": x, "y": y})
    return rows


def make_coco(root: Path) -> dict[str, list[Any]]:
    """Make images, of which one has no box."""
    rows: dict[str, list[Any]] = {}
    names = {18: "dog", 44: "bottle"}
    for split in ("train", "val"):
        images, annotations, rows[split] = [], [], []
        for i in range(5):
            data = write(root / f"{split}2017" / f"{391895 + i:012}.jpg", image_bytes(i, size=(20, 10)))
            images.append({"id": 391895 + i, "file_name": f"{391895 + i:012}.jpg", "height": 10, "width": 20})
            boxes = [[1.5 * i, 2, 5, 2.5 + n] for n in range(i % 3)]
            kinds = [(18, 44)[(i + n) % 2] for n in range(i % 3)]
            for n, (box, kind) in enumerate(zip(boxes, kinds, strict=True)):
                about = {"image_id": 391895 + i, "category_id": kind, "bbox": box, "iscrowd": n, "area": 7.5 * n}
                annotations.append(about)
            if boxes:
                corners = [[x / 20, y / 10, (x + w) / 20, (y + h) / 10] for x, y, w, h in boxes]
                rows[split].append(
                    {
                        "i": i,
                        "img": data,
                        "img_id": 391895 + i,
                        "htot": 10,
                        "wtot": 20,
                        "bbox_sizes": np.array(corners, np.float32),
                        "bbox_labels": np.array([[18, 44].index(kind) + 1 for kind in kinds]),
                        "bbox_iscrowd": np.arange(len(boxes), dtype=np.uint8),
                        "bbox_areas": 7.5 * np.arange(len(boxes)),
                        "bbox_names": [names[kind] for kind in kinds],
                    }
                )
        categories = [{"id": number, "name": name} for number, name in names.items()]
        document = {"images": images, "annotations": annotations, "categories": categories}
        write(root / f"annotations/instances_{split}2017.json", json.dumps(document).encode())
    return rows


class ImageFilesContract(RecipeContract):
    """Images are compared as the bytes of their files; those that are left out may be anything."""

    num_workers = (2, 7)
    left_out: Sequence[str] = ()

    def may_lack(self, path: Path) -> bool:
        return path.stem in self.left_out

    def _is_refused(self, folder: Path, path: Path) -> None:
        if path.stem not in self.left_out:
            super()._is_refused(folder, path)

    def convert(self, folder: Path, out: Path, **flags: Any) -> dict[str, list[Any]]:
        given = {"size_limit": 300, "progress_bar": 0, "workers": 1, **self.flags, **flags}
        reports = self.recipe.convert(in_root=folder, out_root=out, **given)
        return {split: stored_rows(out / split) for split in reports}


def stored_rows(folder: Path) -> list[Any]:
    """Return the rows of a dataset, images as the bytes of their files."""
    with StreamingDataset(local=str(folder), batch_size=1, image_decoder="raw") as dataset:
        return [dataset[number] for number in range(dataset.num_samples)]


def in_keyed_order(rows: list[Any], *key: str | int) -> list[Any]:
    """Return rows in the order in which a recipe writes them with a seed."""
    return [rows[number] for number in permutation(hash_key("recipe", *key), len(rows))]
