"""Sources of Parquet and Arrow files: checksums, lengths, and what a list with a gap is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock import ParquetShardedSource
from penstock.errors import CorruptShardError
from tests.formats.columnar.test_parquet import with_flipped_bit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_flipped_bit_is_an_error_that_names_file_and_row_group(version: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(with_flipped_bit(version))
    samples = iter(ParquetShardedSource(path))
    assert [next(samples)["x"] for _ in range(100)] == list(range(100))
    with pytest.raises(CorruptShardError, match=r"rows\.parquet, row group 1, cannot be read: .*CRC checksum"):
        next(samples)
    assert len(list(ParquetShardedSource(path, columns=["name"]))) == 300
