"""Record batches become the chunks of a file of columns."""

from __future__ import annotations

from io import BytesIO

import pyarrow as pa
import pytest

from penstock.errors import CorruptShardError
from penstock.formats.base import ReadOptions
from penstock.formats.columnar import write
from penstock.formats.columnar.arrow_types import describe_schema
from penstock.formats.columnar.reader import ColumnsReader
from penstock.formats.columnar.write import join_small, write_columns
from penstock.index.model import Column, FileInfo, IndexedShard, Part, ShardLayout

TABLE = pa.table({"x": range(10), "s": [None if number == 3 else str(number) for number in range(10)]})


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        ([], 5, []),
        ([1, 2], 5, [[1, 2]]),
        ([5, 1, 4, 2], 5, [[5], [1, 4], [2]]),
        ([1, 1], 0, [[1], [1]]),
    ],
)
def test_neighbours_are_joined_until_they_have_some_size(
    sizes: list[int], least: int, expected: list[list[int]]
) -> None:
    assert list(join_small(sizes, int, least)) == expected


def written(num_rows: int, max_bytes: int = 1 << 20) -> bytes:
    out = BytesIO()
    batches, types = TABLE.to_batches(max_chunksize=3), describe_schema(TABLE.schema)
    write_columns(batches, types, out, name="a", num_rows=num_rows, max_bytes=max_bytes)
    return out.getvalue()


@pytest.mark.parametrize("chunk_bytes", [2, 1 << 20])
def test_chunks_are_read_as_one_column(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(write, "CHUNK_BYTES", chunk_bytes)
    data = written(10)
    layout = ShardLayout(format="columns", columns=(Column("x", "arrow"), Column("s", "arrow")))
    info = IndexedShard(layout, 10, (Part(FileInfo("a", len(data))),))
    reader = ColumnsReader(data, info, ReadOptions())
    rows = [9, 3, 0, 4, 3]
    assert reader.read(rows) == [TABLE.to_pylist()[row] for row in rows]
    assert list(reader.read_columns(rows)["x"]) == rows


def test_rows_that_are_not_there_and_too_many_bytes() -> None:
    for num_rows in (9, 11):
        with pytest.raises(CorruptShardError, match=f"a does not hold the {num_rows} rows"):
            written(num_rows)
    with pytest.raises(CorruptShardError, match="a unpacks to more than"):
        written(10, max_bytes=10)
