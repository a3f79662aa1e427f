"""Text shards: any sample comes back or is refused, and files look as other readers expect."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadSampleError, ColumnTypeError, ColumnValueError, UnknownEncodingError
from penstock.formats.base import get_format
from penstock.testing.reading import is_same
from tests.formats.making import attempt, build, make_layout, open_parts

if TYPE_CHECKING:
    from penstock.index.model import ShardLayout

COLUMNS = {"f": "float", "i": "int", "s": "str"}
samples = st.lists(
    st.fixed_dictionaries({"s": st.text(max_size=8), "i": st.integers(), "f": st.floats(allow_nan=False)}), max_size=4
)


def layout_of(kind: str, newline: str = "\n") -> ShardLayout:
    settings = {"separator": "<>"} if kind == "xsv" else {}
    return make_layout(COLUMNS, kind, newline=newline, **settings)


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "xsv"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@settings(max_examples=50)
@given(samples=samples)
def test_samples_come_back_or_are_refused(kind: str, newline: str, samples: list[dict[str, Any]]) -> None:
    layout = layout_of(kind, newline)
    kept = []
    for sample in samples:
        parts, error = attempt(ColumnValueError, lambda sample=sample: build(layout, [sample]))  # type: ignore[misc]
        if parts is None:
            assert str(error).startswith("column 's' ")
            assert kind != "json"
        else:
            kept.append(sample)
    reader = open_parts(layout, build(layout, kept), len(kept))
    assert is_same([dict(sorted(sample.items())) for sample in reader.read(range(len(kept)))], in_order(kept))
    columns = reader.read_columns(range(len(kept)))
    assert [list(column) for column in columns.values()] == [[sample[name] for sample in kept] for name in COLUMNS]


def in_order(kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(sorted(sample.items())) for sample in kept]


def test_json_is_one_sorted_object_a_line() -> None:
    data, meta = build(layout_of("json"), [{"s": "é\n", "i": -1, "f": 0.5, "extra": 1}, {"s": "", "i": 2, "f": 1e20}])
    lines = ['{"f": 0.5, "i": -1, "s": "\\u00e9\\n"}\n', '{"f": 1e+20, "i": 2, "s": ""}\n']
    assert data == "".join(lines).encode()
    assert struct.unpack_from("<IIII", meta) == (2, 0, len(lines[0]), len(data))
    assert json.loads(meta[16:])["columns"] == COLUMNS


def test_separated_values_follow_a_header_line() -> None:
    data, meta = build(layout_of("xsv", "\r\n"), [{"s": "é", "i": -1, "f": 0.5}, {"s": "", "i": 2, "f": 1e20}])
    assert data.decode() == "f<>i<>s\r\n0.5<>-1<>é\r\n1e+20<>2<>\r\n"
    assert struct.unpack_from("<IIII", meta) == (2, 9, 9 + 13, len(data))
    assert json.loads(meta[16:])["separator"] == "<>"
    for kind in ("csv", "tsv"):
        assert "separator" not in json.loads(build(layout_of(kind), [])[1][8:])


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "xsv"])
def test_numbers_beyond_64_bits_stay_numbers(kind: str) -> None:
    layout = layout_of(kind)
    many = [{"s": "", "i": number, "f": 0.5} for number in (2**63, -(2**63) - 1, 3)]
    reader = open_parts(layout, build(layout, many), 3)
    assert [sample["i"] for sample in reader.read(range(3))] == [2**63, -(2**63) - 1, 3]
    assert reader.read_columns(range(3))["i"] == [2**63, -(2**63) - 1, 3]
    few = reader.read_columns([2])
    assert isinstance(few["i"], np.ndarray)
    assert isinstance(few["f"], np.ndarray)
    assert isinstance(few["s"], list)
    assert (few["i"].dtype.name, few["f"].dtype.name) == ("int64", "float64")


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "xsv"])
@pytest.mark.parametrize("encoding", ["bytes", "int64", "", "json", "str:x"])
def test_unknown_encodings_list_the_known_ones(kind: str, encoding: str) -> None:
    with pytest.raises(UnknownEncodingError) as caught:
        get_format(kind).columns({"a": "str", "x": encoding})
    assert str(caught.value) == f"unknown column encoding {encoding!r}: text formats have str, int, float"
    assert isinstance(caught.value, AssertionError)


@pytest.mark.parametrize("value", [None, b"x", [1], np.zeros(2), np.bool_(True), np.timedelta64(1, "s")])
def test_what_text_cannot_hold_is_not_guessed(value: Any) -> None:
    with pytest.raises(ColumnTypeError, match=r"^column 'x' holds a value of type \w+: text formats"):
        get_format("csv").infer({"a": 1, "x": value})


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize(("column", "value"), [("s", 1), ("s", b"x"), ("i", 1.0), ("i", "1"), ("f", 1), ("f", None)])
def test_values_of_the_wrong_type(kind: str, column: str, value: Any) -> None:
    sample = {"s": "x", "i": 1, "f": 0.5, column: value}
    with pytest.raises(ColumnTypeError, match=rf"^column '{column}' expects \w+, got {type(value).__name__}") as caught:
        build(layout_of(kind), [sample])
    assert isinstance(caught.value, AttributeError)
    assert isinstance(caught.value, BadSampleError)
