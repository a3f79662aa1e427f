"""The quick encoder and the careful one give the same bytes and the same errors."""

from __future__ import annotations

import struct
import warnings
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock.blocks.block import Block
from penstock.errors import BadSampleError, ColumnValueError, PenstockError
from penstock.formats.base import get_format
from penstock.formats.body import ChunkPool
from penstock.formats.mds import MDSBuilder, MDSFormat, careful_encoder, compile_encoder, encode_columns
from tests.formats.making import make_layout, open_parts

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ["a", "b", "c", "d", "e"]
ENCODINGS = [
    "int",
    "uint8",
    "int16",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "str",
    "bytes",
    "str_int",
    "str_float",
    "str_decimal",
    "json",
    "pkl",
    "ndarray",
    "ndarray:int32",
    "ndarray:int32:2",
    "pil",
    "list[pil]",
    "jpeg_array",
]
bits = st.binary(min_size=8, max_size=8)
values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-130, 260),
    st.floats(),
    st.floats(width=16),
    st.sampled_from(["float16", "float32", "float64", "int8", "uint64", "bool"]).flatmap(
        lambda name: bits.map(lambda data: np.frombuffer(data, name)[0])
    ),
    st.text(max_size=5),
    st.sampled_from(["\ud800", "12", "0.5"]),
    st.binary(max_size=9),
    st.binary(max_size=9).map(np.bytes_),
    st.binary(max_size=9).map(bytearray),
    st.decimals(),
    st.lists(st.integers(), max_size=2),
    st.lists(st.binary(max_size=3), max_size=2),
    st.sampled_from(
        [
            np.arange(2, dtype=np.int32),
            np.arange(2, dtype=">i4"),
            np.arange(3, dtype=np.int32),
            np.array(3.5),
            np.zeros(2, bool),
            Decimal("1.50"),
            {"k": [1, None]},
            Image.new("L", (2, 1)),
            [Image.new("L", (1, 1))],
            object,
        ]
    ),
)


def outcome(encode: Callable[[Any], bytes], sample: Any) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of numbers that overflow to infinity, once per try
        try:
            return ("stored", encode(sample))
        except PenstockError as error:
            return (type(error), str(error), error.facts)


@st.composite
def columns_and_sample(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    columns = {name: draw(st.sampled_from(ENCODINGS)) for name in names}
    sample = {name: draw(values) for name in names}
    if draw(st.integers(0, 9)) == 0:
        del sample[names[0]]
    return columns, sample


@settings(max_examples=300)
@given(columns_and_sample())
@example(({"a": "float16"}, {"a": np.array([0x7E01], "u2").view("f2")[0]}))
@example(({"a": "float32"}, {"a": np.array([0x7F800001], "u4").view("f4")[0]}))
@example(({"a": "float16"}, {"a": struct.unpack("<d", struct.pack("<Q", 0x7FF8040000000000))[0]}))
@example(({"a": "pkl"}, {"a": np.bytes_(b"N.")}))
@example(({"a": "jpeg_array"}, {"a": np.bytes_(b"")}))
@example(({"a": "int", "b": "uint8"}, {"a": True, "b": True}))
@example(({"a": "float32"}, {"a": 1e39}))
@example(({"a": "float16"}, {"a": 65519.999}))
def test_quick_and_careful_agree(case: tuple[dict[str, str], dict[str, Any]]) -> None:
    encodings, sample = case
    columns = MDSFormat().columns(encodings)
    assert outcome(compile_encoder(columns), sample) == outcome(careful_encoder(columns), sample)


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["int", "uint8", "float64", "int16", "str", "bytes"]), min_size=1, max_size=8))
def test_records_are_sizes_then_values(kinds: list[str]) -> None:
    """Against a plain reading of the format, for any order of fixed and variable columns."""
    examples = {
        "int": (-2, struct.pack("<q", -2)),
        "uint8": (200, b"\xc8"),
        "float64": (0.1, struct.pack("<d", 0.1)),
        "int16": (np.int16(-3), struct.pack("<h", -3)),
        "str": ("é🙂", "é🙂".encode()),
        "bytes": (b"\0\1\2", b"\0\1\2"),
    }
    encodings = {f"c{number}": kind for number, kind in enumerate(kinds)}
    sizes = [len(examples[kind][1]) for kind in kinds if kind in ("str", "bytes")]
    expected = struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(examples[kind][1] for kind in kinds)
    columns = MDSFormat().columns(encodings)
    sample = {name: examples[kind][0] for name, kind in encodings.items()}
    assert compile_encoder(columns)(sample) == expected


def test_columns_are_stored_by_name_not_by_declaration() -> None:
    columns = MDSFormat().columns({"b": "uint8", "é": "uint8", "B": "uint8", "a10": "uint8", "a2": "uint8"})
    assert [column.name for column in columns] == ["B", "a10", "a2", "b", "é"]
    sample = {"a2": 3, "é": 5, "B": 1, "b": 4, "a10": 2}
    assert compile_encoder(columns)(sample) == bytes([1, 2, 3, 4, 5])


@pytest.mark.parametrize("name", ["'", "\\", "\n", "v0", "join", "careful", "sample", "{x}", "a b", "\0", ""])
def test_any_name_will_do_for_a_column(name: str) -> None:
    columns = MDSFormat().columns({name: "uint8", "other": "str"})
    assert compile_encoder(columns)({name: 7, "other": "x"}) in (b"\1\0\0\0\7x", b"\1\0\0\0x\7")


@pytest.mark.parametrize("sample", [None, 3, [], "a", [("a", 1)]])
def test_a_sample_is_a_dict(sample: Any) -> None:
    encode = compile_encoder(MDSFormat().columns({"a": "int"}))
    with pytest.raises(BadSampleError, match="^a sample must be a dict, got"):
        encode(sample)


@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:int32"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 300)])
def test_arrays_without_elements_where_they_are_wanted(encoding: str, shape: tuple[int, ...]) -> None:
    layout, value = make_layout({"x": encoding}), np.zeros(shape, np.int32)
    builder = MDSBuilder(layout, ChunkPool(1 << 16), takes_empty=True)
    for _ in range(3):
        builder.append(builder.encode({"x": value}))
    reader = open_parts(layout, [b"".join(part) for part in builder.build()], 3)
    assert reader.read([1])[0]["x"].shape == shape
    assert np.shape(reader.read_columns(range(3))["x"]) == (3, *shape)
    with pytest.raises(ColumnValueError, match="at least one axis and one element"):
        compile_encoder(layout.columns)({"x": value})


COLUMNS: dict[str, Any] = {
    "n": (["int", "int64"], np.array([1, -2, 2**40])),
    "x": (["float64"], np.array([0.5, -1.0, float("inf")])),
    "text": (["str", "bytes"], ["a", "", "\u00fc\u20ac"]),
    "raw": (["bytes", "str"], [b"", b"\x00\x00", b"12"]),
    "row": (["ndarray:int64:2"], np.arange(6).reshape(3, 2)),
}


@pytest.mark.parametrize("names", [["n"], ["text"], ["x", "text"], ["n", "raw", "row", "text", "x"], ["row", "n"]])
def test_columns_are_encoded_as_their_rows_are(names: list[str]) -> None:
    columns = get_format("mds").columns({name: COLUMNS[name][0][0] for name in names})
    block = Block(None, {name: COLUMNS[name][1] for name in names}, 3)
    encoded = encode_columns(columns, block)
    assert encoded is not None
    records = [compile_encoder(columns)(sample) for sample in block.samples()]
    assert encoded[0] == b"".join(records)
    assert encoded[1].tolist() == [len(record) for record in records]


@pytest.mark.parametrize(
    ("encoding", "values"),
    [
        ("str", ["a", None, "b"]),
        ("str", ["a", "\ud800", "b"]),
        ("int", ["1", "2", "3"]),
        ("int", np.array([0.5, 1, 2])),
        ("int32", np.arange(3)),
        ("json", ["a", "b", "c"]),
        ("ndarray:int64:2", np.zeros((3, 3), np.int64)),
    ],
)
def test_columns_that_need_a_look_at_each_row_are_left_to_that(encoding: str, values: Any) -> None:
    block = Block(None, {"a": values}, 3)
    assert encode_columns(get_format("mds").columns({"a": encoding}), block) is None
    assert encode_columns(get_format("mds").columns({"b": encoding}), block) is None
