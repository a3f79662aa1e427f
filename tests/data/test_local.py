"""LocalDataset as its users meet it: keys, formats, safety, limits."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import CSVWriter, LocalDataset, MDSWriter, merge_index
from penstock.errors import (
    ConfigError,
    CorruptIndexError,
    CorruptShardError,
    EmptyDatasetError,
    ObjectNotFoundError,
    SampleIndexError,
    SampleKeyError,
    UnsafeTypeError,
)
from penstock.formats.parts import note_path
from penstock.order.id_spans import IdSpans
from penstock.reading.collected_rows import group_by_shard
from penstock.reading.schedule import rows_at_once

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.publish.writer import Writer
    from penstock.types import Sample

SAMPLES: list[Sample] = [{"id": i, "text": f"row {i} " * 5} for i in range(100)]


@pytest.fixture(scope="module", params=[None, "zstd"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("data")
    write(path / "train", SAMPLES, compression=request.param, hashes=["sha1"])
    return path


def write(out: Path, samples: list[Sample], **options: Any) -> None:
    with MDSWriter(**{"out": out, "columns": {"id": "int", "text": "str"}, "size_limit": 1000, **options}) as writer:
        for sample in samples:
            writer.write(sample)


@pytest.fixture
def dataset(folder: Path) -> LocalDataset:
    return LocalDataset(folder, split="train")


def test_length_and_single_samples(dataset: LocalDataset) -> None:
    assert len(dataset) == dataset.size == dataset.num_samples == 100
    assert [dataset[i] for i in range(100)] == SAMPLES
    assert dataset[-1] == dataset[np.int64(99)] == dataset[np.uint8(99)] == dataset.get_item(99) == SAMPLES[99]
    assert dataset[-100] == SAMPLES[0]


@pytest.mark.parametrize("key", [slice(None), slice(3, 70, 7), slice(-5, None), slice(None, None, -1), slice(50, 10)])
def test_slices(dataset: LocalDataset, key: slice) -> None:
    assert dataset[key] == SAMPLES[key]


def test_any_slice_is_that_of_a_list(dataset: LocalDataset) -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        start, stop = (int(number) for number in rng.integers(-120, 120, 2))
        key = slice(start, stop, int(rng.choice([-7, -1, 1, 1, 1, 3])))
        assert dataset[key] == SAMPLES[key]
        if SAMPLES[key]:
            assert dataset.read_columns(key)["text"] == [sample["text"] for sample in SAMPLES[key]]


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda numbers: np.array(numbers, np.int8)])
def test_lists_and_arrays_in_any_order(dataset: LocalDataset, kind: Any) -> None:
    numbers = [5, 99, -1, 0, 5, 42, -100, 17]
    assert dataset[kind(numbers)] == [SAMPLES[i] for i in numbers]
    assert dataset[kind([])] == []


@pytest.mark.parametrize("key", [100, -101, 10**20, [0, 100], np.array([-101])])
def test_out_of_range(dataset: LocalDataset, key: Any) -> None:
    with pytest.raises(SampleIndexError, match="out of range: the dataset has 100") as caught:
        dataset[key]
    assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize("key", ["0", 1.0, None, [1.5], [[1], []], ["a"], np.array([True]), np.zeros((2, 2))])
def test_what_cannot_number_a_sample(dataset: LocalDataset, key: Any) -> None:
    with pytest.raises(SampleKeyError):
        dataset[key]


def test_iteration_shuffled_and_by_column(dataset: LocalDataset) -> None:
    assert list(dataset) == SAMPLES
    order = np.random.default_rng(0).permutation(100)
    columns = dataset.read_columns(order)
    assert isinstance(columns["id"], np.ndarray)
    assert columns["id"].tolist() == order.tolist()
    assert columns["text"] == [SAMPLES[i]["text"] for i in order]
    with pytest.raises(SampleKeyError):
        dataset.read_columns(3)  # type: ignore[arg-type]


def test_a_projection_reads_some_columns(folder: Path) -> None:
    dataset = LocalDataset(folder / "train", columns=["id"])
    assert dataset[7] == {"id": 7}
    assert list(dataset.read_columns(slice(0, 3))) == ["id"]
    with pytest.raises(ConfigError, match="no column 'label': the dataset has id, text"):
        LocalDataset(folder / "train", columns=["label"])
    with pytest.raises(ConfigError, match="is a string"):
        LocalDataset(folder / "train", columns="id")


def read_sum(dataset: LocalDataset) -> int:
    return sum(sample["id"] for sample in dataset)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_process_may_read(dataset: LocalDataset, method: str) -> None:
    assert dataset[50] == SAMPLES[50]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(read_sum, [dataset] * 2) == [4950, 4950]


def test_closing_and_pickling(dataset: LocalDataset) -> None:
    with dataset:
        assert dataset[3] == SAMPLES[3]
    assert dataset[4] == SAMPLES[4]
    assert pickle.loads(pickle.dumps(dataset))[5] == SAMPLES[5]


def test_arrays_stay_when_shards_go(tmp_path: Path) -> None:
    arrays = [np.full(1000, i, np.int32) for i in range(300)]
    with MDSWriter(out=tmp_path, columns={"x": "ndarray:int32:1000", "y": "ndarray"}, size_limit=9000) as writer:
        for array in arrays:
            writer.write({"x": array, "y": array})
    dataset = LocalDataset(tmp_path)
    samples = dataset[:]  # far more shards than are kept open
    dataset.close()
    for sample, array in zip(samples, arrays, strict=True):
        np.testing.assert_array_equal(sample["x"], array)
        np.testing.assert_array_equal(sample["y"], array)
        sample["x"][:] = sample["y"][:] = -1  # both are the reader's own


# --- Compressed datasets ------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_is_never_changed(folder: Path, tmp_path: Path) -> None:
    before = snapshot(folder)
    for options in ({}, {"memory_limit": 1000}, {"validate_hash": "sha1"}, {"unpack_dir": tmp_path / "raw"}):
        assert list(LocalDataset(folder / "train", **options)) == SAMPLES
    assert snapshot(folder) == before


def test_unpacked_shards_are_kept_for_later_readers(tmp_path: Path) -> None:
    write(tmp_path / "data", SAMPLES, compression="br:1")
    write(tmp_path / "plain", SAMPLES)
    assert list(LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw")) == SAMPLES
    names = sorted(name for name in snapshot(tmp_path / "plain") if name != "index.json")
    assert sorted(name for name in snapshot(tmp_path / "raw") if not name.startswith(".")) == names
    before = [(tmp_path / "raw" / name).stat() for name in names]
    assert list(LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw")) == SAMPLES
    after = [(tmp_path / "raw" / name).stat() for name in names]
    assert [(now.st_ino, now.st_mtime_ns) for now in after] == [(then.st_ino, then.st_mtime_ns) for then in before]


@pytest.mark.parametrize("kind", [MDSWriter, CSVWriter])
@pytest.mark.parametrize("beside", [False, True])
def test_copies_of_what_was_there_before_are_not_read(tmp_path: Path, kind: type[Writer], beside: bool) -> None:
    """Written again, with other values of the same shapes, and read again, also by another process."""
    place, data = tmp_path / "data", tmp_path / "new"
    raw = place if beside else tmp_path / "raw"
    for first in (1000, 2000, 3000):
        with kind(out=data, columns={"x": "int"}, compression="zstd", exist_ok=True) as writer:
            for number in range(first, first + 50):
                writer.write({"x": number})
        place.mkdir(exist_ok=True)
        for path in data.iterdir():  # as a mirror does it, which knows nothing of copies
            path.replace(place / path.name)
        wanted = list(range(first, first + 50))
        assert [sample["x"] for sample in LocalDataset(place, unpack_dir=raw)] == wanted
        code = "import sys; from penstock import LocalDataset; print([s['x'] for s in LocalDataset(*sys.argv[1:2],"
        code += " unpack_dir=sys.argv[2])])"
        assert json.loads(subprocess.check_output([sys.executable, "-c", code, str(place), str(raw)])) == wanted


def test_a_note_about_another_file_fits_no_copy(tmp_path: Path) -> None:
    """As a process leaves it that is killed after writing the note, before the copy gets its name."""
    write(tmp_path / "data", SAMPLES, compression="zstd")
    assert list(LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw")) == SAMPLES
    copy = tmp_path / "raw" / "shard.00000.mds"
    data = copy.read_bytes()
    (tmp_path / "other").write_bytes(bytes(len(data)))
    (tmp_path / "other").replace(copy)
    assert list(LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw")) == SAMPLES
    for note in (b"", b"{", b"[]", b"x" * 10_000):
        note_path(copy).write_bytes(note)
        copy.write_bytes(bytes(len(data)))
        assert list(LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw")) == SAMPLES


@pytest.mark.parametrize("kind", [MDSWriter, CSVWriter])
def test_a_shard_that_takes_more_than_the_memory_limit(tmp_path: Path, kind: type[Writer]) -> None:
    with kind(out=tmp_path / "data", columns={"x": "str"}, compression="zstd") as writer:
        writer.write({"x": "0" * 100_000})
    with LocalDataset(tmp_path / "data", memory_limit="90kb") as dataset:
        with pytest.raises(ConfigError, match=r"shard\.00000\.\w+\.zstd needs .*raise memory_limit, or"):
            dataset[0]
    assert len(LocalDataset(tmp_path / "data", memory_limit="200kb")[0]["x"]) == 100_000
    assert len(LocalDataset(tmp_path / "data", memory_limit=0, unpack_dir=tmp_path / "raw")[0]["x"]) == 100_000
    assert len(LocalDataset(tmp_path / "data", memory_limit=0, unpack_dir=tmp_path / "data")[0]["x"]) == 100_000
    assert len(LocalDataset(tmp_path / "data", memory_limit=0)[0]["x"]) == 100_000  # the raw file lies there now


CUT = """
import os, sys
from penstock import LocalDataset, StreamingDataset
from penstock.errors import CorruptShardError
folder, name = sys.argv[1:]
local, stream = LocalDataset(folder), StreamingDataset(remote=folder, batch_size=4)
ways = [lambda: local[0], lambda: local[:7], lambda: local[[60, 0]], lambda: local.read_columns([60, 0]),
        lambda: local.read_columns([7]), lambda: list(local), lambda: stream[0], lambda: stream[[60, 0]]]
for way in ways:
    way()
os.truncate(os.path.join(folder, name), 100)
for way in ways:
    try:
        way()
    except CorruptShardError as error:
        assert " bytes while it was being read" in str(error) or "but the index says" in str(error), error
    else:
        raise AssertionError("what is not there was read")
print("alive")
"""


@pytest.mark.parametrize(("kind", "name"), [(MDSWriter, "0/shard.00000.mds"), (CSVWriter, "0/shard.00000.csv")])
def test_a_mapped_file_that_is_cut_is_an_error_and_no_signal(tmp_path: Path, kind: type[Writer], name: str) -> None:
    for part in range(2):
        with kind(out=tmp_path / str(part), columns={"x": "str", "y": "int"}) as writer:
            for number in range(60):
                writer.write({"x": "0" * 1000, "y": number})
    merge_index(tmp_path)
    assert subprocess.check_output([sys.executable, "-c", CUT, str(tmp_path), name]) == b"alive\n"


def test_large_samples_are_iterated_few_at_a_time(tmp_path: Path) -> None:
    assert rows_at_once(100.0) == 256
    assert rows_at_once(8 << 20) == 4
    assert rows_at_once(1 << 30) == 1


def test_a_raw_file_beside_a_packed_one_is_used_if_its_size_fits(tmp_path: Path) -> None:
    write(tmp_path / "packed", SAMPLES, compression="zstd")
    dataset = LocalDataset(tmp_path / "packed", unpack_dir=tmp_path / "packed")
    assert list(dataset) == SAMPLES
    (tmp_path / "packed" / "shard.00000.mds").write_bytes(b"torn")
    for path in (tmp_path / "packed").glob("shard.00001.mds.zstd"):
        path.unlink()
    assert list(LocalDataset(tmp_path / "packed")) == SAMPLES


# --- Refusals -----------------------------------------------------------------------------------------------


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"no dataset in .*index\.json is missing") as caught:
        LocalDataset(tmp_path)
    assert isinstance(caught.value, FileNotFoundError)


def test_an_empty_dataset(tmp_path: Path) -> None:
    write(tmp_path, [])
    with pytest.raises(EmptyDatasetError, match=r"^Stream contains no samples: ") as caught:
        LocalDataset(tmp_path)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, IndexError)


def test_a_broken_index(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(b"")
    with pytest.raises(CorruptIndexError, match=r"^Index file at .*index\.json is empty or corrupted"):
        LocalDataset(tmp_path)


def test_pickles_must_be_allowed(tmp_path: Path) -> None:
    write(tmp_path, [{"x": {1, 2}}], columns={"x": "pkl"})
    with pytest.raises(UnsafeTypeError, match="allow_unsafe_types=True") as caught:
        LocalDataset(tmp_path)
    assert isinstance(caught.value, ValueError)
    assert LocalDataset(tmp_path, allow_unsafe_types=True)[0] == {"x": {1, 2}}


@pytest.mark.parametrize("compression", [None, "gz"])
def test_a_wrong_digest_is_never_read(tmp_path: Path, compression: str | None) -> None:
    write(tmp_path / "data", SAMPLES, compression=compression, hashes=["sha1", "xxh3_64"])
    path = next((tmp_path / "data").glob("shard.00001*"))
    data = bytearray(path.read_bytes())
    data[-9 if compression is None else 9] ^= 1  # a letter of a text, or the byte in a gzip header that means nothing
    path.write_bytes(data)
    assert len(list(LocalDataset(tmp_path / "data"))) == 100
    dataset = LocalDataset(tmp_path / "data", validate_hash="sha1", unpack_dir=tmp_path / "raw")
    bad = dataset.index.shards[0].num_samples
    assert dataset[0] == SAMPLES[0]
    for _ in range(2):
        with pytest.raises(
            CorruptShardError, match=r"shard\.00001\.mds.* has the sha1 digest .*but the index says"
        ) as caught:
            dataset[bad]
        assert isinstance(caught.value, ValueError)
    assert not list((tmp_path / "raw").glob("shard.00001*"))
    with pytest.raises(ConfigError, match="no md5 digest to check: the index has sha1, xxh3_64"):
        LocalDataset(tmp_path / "data", validate_hash="md5")[0]
    with pytest.raises(ConfigError, match="unknown hash"):
        LocalDataset(tmp_path / "data", validate_hash="nope")


WITHOUT_PILLOW = """
import sys
sys.modules["PIL"] = None  # as if it were not installed
from penstock import LocalDataset, MDSWriter
from penstock.errors import MissingExtraError
with MDSWriter(out=sys.argv[1], columns={"photo": "jpeg"}) as writer:
    writer.write({"photo": b"\\xff\\xd8\\xff as it is"})
    try:
        writer.write({"photo": object()})
    except MissingExtraError as error:
        print(error)
assert LocalDataset(sys.argv[1], image_decoder="raw")[0] == {"photo": b"\\xff\\xd8\\xff as it is"}
try:
    LocalDataset(sys.argv[1])[0]
except MissingExtraError as error:
    print(error)
"""


def test_images_without_their_extra_name_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_PILLOW, str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(shown) == 2
    assert all("an image column needs PIL" in line and "[images]'" in line for line in shown)


def test_a_missing_shard_is_named(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder / "train", tmp_path / "data")
    path = next((tmp_path / "data").glob("shard.00000*"))
    path.unlink()
    with pytest.raises(ObjectNotFoundError, match=f"{path.name} is missing"):
        LocalDataset(tmp_path / "data")[0]


# --- The pure parts -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=8), st.data())
def test_grouping_finds_every_sample_once(lengths: list[int], data: st.DataObject) -> None:
    spans = IdSpans(lengths)
    where = [(shard, row) for shard, length in enumerate(lengths) for row in range(length)]
    ids = data.draw(st.lists(st.integers(0, len(where) - 1), max_size=20)) if where else []
    found: dict[int, tuple[int, int]] = {}
    shards = []
    grouped = group_by_shard(np.array(ids, np.int64), spans)
    for shard, begin, end in grouped:
        shards.append(shard)
        rows, places = grouped.rows[begin:end].tolist(), grouped.places[begin:end].tolist()
        found.update((place, (shard, row)) for place, row in zip(places, rows, strict=True))
        assert rows == sorted(rows)
    assert [found[place] for place in range(len(ids))] == [where[i] for i in ids]
    assert shards == sorted(set(shards))
    every = np.arange(len(where))
    of_shards, of_rows = spans.locate(every)
    np.testing.assert_array_equal(spans.starts[of_shards] + of_rows, every)


def test_a_damaged_copy_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path / "data", SAMPLES, compression="zstd", hashes=["sha1"])
    assert list(LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw")) == SAMPLES
    path = tmp_path / "raw" / "shard.00001.mds"
    path.write_bytes(bytes(path.stat().st_size))
    dataset = LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw", validate_hash="sha1")
    assert list(dataset) == SAMPLES
    assert list(LocalDataset(tmp_path / "data", unpack_dir=tmp_path / "raw")) == SAMPLES


def test_columns_of_shards_that_are_laid_out_differently(tmp_path: Path) -> None:
    """Sizes and encodings may differ between the writers of a merged dataset: what can be one array is one."""
    for part, kind, size in (("0", "int32", 3), ("1", "int32", 3), ("2", "int64", 3), ("3", "int32", 4)):
        columns = {"x": f"ndarray:{kind}:{size}", "n": "int64", "t": "str"}
        with MDSWriter(out=tmp_path / part, columns=columns) as writer:
            for number in range(4):
                writer.write({"x": np.full(size, number, kind), "n": number + 4 * int(part), "t": str(number)})
    merge_index(tmp_path)
    dataset = LocalDataset(tmp_path)
    alike = dataset.read_columns([5, 0, 3, 6])
    assert np.asarray(alike["x"]).tolist() == [[1] * 3, [0] * 3, [3] * 3, [2] * 3]
    assert (np.asarray(alike["n"]).tolist(), alike["t"]) == ([5, 0, 3, 6], ["1", "0", "3", "2"])
    different = dataset.read_columns([15, 5, 0, 9, 3, 14, 6])
    assert isinstance(different["x"], list)
    assert [value.tolist() for value in different["x"]] == [
        [3] * 4, [1] * 3, [0] * 3, [1] * 3, [3] * 3, [2] * 4, [2] * 3
    ]  # fmt: skip
    assert np.asarray(different["n"]).tolist() == [15, 5, 0, 9, 3, 14, 6]
    assert different["t"] == ["3", "1", "0", "1", "3", "2", "2"]
