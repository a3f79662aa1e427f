"""Files of a dataset that are missing, lead elsewhere, or are not what their digest says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from penstock import CSVWriter, LocalDataset, MDSWriter
from penstock.data.look import verify_dataset
from penstock.errors import (
    BadIndexError,
    ConfigError,
    CorruptIndexError,
    CorruptShardError,
    EmptyDatasetError,
    ObjectNotFoundError,
    PenstockError,
)
from tests.formats.making import attempt, edit_index

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = [{"n": number, "s": f"text {number}"} for number in range(20)]


def write(folder: Path, compression: str | None = None, kind: str = "mds") -> Path:
    writer_class = MDSWriter if kind == "mds" else CSVWriter
    with writer_class(
        out=folder, columns={"n": "int", "s": "str"}, compression=compression, hashes=["sha1", "xxh64"], size_limit=None
    ) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    return folder


@pytest.fixture(params=[None, "zstd", "gz", "br", "bz2", "snappy"])
def compression(request: pytest.FixtureRequest) -> str | None:
    value: str | None = request.param
    return value


@pytest.fixture
def folder(tmp_path: Path, compression: str | None) -> Path:
    return write(tmp_path / "data", compression)


def stored_file(folder: Path) -> Path:
    (path,) = folder.glob("shard.00000.mds*")
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


# --- Digests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sha1", "xxh64"])
@pytest.mark.parametrize("at", [0, -1, 30])
@pytest.mark.parametrize("unpacks", [False, True])
def test_a_wrong_digest(folder: Path, tmp_path: Path, algorithm: str, at: int, unpacks: bool) -> None:
    path = stored_file(folder)
    flip(path, at)
    unpack_dir = tmp_path / "unpacked" if unpacks else None
    with LocalDataset(folder, validate_hash=algorithm, unpack_dir=unpack_dir) as dataset:
        for _ in range(2):  # a second try finds nothing that the first one left behind
            with pytest.raises(CorruptShardError) as caught:
                dataset[0]
            assert str(caught.value).startswith(f"{path} has the {algorithm} digest ")
            assert isinstance(caught.value, ValueError)
    if unpack_dir is not None and unpack_dir.exists():
        assert list(unpack_dir.iterdir()) == []
    assert sorted(entry.name for entry in folder.iterdir()) == ["index.json", path.name]
    assert len(verify_dataset(folder).problems) == 1


def test_the_right_digest(folder: Path, tmp_path: Path) -> None:
    for algorithm in ("sha1", "xxh64"):
        assert LocalDataset(folder, validate_hash=algorithm)[:] == SAMPLES
        assert LocalDataset(folder, validate_hash=algorithm, unpack_dir=tmp_path / "u")[:] == SAMPLES


def test_a_wrong_digest_of_a_meta_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", "zstd", "csv")
    flip(folder / "shard.00000.csv.meta.zstd", -1)
    with pytest.raises(CorruptShardError, match=r"shard\.00000\.csv\.meta\.zstd has the sha1 digest "):
        LocalDataset(folder, validate_hash="sha1", unpack_dir=tmp_path / "u")[0]
    assert not list((tmp_path / "u").glob("*.meta"))


def test_a_digest_that_was_not_recorded(folder: Path) -> None:
    with pytest.raises(ConfigError, match="has no md5 digest to check: the index has sha1, xxh64") as caught:
        LocalDataset(folder, validate_hash="md5")[0]
    assert isinstance(caught.value, ValueError)


def test_a_digest_of_an_unknown_kind(folder: Path) -> None:
    with pytest.raises(ConfigError, match="^unknown hash 'crc': use one of blake2b, "):
        LocalDataset(folder, validate_hash="crc")


def test_a_damaged_unpacked_copy_is_not_left_to_be_used(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", "zstd")
    unpack_dir = tmp_path / "unpacked"
    assert LocalDataset(folder, unpack_dir=unpack_dir)[:] == SAMPLES
    flip(unpack_dir / "shard.00000.mds", -1)
    with LocalDataset(folder, unpack_dir=unpack_dir, validate_hash="sha1") as dataset:
        samples, error = attempt(CorruptShardError, lambda: dataset[:])
    if samples is None:
        assert str(error).startswith(f"{unpack_dir / 'shard.00000.mds'} has sha1 ")
    else:
        assert samples == SAMPLES
    assert LocalDataset(folder, unpack_dir=unpack_dir)[:] == SAMPLES


# --- Compressed files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zstd", "gz", "br", "bz2", "snappy"])
@pytest.mark.parametrize("unpacks", [False, True])
@pytest.mark.parametrize("change", [-1, 1, -500, 100_000])
def test_a_file_that_unpacks_to_another_size(tmp_path: Path, kind: str, unpacks: bool, change: int) -> None:
    folder = write(tmp_path / "data", kind)
    unpack_dir = tmp_path / "unpacked" if unpacks else None
    edit_index(folder, lambda entry: entry["raw_data"].update(bytes=entry["raw_data"]["bytes"] + change))
    with pytest.raises(CorruptShardError) as caught:
        LocalDataset(folder, unpack_dir=unpack_dir)[0]
    assert str(caught.value).startswith(f"{stored_file(folder)} de") or "cannot be decompressed" in str(caught.value)
    if unpack_dir is not None:
        assert list(unpack_dir.iterdir()) == []
    assert len(verify_dataset(folder).problems) == 1


@pytest.mark.parametrize("kind", ["zstd", "gz", "br", "bz2", "snappy"])
def test_a_file_packed_by_something_else(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path / "data", kind)
    path = stored_file(folder)
    path.write_bytes(os.urandom(path.stat().st_size))
    with pytest.raises(CorruptShardError):
        LocalDataset(folder)[0]


def test_unknown_compressions_are_refused_at_once(folder: Path, compression: str | None) -> None:
    edit_index(folder, lambda entry: entry.update(compression="lzma"))
    with pytest.raises((ConfigError, BadIndexError)) as caught:
        LocalDataset(folder)
    if compression is not None:
        assert str(caught.value).startswith("unknown compression 'lzma': use one of br[:0-11], bz2[:1-9]")
    assert isinstance(caught.value, ValueError)


def test_a_raw_file_of_the_wrong_size_is_not_used(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", "zstd")
    (folder / "shard.00000.mds").write_bytes(b"half written")
    assert LocalDataset(folder)[:] == SAMPLES


def test_the_packed_file_is_the_one_of_the_index(folder: Path) -> None:
    path = stored_file(folder)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CorruptShardError, match="bytes, but the index says"):
        LocalDataset(folder)[0]


# --- Files that are elsewhere -------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


OUTSIDE = ["../secret.mds", "/etc/passwd", "a//b", "..\\secret.mds", "x\0", "", ".", "..", "a/../../secret.mds"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_outside_the_folder(plain: Path, name: str) -> None:
    shutil.copy(plain / "shard.00000.mds", plain.parent / "secret.mds")
    edit_index(plain, lambda entry: entry["raw_data"].update(basename=name))
    with pytest.raises(BadIndexError) as caught:
        LocalDataset(plain)
    assert str(caught.value).startswith(f"Index file at {plain / 'index.json'}: shard 0 names the file {name!r}")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("compression_used", [None, "zstd"])
def test_a_link_out_of_the_folder(tmp_path: Path, compression_used: str | None) -> None:
    folder = write(tmp_path / "data", compression_used)
    path = stored_file(folder)
    shutil.move(path, tmp_path / "secret")
    path.symlink_to("../secret")
    with pytest.raises(BadIndexError, match="leads outside the folder of the dataset through a symbolic link"):
        LocalDataset(folder)[0]


def test_a_linked_folder(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.move(plain / "shard.00000.mds", tmp_path / "elsewhere/shard.00000.mds")
    (plain / "sub").symlink_to("../elsewhere")
    edit_index(plain, lambda entry: entry["raw_data"].update(basename="sub/shard.00000.mds"))
    with pytest.raises(BadIndexError, match="leads outside the folder of the dataset"):
        LocalDataset(plain)[0]


def test_a_link_out_of_the_unpack_dir(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", "zstd")
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked/shard.00000.mds").symlink_to("../victim")
    with pytest.raises(BadIndexError, match="leads outside"):
        LocalDataset(folder, unpack_dir=tmp_path / "unpacked")[0]
    assert not (tmp_path / "victim").exists()


def test_a_missing_file(folder: Path) -> None:
    path = stored_file(folder)
    path.unlink()
    with pytest.raises(ObjectNotFoundError) as caught:
        LocalDataset(folder)[0]
    assert str(caught.value).startswith(f"{path} is missing")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000 + "x", "file/x", "folder", "loop", "dangling"])
def test_names_of_no_file(plain: Path, name: str) -> None:
    (plain / "folder").mkdir()
    (plain / "file").touch()
    (plain / "loop").symlink_to("loop")
    (plain / "dangling").symlink_to("nowhere")
    edit_index(plain, lambda entry: entry["raw_data"].update(basename=name))
    dataset = LocalDataset(plain)
    with pytest.raises(PenstockError) as caught:
        dataset[0]
    assert name.split("/")[0][:100] in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 250, "x" * 300, "x/" * 3000 + "x", "shard.00000.mds.zstd/x", "folder", "loop"])
@pytest.mark.parametrize("unpacks", [False, True])
def test_names_of_no_file_to_unpack_to(tmp_path: Path, name: str, unpacks: bool) -> None:
    folder = write(tmp_path / "data", "zstd")
    unpack_dir = tmp_path / "unpacked"
    for place in (folder, unpack_dir):
        (place / "folder").mkdir(parents=True)
        (place / "loop").symlink_to("loop")
    (unpack_dir / "shard.00000.mds.zstd").write_bytes(b"")
    edit_index(folder, lambda entry: entry["raw_data"].update(basename=name))
    dataset = LocalDataset(folder, unpack_dir=unpack_dir if unpacks else None)
    samples, _ = attempt(PenstockError, lambda: dataset[:])
    assert samples in (None, SAMPLES)
    assert sorted(entry.name for entry in folder.iterdir()) == ["folder", "index.json", "loop", "shard.00000.mds.zstd"]


def test_an_unpack_dir_that_is_a_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", "zstd")
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(PenstockError, match="file"):
        LocalDataset(folder, unpack_dir=tmp_path / "file")[0]
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["shard.00000.mds", "index.json"])
def test_a_pipe_does_not_hang(plain: Path, name: str) -> None:
    (plain / name).unlink()
    os.mkfifo(plain / name)
    code = (
        "import sys; from penstock import LocalDataset, PenstockError\n"
        "try: LocalDataset(sys.argv[1])[0]\n"
        "except PenstockError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(plain)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    assert str(plain / name) in run.stdout


# --- The index file -----------------------------------------------------------------------------------------


def test_no_index(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ObjectNotFoundError, match=r"index\.json is missing|there is no folder") as caught:
            LocalDataset(folder)
        assert isinstance(caught.value, FileNotFoundError)


def test_an_index_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "index.json").mkdir()
    with pytest.raises(PenstockError, match=r"index\.json"):
        LocalDataset(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"garbage", b"\xff", b"[" * 100_000])
def test_a_broken_index(plain: Path, data: bytes) -> None:
    (plain / "index.json").write_bytes(data)
    with pytest.raises(CorruptIndexError) as caught:
        LocalDataset(plain)
    assert str(caught.value).startswith(f"Index file at {plain / 'index.json'} is empty or corrupted")
    assert isinstance(caught.value, json.JSONDecodeError)


@pytest.mark.parametrize("is_empty", [True, False])
def test_no_samples(plain: Path, is_empty: bool) -> None:
    document: dict[str, Any] = {"version": 2, "shards": []}
    if not is_empty:
        entry = json.loads((plain / "index.json").read_bytes())["shards"][0]
        document["shards"] = [entry | {"samples": 0}]
    (plain / "index.json").write_text(json.dumps(document))
    with pytest.raises(EmptyDatasetError) as caught:
        LocalDataset(plain)
    assert str(caught.value).startswith(f"Stream contains no samples: {plain}")
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, IndexError)
