"""Types and values that few files have."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.errors import CorruptShardError
from penstock.formats.columnar import parquet
from penstock.testing.formats import is_same
from tests.formats.columnar.test_nodes import write_ipc, write_parquet
from tests.formats.in_place import InPlace, MemoryFile


def read_arrow(column: Any) -> tuple[list[Any], Any]:
    """Return what samples and a columnar batch hold of a column, and the type that an index gives it."""
    data = write_ipc(pa.table({"x": column}), 100, is_file=True, compression=None)
    file = InPlace("arrow", MemoryFile("a.file", data))
    [columns] = file.columns()
    return [sample["x"] for sample in file.samples()], columns["x"]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array(["a", None, "ü" * 30], pa.string_view()), ["a", None, "ü" * 30]),
        (pa.array([[b"a", None], []], pa.list_(pa.binary_view())), [[b"a", None], []]),
        (pa.array([{"a": "x"}], pa.struct([("a", pa.string_view())])), [{"a": "x"}]),
        (pa.array([["a"], None], pa.list_view(pa.string())), [["a"], None]),
        (pc.run_end_encode(pa.array(["a", "a", "b", None])), ["a", "a", "b", None]),
        (pa.array([Decimal("1.5"), None], pa.decimal32(5, 1)), [Decimal("1.5"), None]),
        (pa.array([Decimal("-1.50"), None], pa.decimal64(12, 2)), [Decimal("-1.50"), None]),
        (pa.array([Decimal(10) ** 70], pa.decimal256(76, 5)), [Decimal(10**75).scaleb(-5)]),
        (pa.array([Decimal("12E3")], pa.decimal128(5, -3)), [Decimal("12E3")]),
        (pa.array([(1, 2, 3), None], pa.month_day_nano_interval()), [(1, 2, 3), None]),
        (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
        (pa.array([b""], pa.binary(0)), [b""]),
        (pa.array([{}, None], pa.struct([])), [{}, None]),
        (pa.array([[("k", 1), ("k", 2)], None, []], pa.map_(pa.string(), pa.int8())), [[("k", 1), ("k", 2)], None, []]),
        (pa.array(['{"a": 1}'], pa.json_()), ['{"a": 1}']),
        (pa.array([b"x" * 16], pa.uuid()), [b"x" * 16]),
        (pa.DictionaryArray.from_arrays([0, None, 1], pa.array(["a", None])), ["a", None, None]),
        (pa.DictionaryArray.from_arrays([0, 0], pa.array([[1.5]], pa.list_(pa.float64()))), [np.array([1.5])] * 2),
        (pa.array([[], []], pa.list_(pa.int8(), 0)), [np.array([], np.int8)] * 2),
    ],
    ids=lambda value: str(value.type) if hasattr(value, "type") else "",
)
def test_other_types(column: Any, values: list[Any]) -> None:
    samples, _ = read_arrow(column)
    assert is_same(samples, values)


def test_points_are_one_array_a_row() -> None:
    kind = pa.list_(pa.list_(pa.float32(), 2))
    samples, column = read_arrow(pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], kind))
    assert is_same(samples[0], np.array([[1, 2], [3, 4]], np.float32))
    assert column.shape == (2, 2, 2)
    samples, column = read_arrow(pa.array([[[1, 2], None], [[5, None]], [], None], kind))
    assert is_same(samples[0], np.array([[1, 2], [np.nan, np.nan]], np.float32))
    assert is_same(samples[1], np.array([[5, np.nan]], np.float32))
    assert is_same(samples[2], np.empty((0, 2), np.float32))
    assert samples[3] is None


def test_values_of_a_batch_may_be_written_to_and_are_their_own() -> None:
    samples, column = read_arrow(pa.array([[1, 2], [3, 4]]))
    samples[0][0] = 9
    column[1] = 7
    assert read_arrow(pa.array([[1, 2], [3, 4]]))[0][0].tolist() == [1, 2]


def test_times_that_python_does_not_have() -> None:
    late = np.datetime64("20000-01-01", "s")
    samples, column = read_arrow(pa.array([int(late.astype(int)), 0, None], pa.timestamp("s")))
    assert is_same(samples, [late, dt.datetime(1970, 1, 1), None])
    assert is_same(column, np.array([late, "1970-01-01", "NaT"], "M8[s]"))
    samples, _ = read_arrow(pa.array([2**40], pa.timestamp("s", "Europe/Berlin")))
    assert is_same(samples, [np.datetime64(2**40, "s")])
    samples, _ = read_arrow(pa.array([2**62], pa.duration("s")))
    assert is_same(samples, [np.timedelta64(2**62, "s")])


def test_zones() -> None:
    for zone in ("UTC", "Asia/Kolkata", "+05:30"):
        [found], _ = read_arrow(pa.array([0], pa.timestamp("ms", zone)))
        assert found == dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        assert found.utcoffset() == dt.timedelta(hours=0 if zone == "UTC" else 5.5)
    with pytest.raises(CorruptShardError, match=r"^a.file.*: column 'x' is in the time zone 'Nowhere/At_All'"):
        read_arrow(pa.array([0], pa.timestamp("ms", "Nowhere/At_All")))


def test_a_large_dictionary_is_cut_to_what_a_batch_uses() -> None:
    values = pa.array([f"value {number}" * 10 for number in range(10_000)])
    table = pa.table({"x": pa.DictionaryArray.from_arrays(pa.array([7, 7, 9_999], pa.int16()), values)})
    file = InPlace("arrow", MemoryFile("a.file", write_ipc(table, 10, is_file=True, compression=None)))
    [info] = file.infos
    assert len(file.raw(info)) < 4096
    assert [sample["x"] for sample in file.samples()] == [values[number].as_py() for number in (7, 7, 9_999)]


def test_dictionaries_that_change_in_a_stream() -> None:
    batches = [pa.record_batch({"x": pa.array(texts).dictionary_encode()}) for texts in (["a", "b"], ["c", "d"], ["c"])]
    for deltas in (False, True):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file = InPlace("arrow", MemoryFile("a.file", sink.getvalue().to_pybytes()))
        assert [sample["x"] for sample in file.samples()] == ["a", "b", "c", "d", "c"]


# --- Shards and spans -----------------------------------------------------------------------------------------


def wide_file(num_rows: int = 2000) -> InPlace:
    rng = np.random.default_rng(0)
    columns = {name: rng.random(num_rows) for name in "abcd"}
    table = pa.table(
        {**columns, "nested": [{"x": row, "y": [row]} for row in range(num_rows)], "nested.x": columns["a"]}
    )
    data = write_parquet(table, row_group_size=num_rows // 2, compression="none", use_dictionary=False)
    return InPlace("parquet", MemoryFile("a.file", data))


def test_chosen_columns_are_read_from_their_bytes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.formats.columnar.format._LARGEST_GAP", 0)
    file = wide_file()
    [info] = file.infos
    everything = file.samples()
    for columns in (("a",), ("b", "d"), ("nested",), ("nested.x", "c"), ("nested", "nested.x"), tuple("abcd")):
        assert sum(map(len, file.form.spans(info, columns))) == num_bytes_of(columns, file.file.data)
        found = file.samples(columns=columns)
        assert is_same(found, [{name: row[name] for name in row if name in columns} for row in everything])


def num_bytes_of(columns: tuple[str, ...], data: bytes) -> int:
    """Add up what pyarrow says of columns, and of those whose names begin like that of a nested one."""
    metadata = pq.ParquetFile(BytesIO(data)).metadata
    chunks = [
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    wanted = [chunk for chunk in chunks if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns)]
    return sum(chunk.total_compressed_size for chunk in wanted)


def test_near_columns_are_fetched_together() -> None:
    file = wide_file(100)
    [info] = file.infos
    assert len(file.form.spans(info, ("a", "d"))) == 1
    assert len(file.form.spans(info, None)) == 1


def test_small_row_groups_are_joined_and_empty_ones_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": np.arange(1000)})
    data = write_parquet(table, row_group_size=10)
    assert [shard.num_samples for shard in InPlace("parquet", MemoryFile("a.file", data)).scanned.shards] == [1000]
    monkeypatch.setattr(parquet, "_SMALLEST_SHARD", 800)
    file = InPlace("parquet", MemoryFile("a.file", data))
    assert [shard.num_samples for shard in file.scanned.shards] == [100] * 10
    assert [sample["x"] for sample in file.samples()] == list(range(1000))
    assert InPlace("parquet", MemoryFile("a.file", write_parquet(table[:0]))).scanned.shards == ()


def test_sizes_of_text_are_known_where_writers_tell_them() -> None:
    table = pa.table({"x": ["the same text again and again"] * 100_000})
    file = InPlace("parquet", MemoryFile("a.file", write_parquet(table, use_dictionary=True)))
    [info], [shard] = file.infos, file.scanned.shards
    assert abs(shard.raw_bytes - len(file.raw(info))) < 0.01 * shard.raw_bytes
    assert len(file.file.data) < shard.raw_bytes / 100


def test_details_of_a_shard_are_short() -> None:
    table = pa.table({f"column {number}": np.arange(100) for number in range(50)})
    file = InPlace("parquet", MemoryFile("a.file", write_parquet(table)))
    assert len(file.infos[0].details) < 50 * 64
