"""Files that other programs wrote: DuckDB, Polars, and the datasets of the Hub."""

from __future__ import annotations

import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from penstock.errors import CorruptShardError
from penstock.testing.formats import is_same
from tests.formats.columnar.table import column_values, sample_values
from tests.formats.columnar.test_nodes import write_ipc, write_parquet
from tests.formats.in_place import InPlace, MemoryFile

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    command = [sys.executable, "-m", "tests.formats.columnar.other_writers", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    return folder


def read_with_pyarrow(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pq.read_table(path, partitioning=None)
    data = path.read_bytes()
    open_ = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    return open_(data).read_all()


def test_files_of_duckdb_and_polars(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    assert len(paths) == 12
    for path in paths:
        table = without_views(read_with_pyarrow(path))
        file = InPlace("parquet" if path.suffix == ".parquet" else "arrow", MemoryFile(path.name, path.read_bytes()))
        samples, [columns] = file.samples(), file.columns()
        for name in table.column_names:
            values = sample_values(table[name])
            assert is_same([sample[name] for sample in samples], values), (path.name, name)
            assert is_same(columns[name], column_values(table.schema.field(name).type, values)), (path.name, name)


def without_views(table: Any) -> Any:
    """Return the same values in the layouts that the oracle knows."""
    return pa.table({name: table[name].cast(_without_views(table[name].type)) for name in table.column_names})


def _without_views(kind: Any) -> Any:
    if kind in (pa.string_view(), pa.binary_view()):
        return pa.large_string() if kind == pa.string_view() else pa.large_binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.large_list(_without_views(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_views(field.type)) for field in kind])
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type))
    return kind


# --- Images, as the Hub has them ------------------------------------------------------------------------------


def image_file(color: int, kind: str = "JPEG") -> bytes:
    out = BytesIO()
    Image.new("RGB", (8, 4), (color, color, color)).save(out, kind)
    return out.getvalue()


def hub_table(images: list[dict[str, Any] | None], feature: dict[str, Any]) -> Any:
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {
        "image": feature,
        "images": {"feature": {"_type": "Image"}, "_type": "List"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    }
    table = pa.table(
        {
            "image": pa.array(images, struct),
            "images": pa.array([[image, image] for image in images], pa.list_(struct)),
            "label": pa.array([number % 2 for number in range(len(images))], pa.int64()),
        }
    )
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


IMAGES = [{"bytes": image_file(10 * number), "path": f"{number}.jpg"} for number in range(5)]


@pytest.mark.parametrize("format_name", ["parquet", "arrow"])
def test_images_of_the_hub_are_decoded(format_name: str) -> None:
    table = hub_table([*IMAGES, {"bytes": image_file(200, "PNG"), "path": None}, None], {"_type": "Image"})
    data = write_parquet(table) if format_name == "parquet" else write_ipc(table, 3, is_file=False, compression=None)
    file = InPlace(format_name, MemoryFile("a.file", data))
    assert [str(column.encoding) for column in file.scanned.columns] == ["image", "list<image>", "int64"]
    samples = file.samples()
    assert [sample["image"].size for sample in samples[:-1]] == [(8, 4)] * 6
    assert samples[-1]["image"] is None
    assert [sample["label"] for sample in samples] == [0, 1, 0, 1, 0, 1, 0]
    assert [[image.size for image in sample["images"]] for sample in samples[:-1]] == [[(8, 4)] * 2] * 6
    raw = file.samples(image_decoder="raw")
    assert [sample["image"] for sample in raw[:5]] == [image["bytes"] for image in IMAGES]
    arrays = file.samples(image_decoder="array")
    assert arrays[3]["image"].shape == (4, 8, 3)
    assert abs(int(arrays[3]["image"].mean()) - 30) <= 2


def test_images_of_one_size_are_one_array_by_column() -> None:
    file = InPlace("parquet", MemoryFile("a.file", write_parquet(hub_table(list(IMAGES), {"_type": "Image"}))))
    [columns] = file.columns(image_decoder="array")
    assert isinstance(columns["image"], np.ndarray)
    assert columns["image"].shape == (5, 4, 8, 3)


def test_images_that_shall_not_be_decoded_stay_what_they_are() -> None:
    file = InPlace(
        "parquet", MemoryFile("a.file", write_parquet(hub_table(list(IMAGES), {"_type": "Image", "decode": False})))
    )
    assert [sample["image"] for sample in file.samples()] == IMAGES


def test_images_without_bytes_are_refused() -> None:
    table = hub_table([{"bytes": None, "path": "/home/me/a.jpg"}], {"_type": "Image"})
    with pytest.raises(CorruptShardError, match=r"a\.file.* holds only the paths of its images"):
        InPlace("parquet", MemoryFile("a.file", write_parquet(table))).samples()


def test_a_broken_image_names_its_row() -> None:
    table = hub_table([*IMAGES, {"bytes": b"no image", "path": None}], {"_type": "Image"})
    file = InPlace("parquet", MemoryFile("a.file", write_parquet(table.select(["image"]))))
    with pytest.raises(
        CorruptShardError, match=r"a\.file.*, row 5: column 'image' holds 8 bytes that are not an image"
    ):
        file.samples()
