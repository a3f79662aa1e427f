"""Recorded datasets read to the recorded values, and writing those values again gives the recorded bytes."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from penstock import CSVWriter, JSONWriter, LocalDataset, MDSWriter, TSVWriter, XSVWriter, merge_index
from penstock.codecs.compress import known_compressions
from penstock.codecs.digest import known_hashes
from penstock.data.look import verify_dataset
from penstock.formats.base import ReadOptions
from penstock.formats.parts import load_part, open_shard
from penstock.index.catalog import parse_index
from penstock.index.model import Column
from penstock.index.mosaic_json import dump_index
from tests.formats.golden import (
    DATASETS,
    MANIFEST,
    ROOT,
    Recording,
    check_column_value,
    check_value,
    expected,
    index_files,
    merged_datasets,
    recordings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.index.model import Index, IndexedShard
    from penstock.publish.writer import Writer
    from penstock.types import Sample

WRITERS: dict[str, type[Writer]] = {
    "mds": MDSWriter,
    "json": JSONWriter,
    "csv": CSVWriter,
    "tsv": TSVWriter,
    "xsv": XSVWriter,
}
# Another release of an image library or of Python may compress or pickle the same value to other bytes.
STORED_AS_THEY_ARE = {"jpeg", "png", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray", "pkl"}


@pytest.fixture(params=DATASETS)
def name(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture(params=recordings(), ids=lambda recording: "-".join(filter(None, [recording.name, recording.folder])))
def recording(request: pytest.FixtureRequest) -> Recording:
    value: Recording = request.param
    return value


# --- Reading ------------------------------------------------------------------------------------------------


def test_values_are_the_recorded_ones(name: str) -> None:
    tags = expected(name)
    with LocalDataset(ROOT / name, allow_unsafe_types=True) as dataset:
        samples = dataset[:]
        assert len(dataset) == len(samples) == len(tags)
        for sample, columns in zip(samples, tags, strict=True):
            assert sample.keys() == columns.keys()
            for column, tag in columns.items():
                check_value(sample[column], tag)


def test_values_are_the_recorded_ones_one_at_a_time(name: str) -> None:
    tags = expected(name)
    with LocalDataset(ROOT / name, allow_unsafe_types=True) as dataset:
        for number in reversed(range(len(tags))):
            for column, tag in tags[number].items():
                check_value(dataset[number][column], tag)


def test_columns_are_the_recorded_values(name: str) -> None:
    tags = expected(name)
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(tags)), 2))
    with LocalDataset(ROOT / name, allow_unsafe_types=True) as dataset:
        columns = dataset.read_columns(order)
    assert columns.keys() == MANIFEST["datasets"][name]["columns"].keys()
    for column, values in columns.items():
        assert len(values) == len(order)
        for number, value in zip(order.tolist(), values, strict=True):
            check_column_value(value, tags[number][column])


def test_columns_of_fixed_size_are_arrays(name: str) -> None:
    with LocalDataset(ROOT / name, allow_unsafe_types=True) as dataset:
        columns = dataset.read_columns(slice(None))
        fixed = [column.name for column in dataset.index.shards[0].layout.columns if column.num_bytes is not None]
    assert [name for name in fixed if not isinstance(columns[name], np.ndarray)] == []


def test_images_come_as_arrays_and_as_stored(name: str) -> None:
    with (
        LocalDataset(ROOT / name, allow_unsafe_types=True) as images,
        LocalDataset(ROOT / name, allow_unsafe_types=True, image_decoder="array") as arrays,
        LocalDataset(ROOT / name, allow_unsafe_types=True, image_decoder="raw") as stored,
    ):
        for tags, image, array, raw in zip(expected(name), images, arrays, stored, strict=True):
            for column, tag in tags.items():
                is_list = tag["type"] == "list" and MANIFEST["datasets"][name]["columns"][column] != "json"
                for values in zip(image[column], array[column], raw[column], strict=True) if is_list else ():
                    _check_image_forms(*values)
                if tag["type"] == "image":
                    _check_image_forms(image[column], array[column], raw[column])


def _check_image_forms(image: Any, array: Any, stored: Any) -> None:
    rgb = np.array(image.convert("RGB"))
    assert (array.dtype, array.shape) == (np.uint8, rgb.shape)
    # Two decoders of JPEG may round apart.
    assert np.abs(array.astype(int) - rgb.astype(int)).max() <= (4 if image.format == "JPEG" else 0)
    assert type(stored) is bytes
    if image.format is None:
        assert stored.endswith(image.tobytes())
    else:
        assert Image.open(BytesIO(stored)).tobytes() == image.tobytes()


def test_shards_are_the_recorded_ones(name: str) -> None:
    with LocalDataset(ROOT / name, allow_unsafe_types=True) as dataset:
        assert dataset.index.lengths.tolist() == [shard["samples"] for shard in MANIFEST["datasets"][name]["shards"]]
        for info, shard in zip(dataset.index.shards, MANIFEST["datasets"][name]["shards"], strict=True):
            assert {file["raw"] for file in shard["files"]} == {part.raw.basename for part in info.parts}
            for file in shard["files"]:
                raw = _raw_bytes(ROOT / name, info, file["raw"])
                assert (len(raw), hashlib.sha1(raw).hexdigest()) == (file["raw_bytes"], file["raw_sha1"])


def test_datasets_verify(name: str) -> None:
    report = verify_dataset(ROOT / name, read_values=True, allow_unsafe_types=True)
    assert report.problems == ()
    assert report.num_samples == MANIFEST["datasets"][name]["num_samples"]


def test_digests_are_checked_on_reading(recording: Recording) -> None:
    hashes = _index(recording.path).shards[-1].layout.hashes
    for algorithm in hashes:
        with LocalDataset(recording.path, allow_unsafe_types=True, validate_hash=algorithm) as dataset:
            assert len(dataset[:]) == len(dataset)


# --- The index ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", index_files())
def test_index_is_written_byte_for_byte(file: str) -> None:
    data = (ROOT / file).read_bytes()
    is_merged = file.removesuffix("/index.json") in merged_datasets()
    assert dump_index(parse_index(data, file), is_merged=is_merged) == data


@pytest.mark.parametrize("name", merged_datasets())
def test_merging_again_gives_the_recorded_index(name: str, tmp_path: Path) -> None:
    recorded = (ROOT / name / "index.json").read_bytes()
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / name, copy)
    (copy / "index.json").unlink()
    merge_index(str(copy))
    assert (copy / "index.json").read_bytes() == recorded
    (copy / "index.json").unlink()
    parts = [str(copy / part.folder / "index.json") for part in recordings() if part.name == name]
    merge_index(parts[::-1], str(copy))
    assert (copy / "index.json").read_bytes() == recorded


def test_there_is_a_merged_dataset() -> None:
    assert merged_datasets()


# --- Writing ------------------------------------------------------------------------------------------------


def test_writing_the_values_gives_the_recorded_bytes(recording: Recording, tmp_path: Path) -> None:
    index = _index(recording.path)
    layout = index.shards[0].layout
    options: dict[str, Any] = {
        "out": tmp_path / "out",
        "columns": {column.name: column.encoding for column in reversed(layout.columns)},
        "compression": layout.compression,
        "hashes": list(layout.hashes),
        "size_limit": layout.size_limit,
    }
    options |= layout.settings
    with WRITERS[layout.format](**options) as writer:
        for sample in _samples_to_write(recording.path, index):
            writer.write(sample)
    written = _index(tmp_path / "out")
    shards = recording.shards
    assert [shard.num_samples for shard in written.shards] == [shard["samples"] for shard in shards]
    for info, shard in zip(written.shards, shards, strict=True):
        assert {part.raw.basename for part in info.parts} == shard["files"].keys()
        for basename, file in shard["files"].items():
            raw = _raw_bytes(tmp_path / "out", info, basename)
            assert (len(raw), hashlib.sha1(raw).hexdigest()) == (file["raw_bytes"], file["raw_sha1"])
    if layout.compression is None:
        assert (tmp_path / "out/index.json").read_bytes() == (recording.path / "index.json").read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in recording.path.iterdir()
    )


@pytest.mark.parametrize(("key", "known"), [("compressions", known_compressions()), ("hashes", known_hashes())])
def test_known_names_are_the_recorded_ones(key: str, known: list[str]) -> None:
    assert known == MANIFEST[key]


# --- Tools --------------------------------------------------------------------------------------------------


def _index(folder: Path) -> Index:
    return parse_index((folder / "index.json").read_bytes(), str(folder))


def _raw_bytes(folder: Path, info: IndexedShard, basename: str) -> bytes:
    (part,) = [part for part in info.parts if part.raw.basename == basename]
    return bytes(load_part(folder, part, info.layout.compression, None, None))


def _samples_to_write(folder: Path, index: Index) -> list[Sample]:
    """The values to give a writer: decoded ones, and the stored bytes of those that need not compress alike."""
    samples = []
    for info in index.shards:
        decoded = open_shard(folder, info, ReadOptions(allow_unsafe_types=True)).read(range(info.num_samples))
        stored = open_shard(folder, _as_bytes(info)).read(range(info.num_samples))
        encodings = {column.name: column.encoding for column in info.layout.columns}
        samples += [
            {name: _choose(encodings[name], values[name], raw[name]) for name in values}
            for values, raw in zip(decoded, stored, strict=True)
        ]
    return samples


def _choose(encoding: str, value: Any, stored: Any) -> Any:
    if encoding in STORED_AS_THEY_ARE:
        return stored
    if encoding == "json" and json.dumps(value).encode() != stored:  # it was given to the writer as bytes
        return stored
    return value


def _as_bytes(info: IndexedShard) -> IndexedShard:
    """The same shard with its variable columns read as they are stored."""
    if info.layout.format != "mds":
        return info
    columns = tuple(
        Column(column.name, "bytes") if column.num_bytes is None else column for column in info.layout.columns
    )
    return replace(info, layout=replace(info.layout, columns=columns))
