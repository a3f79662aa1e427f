"""Rows parsed a block at a time are what they are one by one; rows of CSV are found alike by parity and by reading."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import CsvShardedSource, JsonShardedSource, TextShardedSource
from penstock.errors import CorruptShardError
from penstock.formats.lines.csv import CSVRowFinder, IrregularRowFinder, split_columns
from penstock.formats.lines.cut import BadRow, RowBlock
from penstock.formats.lines.text import TextParser

if TYPE_CHECKING:
    from pathlib import Path

CSV_TEXT = st.text(alphabet='a,"\r\n ß', max_size=40)


def found(finder: Any, data: bytes, cuts: list[int]) -> list[int]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    begins: list[int] = []
    for low, high in pairwise(places):
        begins += finder.find(np.frombuffer(data[low:high], np.uint8)).begins.tolist()
    return begins


@given(rows=st.lists(CSV_TEXT, max_size=6), cuts=st.lists(st.integers(0, 200), max_size=4))
@example(rows=["a", 'b "c" d', '"e\nf",g'], cuts=[3, 9])
@example(rows=['"a\nb"', 'x"y', "z"], cuts=[2, 4, 7])
def test_rows_of_csv_are_found_by_parity_as_by_reading(rows: list[str], cuts: list[int]) -> None:
    data = "\n".join(rows).encode()
    assert found(CSVRowFinder(","), data, cuts) == found(IrregularRowFinder(","), data, [])


@given(
    rows=st.lists(st.lists(st.text(alphabet='a,"\nß', max_size=4), min_size=2, max_size=2), min_size=1, max_size=5),
    ending=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_columns_are_those_that_were_written(rows: list[list[str]], ending: str, quoting: Any) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator=ending, quoting=quoting).writerows(rows)
    columns = split_columns(out.getvalue().encode(), len(rows), 2, ",")
    assert columns == [list(column) for column in zip(*rows, strict=True)]


def test_rows_with_too_many_fields_beside_one_with_too_few_are_no_columns() -> None:
    assert split_columns(b"a,b,c\nd\n", 2, 2, ",") is None
    assert split_columns(b"a,b\n\nc,d\n", 2, 2, ",") == [["a", "c"], ["b", "d"]]
    assert split_columns(b"a,b\rc,d\n", 1, 2, ",") is None


def block(data: bytes, num_rows: int) -> RowBlock:
    """Rows of text, of which only their number matters."""
    return RowBlock(data, np.zeros(num_rows + 1, np.int64), np.zeros(num_rows, np.int64), 0)


@given(lines=st.lists(st.text(alphabet="a\rß\x0b\u2028", max_size=4), max_size=6), ends=st.booleans())
def test_lines_of_text(lines: list[str], ends: bool) -> None:
    data = ("\n".join(lines) + "\n" * ends).encode()
    rows = data.splitlines(keepends=True) if b"\r" not in data else None
    parsed = TextParser().parse_block(block(data, data.count(b"\n") + (not data.endswith(b"\n"))))
    assert parsed is not None
    assert [line.removesuffix("\r") for line in "\n".join(lines).split("\n")][: len(parsed)] == parsed
    if rows:
        assert TextParser().parse(rows) == parsed
    assert TextParser().parse_block(block(b"\xff\n", 1)) is None
    with pytest.raises(BadRow):
        TextParser().parse([b"\xff\n"])


def test_as_many_objects_as_lines_are_not_one_in_each(tmp_path: Path) -> None:
    # Two objects in one line, and one over two: a parser that takes newlines for white space finds three.
    (tmp_path / "0.jsonl").write_text('{"a": 1} {"b": 2}\n{"c":\n3}\n')
    with pytest.raises(CorruptShardError, match="line 1"):
        list(JsonShardedSource(tmp_path))
    (tmp_path / "0.jsonl").write_text('{"a": {}\n{"b": 2}}\n')
    with pytest.raises(CorruptShardError, match="line 1"):
        list(JsonShardedSource(tmp_path))


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", " \n"])
def test_objects_whatever_ends_their_lines(ending: str, tmp_path: Path) -> None:
    rows = [{"x": n, "y": {"z": "}\n{"}} for n in range(20)]
    (tmp_path / "0.jsonl").write_bytes(ending.join(map(json.dumps, rows)).encode())
    assert list(JsonShardedSource(tmp_path)) == rows


def test_a_fault_in_a_block_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n" + "1,2\n" * 50 + "1,2,3\n" + "1\n")
    rows = iter(CsvShardedSource(tmp_path))
    assert len(rows.take(1000)) == 50
    with pytest.raises(CorruptShardError, match="line 52: the row has 3 fields"):
        rows.take(1)
    assert len(list(CsvShardedSource(tmp_path, on_error="skip"))) == 50
    (tmp_path / "0.txt").write_bytes(b"a\n\xff\nb\n")
    assert [row["text"] for row in TextShardedSource(tmp_path / "0.txt", on_error="skip")] == ["a", "b"]
