"""TFRecord files: the checksums and bytes that TensorFlow writes; what is damaged is named."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.errors import CorruptShardError
from penstock.recipes.text.tfrecord import (
    count_records,
    masked_crc,
    pack_example,
    read_records,
    unpack_example,
    write_records,
)

if TYPE_CHECKING:
    from pathlib import Path

# {"a": [1]} and {"b": [1.0]} as TensorFlow serializes them.
INTEGER = bytes.fromhex("0a0c0a0a0a016112051a030a0101")
FLOAT = bytes.fromhex("0a0f0a0d0a0162120812060a040000803f")


def test_checksums_are_crc32c_turned() -> None:
    crc = 0xE3069283  # of these nine digits, by the standard
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_examples_are_the_bytes_of_tensorflow() -> None:
    assert pack_example({"a": np.array([1])}) == INTEGER
    assert pack_example({"b": np.array([1.0], np.float32)}) == FLOAT
    features = {"n": np.array([0, 127, 128, -1, 2**62]), "x": np.array([0.5, -2], np.float32)}
    found = unpack_example(pack_example(features), "here")
    assert {name: values.tolist() for name, values in found.items()} == {"n": features["n"].tolist(), "x": [0.5, -2.0]}
    unpacked = bytes.fromhex("0a0e0a0c0a016112071a0508010802") + b""
    with pytest.raises(CorruptShardError, match="here is no example"):
        unpack_example(unpacked, "here")
    assert unpack_example(bytes.fromhex("0a0d0a0b0a016112061a0408010802"), "here")["a"].tolist() == [1, 2]


def test_records_are_framed_dealt_and_counted(tmp_path: Path) -> None:
    records = [b"", b"one", bytes(1000), b"four"]
    assert write_records([tmp_path / "a", tmp_path / "b"], records) == 4
    assert [*read_records(tmp_path / "a")] == records[::2]
    assert [*read_records(tmp_path / "b")] == records[1::2]
    assert count_records(tmp_path / "b") == 2
    data = (tmp_path / "b").read_bytes()
    assert data[:8] == struct.pack("<Q", 3)
    assert data[12:15] == b"one"
    assert len(data) == 2 * 16 + 7


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def records() -> list[bytes]:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_records([tmp_path / "a"], (record for _ in range(2) for record in records()))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("at", [0, 9, 13, 16, 30])
def test_what_is_damaged_or_cut_off_is_named(tmp_path: Path, at: int) -> None:
    path = tmp_path / "file"
    write_records([path], [b"one", b"another"])
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match=r"file.* record \d"):
        list(read_records(path))
    data[at] ^= 1
    path.write_bytes(data[:-3])
    for read in (count_records, lambda path: list(read_records(path))):
        with pytest.raises(CorruptShardError, match="cut off or damaged at record 1"):
            read(path)
