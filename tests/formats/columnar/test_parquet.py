"""Parquet files in place: pages that have a checksum are compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock import StreamingDataset
from penstock.errors import CorruptShardError
from penstock.formats.columnar import parquet
from tests.formats.columnar.test_nodes import write_parquet
from tests.formats.in_place import InPlace, MemoryFile

if TYPE_CHECKING:
    from pathlib import Path


def with_flipped_bit(version: str, *, checksum: bool = True) -> bytes:
    """A file of three row groups; in the second, a bit of the value 150 is not as it was."""
    table = pa.table({"x": np.arange(300), "name": [f"row {row}" for row in range(300)]})
    settings = {"compression": "none", "use_dictionary": False, "row_group_size": 100}
    data = bytearray(write_parquet(table, write_page_checksum=checksum, data_page_version=version, **settings))
    at = bytes(data).index(np.arange(150, 160).tobytes())
    data[at] ^= 1
    return bytes(data)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_flipped_bit_is_an_error_that_names_file_and_row_group(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_SMALLEST_SHARD", 1)
    path = tmp_path / "rows.parquet"
    path.write_bytes(with_flipped_bit(version))
    file = InPlace("parquet", MemoryFile("a.file", path.read_bytes()))
    first, second, third = file.infos
    assert file.raw(first)
    assert file.raw(third)
    begin = file.scanned.shards[1].span.begin
    with pytest.raises(CorruptShardError, match=rf"^a\.file.* in its row group at byte {begin}: .*CRC checksum"):
        file.raw(second)
    dataset = StreamingDataset(remote=str(path), local=str(tmp_path / "cache"), batch_size=1)
    with dataset, pytest.raises(CorruptShardError, match=r"rows\.parquet.* in its row group at byte .*CRC checksum"):
        list(dataset)


def test_only_the_columns_that_are_read_are_checked() -> None:
    file = InPlace("parquet", MemoryFile("a.file", with_flipped_bit("1.0")))
    assert len(file.samples(columns=("name",))) == 300


def test_files_without_checksums_are_read_as_they_are() -> None:
    file = InPlace("parquet", MemoryFile("a.file", with_flipped_bit("1.0", checksum=False)))
    assert [sample["x"] for sample in file.samples()][149:152] == [149, 151, 151]
