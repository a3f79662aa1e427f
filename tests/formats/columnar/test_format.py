"""Lists of numbers are arrays of one type in every row, whatever is missing, from sources as in place."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import ArrowShardedSource, AsyncDataLoader, ParquetShardedSource
from penstock.sources.to_arrow import to_batch
from penstock.testing.formats import is_same
from tests.formats.in_place import InPlace, MemoryFile

NAN = float("nan")


def told(values: list[Any]) -> list[Any]:
    """All that can be told of values; NaN of a float16 has several forms."""
    return [each if each is None else (type(each), each.dtype, each.shape, repr(each.tolist())) for each in values]


def array(values: list[Any], dtype: str) -> Any:
    return np.array(values, dtype)


CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "float32": (
        pa.list_(pa.float32()),
        [[1, 2], [3, None], [None, None], [], None, [4]],
        [*(array(each, "f4") for each in ([1, 2], [3, NAN], [NAN, NAN], [])), None, array([4], "f4")],
    ),
    "float64": (pa.large_list(pa.float64()), [[1, None]] * 3, [array([1, NAN], "f8")] * 3),
    "float16": (pa.list_(pa.float16(), 2), [[1, None], [2, 3]], [array([1, NAN], "f2"), array([2, 3], "f2")]),
    "vectors": (
        pa.list_(pa.float32(), 2),
        [[1, 2], None, [None, 3]],
        [array([1, 2], "f4"), None, array([NAN, 3], "f4")],
    ),
    "int64": (
        pa.list_(pa.int64()),
        [[1, 2**62 + 1], [2**62 + 1, None], [None], None, []],
        [array([1, 2**62 + 1], "i8"), array([2**62 + 1, None], "O"), array([None], "O"), None, array([], "i8")],
    ),
    "uint8": (
        pa.list_(pa.uint8(), 1),
        [[1], [None], [255]],
        [array([1], "u1"), array([None], "O"), array([255], "u1")],
    ),
    "bool": (pa.list_(pa.bool_()), [[True, None], [False]], [array([True, None], "O"), array([False], "?")]),
}


@pytest.mark.parametrize(("kind", "stored", "expected"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_missing_number_leaves_a_list_an_array(
    form: str, kind: Any, stored: list[Any], expected: list[Any], tmp_path: Any
) -> None:
    if pa.types.is_float16(kind.value_type):
        stored = [[None if each is None else np.float16(each) for each in row] for row in stored]
    table = pa.table({"x": pa.array(stored, kind)})
    out = BytesIO()
    if form == "parquet":
        pq.write_table(table, out)
    else:
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    path = tmp_path / f"a.{form}"
    path.write_bytes(out.getvalue())
    source = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource}[form](path)
    assert told([sample["x"] for sample in source]) == told(expected)
    for row in range(len(stored)):  # whatever stands beside it
        assert told([source.open_shard_at_row(str(path), row).take(1)[0]["x"]]) == told([expected[row]])
    in_place = InPlace(form, MemoryFile("a.file", path.read_bytes())).samples()
    assert told([sample["x"] for sample in in_place]) == told(expected)


def test_batches_have_nan_among_floats_and_lists_of_arrays_with_missing_integers(tmp_path: Any) -> None:
    table = pa.table({"f": [[1.5, None], [2.5, 3.5]], "i": [[1, 2], [3, None]], "j": [[3, None], [1, 2]]})
    pq.write_table(table, tmp_path / "a.parquet")
    [batch] = AsyncDataLoader(ParquetShardedSource(tmp_path), 2)
    [columns] = InPlace("parquet", MemoryFile("a.file", (tmp_path / "a.parquet").read_bytes())).columns()
    for found in (batch, columns):
        assert is_same(found["f"], np.array([[1.5, NAN], [2.5, 3.5]]))
        for name in ("i", "j"):
            assert isinstance(found[name], list)
            assert sorted(each.dtype.kind for each in found[name]) == ["O", "i"]


def test_lists_within_lists_of_one_length_may_be_missing() -> None:
    """In place alone: sources give lists of lists."""
    numbers = pa.array([[[1, 2], None], [[5, None]], [[3, 4]], [], None], pa.list_(pa.list_(pa.int32(), 2)))
    floats = pa.array([[[1, 2], None], [[5, None]], [[3, 4]], [], None], pa.list_(pa.list_(pa.float32(), 2)))
    out = BytesIO()
    pq.write_table(pa.table({"i": numbers, "f": floats}), out)
    samples = InPlace("parquet", MemoryFile("a.file", out.getvalue())).samples()
    assert is_same(
        [sample["i"] for sample in samples],
        [
            np.array([[1, 2], [None, None]], object),
            np.array([[5, None]], object),
            np.array([[3, 4]], np.int32),
            np.empty((0, 2), np.int32),
            None,
        ],
    )
    assert is_same(
        [sample["f"] for sample in samples],
        [
            np.array([[1, 2], [NAN, NAN]], np.float32),
            np.array([[5, NAN]], np.float32),
            np.array([[3, 4]], np.float32),
            np.empty((0, 2), np.float32),
            None,
        ],
    )


def test_gaps_are_kept_where_samples_are_written_as_columns() -> None:
    gap = np.array([1, None], object)
    for values in ([np.array([1, 2]), gap], [gap, gap], [gap, None]):
        batch = to_batch([{"x": value} for value in values], ("x",), 0)
        assert batch.column(0).to_pylist() == [value if value is None else value.tolist() for value in values]
