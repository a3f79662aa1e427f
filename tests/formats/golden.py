"""The recorded datasets: where they are, what they hold, and how a decoded value is compared with its record."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(os.environ.get("PENSTOCK_GOLDEN") or Path(__file__).parents[1] / "golden") / "mds"
MANIFEST: dict[str, Any] = json.loads((ROOT / "manifest.json").read_bytes())
DATASETS: list[str] = list(MANIFEST["datasets"])


def index_files() -> list[str]:
    """Every index, that of parts of merged datasets too, relative to the root."""
    return [f"{name}/{file}" for name in DATASETS for file in files_of(name) if file.split("/")[-1] == "index.json"]


def files_of(name: str) -> list[str]:
    files: list[str] = MANIFEST["datasets"][name]["files"]
    return files


def merged_datasets() -> list[str]:
    return [name for name in DATASETS if sum(file.endswith("index.json") for file in files_of(name)) > 1]


def expected(name: str) -> list[dict[str, Any]]:
    """The tagged values of each sample."""
    samples: list[dict[str, Any]] = json.loads((ROOT / f"{name}.expected.json").read_bytes())
    assert len(samples) == MANIFEST["datasets"][name]["num_samples"]
    return samples


@dataclass(frozen=True)
class Recording:
    """One dataset as a writer left it: a folder, and where its shards stand in the manifest."""

    name: str
    folder: str  # below the dataset's, for a part of a merged one

    @property
    def path(self) -> Path:
        return ROOT / self.name / self.folder

    @property
    def shards(self) -> list[dict[str, Any]]:
        """The shards of this folder as the manifest has them, their names relative to it."""
        prefix = f"{self.folder}/" if self.folder else ""
        return [
            {
                "samples": shard["samples"],
                "files": {file["raw"].removeprefix(prefix): file for file in shard["files"]},
            }
            for shard in MANIFEST["datasets"][self.name]["shards"]
            if all(file["raw"].startswith(prefix) for file in shard["files"])
        ]


def recordings() -> list[Recording]:
    merged = merged_datasets()
    return [
        Recording(name, file.rpartition("/")[0])
        for name in DATASETS
        for file in files_of(name)
        if file.split("/")[-1] == "index.json" and (name not in merged or "/" in file)
    ]


def check_value(value: Any, tag: dict[str, Any]) -> None:
    """Assert that a decoded value is the recorded one, type and all."""
    kind = tag["type"]
    if kind in ("list", "tuple"):
        assert type(value) is {"list": list, "tuple": tuple}[kind]
        assert len(value) == len(tag["items"])
        for item, item_tag in zip(value, tag["items"], strict=True):
            check_value(item, item_tag)
    elif kind == "dict":
        assert type(value) is dict
        assert list(value) == list(tag["items"])
        for key, item_tag in tag["items"].items():
            check_value(value[key], item_tag)
    elif kind == "ndarray":
        assert type(value) is np.ndarray
        assert (value.dtype.name, list(value.shape)) == (tag["dtype"], tag["shape"])
        assert _sha1(value.tobytes()) == tag["sha1"]
    elif kind.startswith("numpy."):
        assert type(value).__name__ == kind.removeprefix("numpy.")
        assert isinstance(value, np.generic)
        assert value.tobytes().hex() == tag["bytes"]
    elif kind == "image":
        _check_image(value, tag)
    elif kind == "bytes":
        assert type(value) is bytes
        assert (len(value), _sha1(value)) == (tag["len"], tag["sha1"])
    elif kind == "float":
        assert type(value) is float
        assert repr(value) == tag["value"]
    elif kind == "decimal":
        assert type(value) is Decimal
        assert str(value) == tag["value"]
    else:
        assert type(value).__name__ == kind
        assert value == tag["value"]


def check_column_value(value: Any, tag: dict[str, Any]) -> None:
    """The same for an item of a column, which an array may hold as a NumPy scalar of the same number."""
    if tag["type"] in ("int", "float") and isinstance(value, np.generic):
        value = value.item()
    check_value(value, tag)


def _check_image(value: Any, tag: dict[str, Any]) -> None:
    assert isinstance(value, Image.Image)
    assert (value.format, value.mode, list(value.size)) == (tag["format"], tag["mode"], tag["size"])
    pixels = value.tobytes()  # decodes the file
    if tag["sha1_pixels"] is not None:
        assert _sha1(pixels) == tag["sha1_pixels"]


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
