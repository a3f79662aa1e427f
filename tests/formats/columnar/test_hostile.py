"""Broken and hostile files are errors that name the file: no crash, no memory beyond bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.base import ReadOptions
from penstock.formats.columnar.footer import (
    BINARY,
    I32,
    STRUCT,
    FileHead,
    ThriftError,
    parse_footer,
    write_binary,
    write_integer,
    write_list,
    write_row_groups,
    write_struct,
)
from penstock.formats.columnar.format import join_spans
from tests.formats.columnar.fuzzing import some_table
from tests.formats.columnar.test_nodes import write_ipc, write_parquet
from tests.formats.in_place import InPlace, MemoryFile

ROOT = Path(__file__).parents[3]


# --- In a process of its own: a crash of pyarrow would be one of the test --------------------------------------


def fuzz(kind: str, seed: int, cases: int, timeout: int) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.formats.columnar.fuzzing", kind, str(seed), str(cases)],
        cwd=ROOT,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert run.returncode == 0, f"it ended with {run.returncode} at case {run.stderr.splitlines()[-1:]}"
    outcome: dict[str, Any] = json.loads(run.stdout)
    return outcome


def check(outcome: dict[str, Any], cases: int) -> None:
    assert outcome["failures"] == []
    assert outcome["read"] + outcome["refused"] == cases
    assert outcome["read"] > cases // 100, "hardly anything is left to read: the damage is too great to find much"
    assert outcome["refused"] > cases // 10, "hardly anything is refused: the damage is too small to find much"
    assert outcome["memory"] < 256


@pytest.mark.parametrize("kind", ["parquet", "arrow", "raw", "index"])
def test_damage_is_noticed_or_harmless(kind: str) -> None:
    check(fuzz(kind, 0, 250, timeout=120), 250)


@pytest.mark.parametrize("kind", ["parquet footer", "arrow footer"])
def test_any_footer_is_read_or_refused(kind: str) -> None:
    check(fuzz(kind, 0, 300, timeout=120), 300)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["parquet footer", "arrow footer"])
def test_a_hundred_thousand_footers_are_read_or_refused(kind: str) -> None:
    check(fuzz(kind, 1, 100_000, timeout=3000), 100_000)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("kind", ["parquet", "arrow", "raw", "index"])
def test_much_damage_is_noticed_or_harmless(kind: str, seed: int) -> None:
    check(fuzz(kind, seed, 20_000, timeout=1800), 20_000)


# --- Footers --------------------------------------------------------------------------------------------------


def scan(data: bytes, format_name: str = "parquet") -> InPlace:
    return InPlace(format_name, MemoryFile("some/file", data))


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" + bytes(4) + b"PAR1", b"PAR1" + b"\xff" * 4 + b"PAR1", bytes(100), b"PAR1" * 10]
)
def test_no_parquet_file(data: bytes) -> None:
    with pytest.raises(CorruptShardError, match=r"^some/file "):
        scan(data)


@pytest.mark.parametrize("end", [1, 4, 8, 12, 100, 1000])
def test_a_file_that_was_cut(end: int) -> None:
    data = write_parquet(some_table())
    with pytest.raises(CorruptShardError, match=r"^some/file "):
        scan(data[:-end])


def test_an_encrypted_file_is_said_to_be_one() -> None:
    with pytest.raises(CorruptShardError, match="encrypted"):
        scan(bytes(100) + b"PARE")


def element(num_children: int) -> bytes:
    fields = [(1, I32, write_integer(1)), (3, I32, write_integer(0)), (4, BINARY, write_binary(b"x"))]
    return write_struct([*fields, (5, I32, write_integer(num_children))] if num_children else fields)


@pytest.mark.parametrize(
    "children",
    [
        [1] * 100_000 + [0],  # as deep as it is long
        [1, 1, 1],  # it never ends
        [3, 0],
        [1, 0, 0],  # more than the root has
        [-1, 0],
        [2**31 - 1, 0],
        [],
    ],
    ids=["deep", "endless", "short", "long", "negative", "huge", "none"],
)
def test_schemas_that_are_no_trees(children: list[int]) -> None:
    schema = write_list(STRUCT, [element(count) for count in children])
    footer = FileHead(1, schema, (), b"").footer(0, write_row_groups([]))
    with pytest.raises(CorruptShardError, match=r"^some/file .*schema"):
        scan(b"PAR1" + bytes(8) + footer)


def test_nested_thrift_is_bounded() -> None:
    deep = b"\x1c" * 100_000  # a struct in a struct in a struct
    with pytest.raises(ThriftError, match="deep"):
        parse_footer(b"\xac" + deep)


@given(st.binary(max_size=200))
def test_any_bytes_as_a_footer(data: bytes) -> None:
    with pytest.raises(CorruptShardError, match=r"^some/file "):
        scan(b"PAR1" + bytes(8) + data + len(data).to_bytes(4, "little") + b"PAR1")


def test_row_groups_outside_of_the_file() -> None:
    out = BytesIO()
    pq.write_table(some_table(), out)
    data = out.getvalue()
    length = int.from_bytes(data[-8:-4], "little")
    with pytest.raises(CorruptShardError, match="lies outside of the file"):
        scan(b"PAR1" + data[-8 - length :])


def test_two_columns_of_one_name() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(ConfigError, match="some/file: two columns are called 'x'"):
        scan(write_parquet(table))


def test_a_type_that_is_not_read_names_column_and_file() -> None:
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    with pytest.raises(ConfigError, match="some/file: column 'u' has the type dense_union"):
        scan(write_ipc(pa.table({"u": union}), 1, is_file=True, compression=None), "arrow")


# --- Sizes ----------------------------------------------------------------------------------------------------


def test_a_file_that_unpacks_to_much_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": pa.array(np.zeros(1 << 20, np.int64))})
    file = scan(write_parquet(table, compression="zstd"))
    [info] = file.infos
    assert len(file.raw(info)) > 8 << 20
    monkeypatch.setattr("penstock.formats.columnar.format._MOST_UNPACKED_BYTES", 0)
    monkeypatch.setattr("penstock.formats.columnar.format._MOST_TIMES_UNPACKED", 10)
    with pytest.raises(CorruptShardError, match=r"^some/file.* unpacks to more than"):
        file.raw(info)


def test_fewer_rows_than_the_index_says() -> None:
    file = scan(write_parquet(pa.table({"x": [1, 2, 3]})))
    [info] = file.infos
    raw = file.raw(info)
    with pytest.raises(CorruptShardError, match="holds 3 rows, but the index says 4"):
        file.form.open([raw], replace(info, num_samples=4), ReadOptions())
    with pytest.raises(CorruptShardError, match="does not hold the 4 rows"):
        file.raw(replace(info, num_samples=4))


def test_offsets_that_point_outside_are_noticed() -> None:
    table = pa.table({"x": ["a", "bb", "ccc"], "y": [[1], [2, 3], []]})
    data = write_ipc(table, 3, is_file=True, compression=None)
    offsets = np.array([0, 1, 3, 6], "<i4").tobytes()
    at = data.index(offsets)
    with pytest.raises(CorruptShardError, match=r"^some/file.* cannot be decoded"):
        scan(data[:at] + np.array([0, 1, 2**30, 6], "<i4").tobytes() + data[at + 16 :], "arrow").samples()
    file = scan(data, "arrow")
    [info] = file.infos
    raw = file.raw(info)
    at = raw.index(offsets)
    broken = raw[:at] + np.array([0, 1, 2**30, 6], "<i4").tobytes() + raw[at + 16 :]
    reader = file.form.open([broken], info, ReadOptions())
    assert reader.read([0])[0]["x"] == "a"  # rows that are not read are not looked at
    for row in (1, 2):
        with pytest.raises(CorruptShardError, match="has offsets that point outside of it"):
            reader.read([row])


def test_offsets_whose_distances_overflow_are_noticed() -> None:
    file = scan(write_ipc(pa.table({"x": [[[1]], [[2], [3]], [], [[4]]]}), 4, is_file=True, compression=None), "arrow")
    [info] = file.infos
    raw = file.raw(info)
    at = raw.index(np.array([0, 1, 3, 3, 4], "<i4").tobytes())
    broken = raw[:at] + np.array([0, 2**31 - 1, -(2**31) + 3, 3, 4], "<i4").tobytes() + raw[at + 20 :]
    with pytest.raises(CorruptShardError, match=r"^some/file.* has offsets that point outside of it"):
        file.form.open([broken], info, ReadOptions()).read(range(4))


def test_chunks_outside_of_the_file_are_noticed() -> None:
    with pytest.raises(CorruptShardError, match=r"^some/file has an entry in the index that points outside of it"):
        join_spans([(100, 200)], 50, "some/file")


def test_a_column_that_the_file_does_not_have() -> None:
    file = scan(write_parquet(pa.table({"x": [1, 2, 3]})))
    [info] = file.infos
    settings = {**info.layout.settings, "types": [["y", kind] for _, kind in info.layout.settings["types"]]}
    with pytest.raises(CorruptShardError, match=r"^some/file.* has no column 'y'"):
        file.raw(replace(info, layout=replace(info.layout, settings=settings)))
