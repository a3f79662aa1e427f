"""Writes files with DuckDB and Polars, in a process of its own: neither must be loaded where others are forked.

python -m tests.formats.columnar.other_writers FOLDER
"""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

_QUERY = """
    SELECT i AS id, 'text ' || i AS text, i % 2 = 0 AS flag, i / 3 AS ratio, CAST(i AS DECIMAL(18, 3)) AS price,
        CAST(i AS HUGEINT) AS huge, DATE '2024-01-31' + CAST(i AS INTEGER) AS day, TIME '12:34:56.789' AS hour,
        TIMESTAMP '2024-01-01 00:00:00' + INTERVAL (i) SECOND AS at, TIMESTAMPTZ '2024-01-01 00:00:00+02' AS zoned,
        TIMESTAMP_NS '2024-01-01 00:00:00.123456789' AS exact, [i, i + 1] AS pair, [[i], []] AS nested,
        {'a': i, 'b': ['x', NULL]} AS struct, MAP {'k': i} AS map, CASE WHEN i % 3 = 0 THEN NULL ELSE i END AS hole,
        CAST('kind ' || (i % 3) AS ENUM ('kind 0', 'kind 1', 'kind 2')) AS kind, CAST('ab' AS BLOB) AS blob,
        uuid() AS uuid
    FROM range(1000) t(i)
"""
_DUCKDB: dict[str, str] = {
    "plain": "",
    "v2": ", PARQUET_VERSION V2",
    "zstd": ", COMPRESSION zstd, ROW_GROUP_SIZE 300",
    "gzip": ", COMPRESSION gzip",
    "none": ", COMPRESSION uncompressed",
}


def write_with_duckdb(folder: Path) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for name, options in _DUCKDB.items():
            path = folder / f"duckdb-{name}.parquet"
            connection.execute(f"COPY ({_QUERY}) TO '{path}' (FORMAT parquet{options})")


def write_with_polars(folder: Path) -> None:
    import polars as pl

    frame = _frame(pl)
    choices: dict[str, dict[str, Any]] = {
        "plain": {},
        "small": {"row_group_size": 100, "data_page_size": 256},
        "snappy": {"compression": "snappy", "statistics": False},
        "none": {"compression": "uncompressed"},
    }
    for name, settings in choices.items():
        frame.write_parquet(folder / f"polars-{name}.parquet", **settings)
    frame.write_ipc(folder / "polars-file.arrow")
    frame.write_ipc(folder / "polars-zstd.arrow", compression="zstd")
    frame.write_ipc_stream(folder / "polars-stream.arrow")


def _frame(pl: Any) -> Any:
    numbers = range(1000)
    return pl.DataFrame(
        {
            "id": numbers,
            "text": [None if i % 5 == 0 else f"text {i} " * (i % 7) for i in numbers],
            "flag": [i % 2 == 0 for i in numbers],
            "small": pl.Series([i % 100 for i in numbers], dtype=pl.Int8),
            "ratio": [None if i % 4 == 0 else i / 3 for i in numbers],
            "price": [Decimal(i).scaleb(-2) for i in numbers],
            "day": [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in numbers],
            "at": [dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=i) for i in numbers],
            "hour": [dt.time(1, 2, i % 60) for i in numbers],
            "long": [dt.timedelta(seconds=i) for i in numbers],
            "list": [list(range(i % 4)) for i in numbers],
            "texts": [["x", None, "yy"][: i % 4] for i in numbers],
            "array": pl.Series([[i, i + 1, i + 2] for i in numbers], dtype=pl.Array(pl.Int32, 3)),
            "struct": [{"a": i, "b": {"c": str(i)}} for i in numbers],
            "kind": pl.Series([f"kind {i % 3}" for i in numbers], dtype=pl.Categorical),
            "blob": [bytes([i % 256]) * (i % 20) for i in numbers],
            "none": [None] * 1000,
        }
    )


if __name__ == "__main__":
    write_with_duckdb(Path(sys.argv[1]))
    write_with_polars(Path(sys.argv[1]))
