"""Every value is what the table of docs/formats.md makes of what pyarrow reads from the same file."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from penstock.formats.columnar import arrow, parquet, write
from penstock.reading.collected_rows import CollectedRows
from penstock.testing.formats import is_same
from tests.formats.columnar.making import tables
from tests.formats.columnar.table import column_values, sample_values
from tests.formats.in_place import InPlace, MemoryFile

writer_settings = st.fixed_dictionaries(
    {
        "row_group_size": st.integers(1, 50),
        "version": st.sampled_from(["1.0", "2.4", "2.6"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.booleans(),
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "store_schema": st.booleans(),
        "data_page_size": st.sampled_from([64, 1 << 20]),
        "write_statistics": st.booleans(),
        "write_page_index": st.booleans(),
    }
)
# Bytes at which shards, chunks and batches end: so few that there are several of each, or as they are.
bounds = st.fixed_dictionaries({name: st.sampled_from([1, 300, 1 << 20]) for name in ("shard", "decoded", "written")})


def write_parquet(table: Any, **settings: Any) -> bytes:
    out = BytesIO()
    pq.write_table(table, out, allow_truncated_timestamps=True, **settings)
    return out.getvalue()


def write_ipc(table: Any, rows: int, *, is_file: bool, compression: str | None) -> bytes:
    out = BytesIO()
    make = pa.ipc.new_file if is_file else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=not is_file)
    with make(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return out.getvalue()


def check(data: bytes, format_name: str, expected: Any, draw: Any) -> None:
    """Compare all rows, as samples and by column, shard by shard and over all shards in any order."""
    rows = {name: sample_values(expected[name].combine_chunks()) for name in expected.column_names}
    file = InPlace(format_name, MemoryFile("a.file", data))
    order = np.array(draw(st.permutations(range(expected.num_rows))), np.int64)
    with file.opened() as readers:
        assert sum(map(len, readers)) == expected.num_rows
        starts = np.cumsum([0, *map(len, readers)])
        places = np.argsort(order)
        rows_of_shards = order[places] - np.repeat(starts[:-1], np.diff(starts))
        samples, columns = (
            CollectedRows(rows_of_shards, places, by_column=False),
            CollectedRows(rows_of_shards, places, by_column=True),
        )
        for reader, begin, end in zip(readers, starts.tolist(), starts[1:].tolist(), strict=False):
            wanted = rows_of_shards[begin:end]
            own = reader.read(wanted)
            assert is_same(own, [{name: rows[name][row] for name in rows} for row in range(begin, end)])
            samples.add(reader, begin, end)
            columns.add(reader, begin, end)
        samples.finish()
        columns.finish()
        found, by_column = samples.samples(), columns.columns()
    for name, values in rows.items():
        in_order = [values[row] for row in order.tolist()]
        assert is_same([sample[name] for sample in found], in_order), name
        wanted_column = column_values(expected.schema.field(name).type, in_order)
        assert is_same(by_column[name], wanted_column), (name, by_column[name], wanted_column)


@given(table=tables(), settings=writer_settings, sizes=bounds, data=st.data())
def test_parquet(table: Any, settings: dict[str, Any], sizes: dict[str, int], data: st.DataObject) -> None:
    try:
        stored = write_parquet(table, **settings)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowIndexError):
        # Old versions of the format lack nanoseconds and the like; a null struct of an empty dictionary is not written.
        reject()
    try:
        expected = pq.ParquetFile(BytesIO(stored)).read()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # some nested dictionaries it writes and cannot read
        reject()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_SMALLEST_SHARD", sizes["shard"])
        patch.setattr(parquet, "CHUNK_BYTES", sizes["decoded"])
        patch.setattr(write, "CHUNK_BYTES", sizes["written"])
        check(stored, "parquet", expected, data.draw)


@given(
    table=tables(),
    rows=st.integers(1, 50),
    is_file=st.booleans(),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    sizes=bounds,
    data=st.data(),
)
def test_arrow(
    table: Any, rows: int, is_file: bool, compression: str | None, sizes: dict[str, int], data: st.DataObject
) -> None:
    stored = write_ipc(table, rows, is_file=is_file, compression=compression)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "_SMALLEST_SHARD", sizes["shard"])
        patch.setattr(arrow, "CHUNK_BYTES", sizes["decoded"])
        patch.setattr(write, "CHUNK_BYTES", sizes["written"])
        check(stored, "arrow", table, data.draw)
