"""Damaged datasets are read or refused: nothing else comes out, nothing hangs, memory stays bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadIndexError, CorruptShardError
from penstock.index.catalog import parse_index
from tests.formats.fuzzing import MORE_MB
from tests.formats.making import attempt, make_layout, mds_shard, open_parts

ROOT = Path(__file__).parents[2]


def fuzz(kind: str, seed: int, cases: int, folder: Path, timeout: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.formats.fuzzing", kind, str(seed), str(cases), str(folder / "fuzz")]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=timeout)
    outcome: dict[str, Any] = json.loads(run.stdout)
    return outcome


def check(outcome: dict[str, Any], cases: int) -> None:
    assert outcome["failures"] == []
    assert outcome["read"] + outcome["refused"] == cases
    assert outcome["read"] > cases // 100, "hardly anything is left to read: the damage is too great to find much"
    assert outcome["refused"] > cases // 10, "hardly anything is refused: the damage is too small to find much"
    assert outcome["memory"] < MORE_MB // 2


@pytest.mark.parametrize(
    ("kind", "cases"),
    [("shards", 8000), ("index", 5000), ("files", 400), ("lines", 1000), ("tars", 500), ("packed", 500)],
)
def test_damage_is_noticed_or_harmless(kind: str, cases: int, tmp_path: Path) -> None:
    check(fuzz(kind, 0, cases, tmp_path, timeout=120), cases)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(
    ("kind", "cases"),
    [
        ("shards", 60_000),
        ("index", 100_000),
        ("files", 10_000),
        ("lines", 60_000),
        ("tars", 40_000),
        ("packed", 40_000),
    ],
)
def test_much_damage_is_noticed_or_harmless(kind: str, cases: int, seed: int, tmp_path: Path) -> None:
    check(fuzz(kind, seed, cases, tmp_path, timeout=1800), cases)


# --- Bytes that never were a dataset ------------------------------------------------------------------------

ENCODINGS = ["str", "bytes", "json", "str_int", "str_float", "str_decimal", "ndarray", "ndarray:int32", "pil", "png"]
ENCODINGS += ["jpeg", "list[pil]", "list[png]", "list[jpeg]", "jpeg_array"]


@settings(max_examples=200)
@given(encoding=st.sampled_from(ENCODINGS), values=st.lists(st.binary(max_size=40), min_size=1, max_size=3))
def test_any_stored_value_is_read_or_refused(encoding: str, values: list[bytes]) -> None:
    layout = make_layout({"x": encoding})
    shard = mds_shard([len(value).to_bytes(4, "little") + value for value in values])
    reader = open_parts(layout, [shard], len(values))
    rows = range(len(values))
    samples, error = attempt(CorruptShardError, lambda: reader.read(rows))
    columns, same_error = attempt(CorruptShardError, lambda: reader.read_columns(rows))
    if samples is None or columns is None:
        assert str(error).startswith("shard.00000.mds, row")
        assert str(same_error).startswith("shard.00000.mds, row")
    else:
        assert len(samples) == len(columns["x"]) == len(values)


@settings(max_examples=300)
@given(st.binary(max_size=100) | st.text(max_size=100).map(lambda text: text.encode(errors="replace")))
def test_any_bytes_as_an_index(data: bytes) -> None:
    with pytest.raises(BadIndexError, match="^Index file at here"):
        parse_index(data, "here")


@settings(max_examples=200)
@given(
    kind=st.sampled_from(["json", "csv", "tsv", "xsv"]),
    data=st.binary(max_size=60),
    offsets=st.lists(st.integers(0, 70), min_size=1, max_size=5),
)
def test_any_bytes_as_lines(kind: str, data: bytes, offsets: list[int]) -> None:
    settings = {"separator": "|"} if kind == "xsv" else {}
    layout = make_layout({"a": "int", "b": "str", "c": "float"}, kind, **settings)
    table = [len(offsets) - 1, *sorted(offsets)[:-1], len(data)]
    meta = b"".join(word.to_bytes(4, "little") for word in table)
    rows = range(len(offsets) - 1)
    reader, error = attempt(CorruptShardError, lambda: open_parts(layout, [data, meta], len(rows)))
    if reader is not None:
        samples, error = attempt(CorruptShardError, lambda: reader.read(rows))
        columns, same_error = attempt(CorruptShardError, lambda: reader.read_columns(rows))
        assert (samples is None) == (columns is None)
        assert str(same_error) == str(error)
    assert error is None or str(error).startswith(f"shard.00000.{kind}")
