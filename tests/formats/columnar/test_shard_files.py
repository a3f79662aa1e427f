"""Rows become Parquet and Arrow files with the columns of the first rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.feather
import pyarrow.parquet
import pytest

from penstock.errors import ColumnTypeError, ConfigError, ExtraColumnError
from penstock.formats.columnar.shard_files import ColumnarSaveFormat

if TYPE_CHECKING:
    from pathlib import Path

ROWS: list[dict[str, Any]] = [{"x": 1, "s": "a"}, {"x": None, "s": "b"}, {"x": 3}]


@pytest.mark.parametrize(
    ("name", "read"), [("parquet", pyarrow.parquet.read_table), ("arrow", pyarrow.feather.read_table)]
)
def test_files_are_read_by_others(tmp_path: Path, name: str, read: Any) -> None:
    form = ColumnarSaveFormat(name, "zstd")
    form.begin(ROWS)
    again = ColumnarSaveFormat(name, None)
    again.load_state(form.state())
    shard = again.open(tmp_path, 0)
    shard.add(ROWS[:2], 0)
    shard.add(ROWS[2:], 2)
    shard.finish()
    assert read(tmp_path / shard.names[0]).to_pylist() == [
        {"x": 1, "s": "a"},
        {"x": None, "s": "b"},
        {"x": 3, "s": None},
    ]


def test_a_row_that_does_not_fit_is_named(tmp_path: Path) -> None:
    form = ColumnarSaveFormat("parquet", None)
    form.begin(ROWS)
    shard = form.open(tmp_path, 0)
    with pytest.raises(ColumnTypeError, match="row 8: column 'x' does not fit int64"):
        shard.add([{"x": 1}, {"x": "one"}], 7)
    with pytest.raises(ExtraColumnError, match="row 7 has a column 'y'"):
        shard.add([{"y": 1}], 7)
    shard.close()


def test_an_unknown_compression() -> None:
    with pytest.raises(ConfigError, match="compression='brotli' is unknown to arrow: use one of none, zstd, lz4"):
        ColumnarSaveFormat("arrow", "brotli")
