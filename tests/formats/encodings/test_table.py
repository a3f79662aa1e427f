"""Every MDS encoding gives back what it took, for any value."""

from __future__ import annotations

import json
import math
import pickle
import struct
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from penstock.errors import (
    ColumnRangeError,
    ColumnSizeError,
    ColumnTypeError,
    ColumnValueError,
    CorruptShardError,
    EncodingConfigError,
    UnknownEncodingError,
)
from penstock.formats.encodings.table import encodings, get_encoding
from penstock.testing.reading import is_same
from tests.formats.making import build, make_layout, open_parts, read_stored, round_trip, store_and_read

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from hypothesis.strategies import SearchStrategy

NUMBERS = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)] + ["float16", "float32", "float64"]
MODES = [
    "1",
    "L",
    "P",
    "RGB",
    "RGBA",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "LA",
    "La",
    "PA",
    "RGBX",
    "RGBa",
    "I;16",
]
text = st.text(st.characters(exclude_categories=["Cs"]))  # all but lone surrogates
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def scalars(name: str) -> SearchStrategy[Any]:
    """NumPy scalars by their bits, so that every NaN and both zeros occur."""
    dtype = np.dtype(name)
    return st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize).map(lambda bits: np.frombuffer(bits, dtype)[0])


@st.composite
def arrays(draw: st.DrawFn, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
    """Arrays of storable dtypes in any memory layout."""
    name = dtype or draw(st.sampled_from(NUMBERS))
    order = draw(st.sampled_from("<>"))
    dims = shape or draw(hnp.array_shapes(min_dims=1, max_dims=5, max_side=4))
    num_bytes = math.prod(dims) * np.dtype(name).itemsize
    kind = np.dtype(order + np.dtype(name).str[1:])
    array = np.frombuffer(draw(st.binary(min_size=num_bytes, max_size=num_bytes)), kind).reshape(dims)
    layout = draw(st.sampled_from(["C", "F", "sparse", "flipped"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "sparse":
        wide = np.zeros((*dims[:-1], 2 * dims[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    return np.flip(np.flip(array).copy()) if layout == "flipped" else array


def check_array(found: Any, stored: npt.NDArray[Any]) -> None:
    assert type(found) is np.ndarray
    assert (found.dtype.name, found.shape) == (stored.dtype.name, stored.shape)
    assert found.dtype.isnative
    assert found.tobytes() == stored.astype(stored.dtype.newbyteorder("=")).tobytes()
    assert found.flags.writeable
    assert found.flags.aligned


# --- Numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=60)
@given(data=st.data())
def test_numpy_scalars_keep_every_bit(name: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(scalars(name), min_size=1, max_size=4))
    found = round_trip({"x": name}, [{"x": value} for value in values])
    assert [sample["x"].tobytes() for sample in found] == [value.tobytes() for value in values]
    assert all(type(sample["x"]) is type(values[0]) for sample in found)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -0.0, 1, 0.1, 2**-30, np.int8(-3)])
def test_floats_are_rounded_as_numpy_rounds(name: str, value: Any) -> None:
    expected = np.dtype(name).type(value)
    assert store_and_read(name, value).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", NUMBERS[:8])
def test_integers_are_what_they_were_or_refused(name: str) -> None:
    info = np.iinfo(name)
    for value in (info.min, info.max, 0, np.int64(7), np.uint8(7), 7.0):
        assert is_same(store_and_read(name, value), np.dtype(name).type(value))
    for value in (int(info.min) - 1, int(info.max) + 1):
        with pytest.raises(ColumnRangeError, match=f"^column 'x' cannot hold {value}: {name} ") as caught:
            store_and_read(name, value)
        assert isinstance(caught.value, OverflowError)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
@example([-(2**63), 2**63 - 1])
def test_int(values: list[int]) -> None:
    found = [sample["x"] for sample in round_trip({"x": "int"}, [{"x": value} for value in values])]
    assert found == values
    assert all(type(value) is int for value in found)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_int_beyond_64_bits_is_refused(value: int) -> None:
    with pytest.raises(ColumnRangeError, match=r"^column 'x' cannot hold -?\d+ in 64 bits: use the encoding 'str_int'"):
        store_and_read("int", value)


# --- Text and what is stored as text ------------------------------------------------------------------------


@given(st.lists(text, max_size=5))
def test_str(values: list[str]) -> None:
    assert [sample["x"] for sample in round_trip({"x": "str"}, [{"x": value} for value in values])] == values


def test_str_refuses_lone_surrogates() -> None:
    with pytest.raises(ColumnValueError, match="^column 'x' cannot be stored: 'utf-8' codec can't encode") as caught:
        store_and_read("str", "\ud800")
    assert isinstance(caught.value, (ValueError, AssertionError))


@given(st.lists(st.binary(), max_size=5))
def test_bytes(values: list[bytes]) -> None:
    assert [sample["x"] for sample in round_trip({"x": "bytes"}, [{"x": value} for value in values])] == values


@given(st.integers(-(10**4000), 10**4000))
def test_str_int(value: int) -> None:
    assert is_same(store_and_read("str_int", value), int(value))


@given(st.floats())
def test_str_float(value: float) -> None:
    assert is_same(store_and_read("str_float", value), value)
    assert is_same(store_and_read("str_float", np.float64(value)), value)


@given(st.decimals())
@example(Decimal("-0.00"))
@example(Decimal("sNaN"))
@example(Decimal("1E+999999"))
def test_str_decimal(value: Decimal) -> None:
    found = store_and_read("str_decimal", value)
    assert type(found) is Decimal
    assert str(found) == str(value)


@settings(max_examples=50)
@given(json_values)
@example([math.nan, math.inf, -math.inf, -0.0])
@example({"\ud800": "\ud800", "": 2**80})
def test_json(value: Any) -> None:
    assert is_same(store_and_read("json", value), value)


def test_json_turns_arrays_into_lists() -> None:
    assert store_and_read("json", np.arange(6).reshape(2, 3)) == [[0, 1, 2], [3, 4, 5]]


@settings(max_examples=30)
@given(json_values | st.tuples(st.binary(), st.frozensets(st.integers())))
def test_pkl(value: Any) -> None:
    assert is_same(store_and_read("pkl", value, allow_unsafe_types=True), value)


CHECKED = {"jpeg", "jpeg_array", "jpegarray", "list[jpeg]", "list[pil]", "list[png]"}


@pytest.mark.parametrize(
    "encoding", [name for name in encodings.names() if get_encoding(name).num_bytes is None and name not in CHECKED]
)
@given(stored=st.binary())
@settings(max_examples=10)
def test_bytes_pass_through_every_variable_encoding(encoding: str, stored: bytes) -> None:
    assert build(make_layout({"x": encoding}), [{"x": stored}])[0].endswith(stored)
    (sample,) = open_parts(make_layout({"x": "bytes"}), build(make_layout({"x": encoding}), [{"x": stored}]), 1).read(
        [0]
    )
    assert sample["x"] == stored


@pytest.mark.parametrize("encoding", ["int", "uint8", "float64", "ndarray:int16:2,2"])
def test_bytes_of_the_right_size_pass_through_fixed_encodings(encoding: str) -> None:
    size = get_encoding(encoding).num_bytes
    assert size is not None
    stored = bytes(range(1, size + 1))
    (sample,) = open_parts(
        make_layout({"x": f"ndarray:uint8:{size}"}), build(make_layout({"x": encoding}), [{"x": stored}]), 1
    ).read([0])
    assert sample["x"].tobytes() == stored
    for wrong in (b"", stored[1:], stored + b"\0"):
        with pytest.raises(ColumnSizeError, match=f"^column 'x' takes {size} bytes, got {len(wrong)}") as caught:
            store_and_read(encoding, wrong)
        assert isinstance(caught.value, KeyError)


# --- Arrays -------------------------------------------------------------------------------------------------


@given(st.lists(arrays(), min_size=1, max_size=4))
def test_arrays_of_any_kind(values: list[npt.NDArray[Any]]) -> None:
    layout = make_layout({"x": "ndarray"})
    reader = open_parts(layout, build(layout, [{"x": value} for value in values]), len(values))
    for found, stored in zip(reader.read(range(len(values))), values, strict=True):
        check_array(found["x"], stored)
    column = reader.read_columns(range(len(values)))["x"]
    is_uniform = len({(value.dtype.name, value.shape) for value in values}) == 1
    assert isinstance(column, np.ndarray) == is_uniform
    for item, stored in zip(column, values, strict=True):
        check_array(item, stored)


@pytest.mark.parametrize("dtype", NUMBERS)
@settings(max_examples=20)
@given(data=st.data())
def test_arrays_of_one_dtype(dtype: str, data: st.DataObject) -> None:
    value = data.draw(arrays(dtype))
    check_array(store_and_read(f"ndarray:{dtype}", value), value)
    encoding = f"ndarray:{dtype}:{','.join(map(str, value.shape))}"
    check_array(store_and_read(encoding, value), value)


@settings(max_examples=20)
@given(st.lists(arrays("int16", (2, 3)), min_size=1, max_size=5))
def test_arrays_of_one_shape_stack(values: list[npt.NDArray[Any]]) -> None:
    layout = make_layout({"x": "ndarray:int16:2,3"})
    reader = open_parts(layout, build(layout, [{"x": value} for value in values]), len(values))
    column = reader.read_columns(range(len(values)))["x"]
    assert isinstance(column, np.ndarray)
    check_array(column, np.stack(values).astype("<i2"))


@pytest.mark.parametrize("side", [1, 255, 256, 65535, 65536])
@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:uint8"])
def test_arrays_of_any_length(encoding: str, side: int) -> None:
    value = (np.arange(side) % 251).astype(np.uint8)
    check_array(store_and_read(encoding, value), value)


@pytest.mark.parametrize("axes", [1, 31, 63])
def test_arrays_of_many_axes(axes: int) -> None:
    value = np.ones((1,) * axes, np.int8)
    for encoding in ("ndarray", "ndarray:int8", "ndarray:int8:" + ",".join("1" * axes)):
        check_array(store_and_read(encoding, value), value)


def test_arrays_of_too_many_axes_are_refused() -> None:
    value = np.ones((1,) * 64, np.int8)
    with pytest.raises(ColumnValueError, match="^column 'x' expects an array with at most 63 axes, got 64"):
        store_and_read("ndarray", value)
    with pytest.raises(EncodingConfigError, match="^ndarray:int8:1,1"):
        make_layout({"x": "ndarray:int8:" + ",".join("1" * 64)})


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("ndarray", np.zeros(())),
        ("ndarray", np.zeros((2, 0))),
        ("ndarray", np.zeros(2, bool)),
        ("ndarray", np.zeros(2, complex)),
        ("ndarray", np.zeros(2, "U3")),
        ("ndarray", np.zeros(2, object)),
        ("ndarray", np.zeros(2, "M8[s]")),
        ("ndarray:int8", np.zeros(2, np.uint8)),
        ("ndarray:int8", np.zeros((0,), np.int8)),
        ("ndarray:int8", np.zeros((), np.int8)),
        ("ndarray:int8:2", np.zeros(2, np.int16)),
        ("ndarray:int8:2", np.zeros((2, 1), np.int8)),
        ("ndarray:int8:2", np.zeros((1,), np.int8)),
    ],
)
def test_arrays_that_do_not_fit(encoding: str, value: Any) -> None:
    with pytest.raises(ColumnValueError, match=r"^column 'x' expects an array (of|with) ") as caught:
        store_and_read(encoding, value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:int64", "ndarray:int64:2"])
@pytest.mark.parametrize("value", [np.int64(1), None, "12", {1: 2}])
def test_arrays_are_not_made_of_other_things(encoding: str, value: Any) -> None:
    with pytest.raises(ColumnTypeError, match="^column 'x' expects a NumPy array, got .*: pass np.asarray") as caught:
        store_and_read(encoding, value)
    assert isinstance(caught.value, AttributeError)


# --- Images -------------------------------------------------------------------------------------------------


@st.composite
def images(draw: st.DrawFn, modes: list[str] = MODES) -> Image.Image:
    mode = draw(st.sampled_from(modes))
    size = draw(st.tuples(st.integers(1, 20), st.integers(1, 8)))
    num_bytes = len(Image.new(mode, size).tobytes())
    pixels = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
    image: Image.Image = Image.frombytes(mode, size, pixels)
    return image


def check_image(found: Any, stored: Image.Image) -> None:
    assert isinstance(found, Image.Image)
    assert (found.mode, found.size, found.tobytes()) == (stored.mode, stored.size, stored.tobytes())


def jpeg_file(size: tuple[int, int], mode: str = "RGB", color: Any = None) -> bytes:
    out = BytesIO()
    Image.new(mode, size, color or size[0]).save(out, "JPEG")
    return out.getvalue()


@settings(max_examples=60)
@given(images())
def test_pil_keeps_every_mode(image: Image.Image) -> None:
    check_image(store_and_read("pil", image), image)


@pytest.mark.parametrize("mode", MODES)
def test_pil_knows_every_mode(mode: str) -> None:
    image = Image.new(mode, (9, 2))
    check_image(store_and_read("pil", image), image)


@pytest.mark.parametrize("encoding", ["pil", "list[pil]", "png", "jpeg"])
@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_images_without_pixels_are_refused(encoding: str, size: tuple[int, int]) -> None:
    image = Image.new("L", size)
    with pytest.raises(ColumnValueError, match="^column 'x' "):
        store_and_read(encoding, [image] if encoding == "list[pil]" else image)


@settings(max_examples=30)
@given(images(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]))
def test_png_is_lossless(image: Image.Image) -> None:
    found = store_and_read("png", image)
    assert found.format == "PNG"
    if image.mode != "P":
        check_image(found, image)
    assert found.size == image.size


def test_jpeg_bytes_are_kept() -> None:
    stored = jpeg_file((17, 9))
    found = store_and_read("jpeg", stored)
    assert (found.format, found.mode, found.size) == ("JPEG", "RGB", (17, 9))
    assert store_and_read("jpeg", stored, image_decoder="raw") == stored
    array = store_and_read("jpeg", stored, image_decoder="array")
    assert (array.shape, array.dtype) == ((9, 17, 3), np.uint8)
    assert np.abs(array.astype(int) - np.array(found).astype(int)).max() <= 4  # two decoders may round apart


@pytest.mark.parametrize("encoding", ["jpeg", "list[jpeg]", "jpeg_array", "jpegarray"])
def test_jpeg_columns_refuse_bytes_that_are_no_jpeg(encoding: str) -> None:
    png = BytesIO()
    Image.new("L", (2, 2)).save(png, "PNG")
    wrap: Callable[[bytes], bytes] = bytes
    if encoding != "jpeg":
        wrap = partial(_one_of_a_list, has_word=encoding == "list[jpeg]")
    assert store_and_read(encoding, wrap(jpeg_file((3, 2))), image_decoder="raw") in (
        jpeg_file((3, 2)),
        [jpeg_file((3, 2))],
    )
    with pytest.raises(
        ColumnValueError, match="^column 'x' expects the bytes of a JPEG file, got a PNG file: use .*'png'"
    ):
        store_and_read(encoding, wrap(png.getvalue()))
    for stored in (b"", b"hello, hello", b"\xff\xd8"):
        with pytest.raises(ColumnValueError, match="^column 'x' expects the bytes of a JPEG file, got .* begin with b"):
            store_and_read(encoding, wrap(stored))


def _one_of_a_list(data: bytes, *, has_word: bool) -> bytes:
    return struct.pack("<II", 1, len(data)).rjust(12 if has_word else 8, b"\0") + data


def test_jpeg_files_in_a_row_are_looked_at() -> None:
    with pytest.raises(ColumnValueError, match="^column 'x' expects the bytes of a JPEG file"):
        store_and_read("jpeg_array", [jpeg_file((3, 2)), b"no"])


def test_an_image_that_was_changed_in_place_is_not_the_file(tmp_path: Any) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg_file((64, 32)))
    with Image.open(path) as image:
        image.thumbnail((8, 8))
        assert store_and_read("jpeg", image).size == (8, 4)
    with Image.open(path) as image:
        image.load()
        assert store_and_read("jpeg", image, image_decoder="raw") == path.read_bytes()


def test_jpeg_of_an_open_file_is_the_file(tmp_path: Any) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(jpeg_file((17, 9)))
    with Image.open(path) as image:
        assert store_and_read("jpeg", image, image_decoder="raw") == path.read_bytes()
    with Image.open(path) as image:
        image.load()
        path.unlink()
        assert Image.open(BytesIO(store_and_read("jpeg", image, image_decoder="raw"))).size == (17, 9)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_arrays_are_rgb(mode: str) -> None:
    color = (200, 30, 90, 10)[: len(Image.new(mode, (1, 1)).getbands())]
    stored = jpeg_file((16, 8), mode, color if len(color) > 1 else color[0])
    array = store_and_read("jpeg", stored, image_decoder="array")
    expected = np.array(Image.open(BytesIO(stored)).convert("RGB"))
    assert array.shape == expected.shape == (8, 16, 3)
    assert np.abs(array.astype(int) - expected.astype(int)).max() <= 4


@settings(max_examples=30)
@given(st.lists(images(), max_size=4))
def test_lists_of_pixels(value: list[Image.Image]) -> None:
    found = store_and_read("list[pil]", value)
    assert type(found) is list
    assert len(found) == len(value)
    for one, other in zip(found, value, strict=True):
        check_image(one, other)


@settings(max_examples=10)
@given(st.lists(images(["L", "RGB"]), max_size=3))
def test_lists_of_png(value: list[Image.Image]) -> None:
    found = store_and_read("list[png]", value)
    assert len(found) == len(value)
    for one, other in zip(found, value, strict=True):
        check_image(one, other)
    arrays_found = store_and_read("list[png]", value, image_decoder="array")
    for one, other in zip(arrays_found, value, strict=True):
        assert np.array_equal(one, np.array(other.convert("RGB")))


def test_lists_of_jpeg() -> None:
    value = [Image.new("RGB", (8, 9), 3), Image.new("L", (5, 4), 200)]
    assert [(image.format, image.size) for image in store_and_read("list[jpeg]", value)] == [
        ("JPEG", (8, 9)),
        ("JPEG", (5, 4)),
    ]
    assert store_and_read("list[jpeg]", []) == []


@pytest.mark.parametrize("encoding", ["jpeg_array", "jpegarray"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_jpeg_files_in_a_row(encoding: str, kind: type) -> None:
    files = [jpeg_file((8, n)) for n in (1, 2, 3)]
    assert store_and_read(encoding, tuple(map(kind, files)), image_decoder="raw") == files
    assert [image.size for image in store_and_read(encoding, files)] == [(8, 1), (8, 2), (8, 3)]
    assert [array.shape for array in store_and_read(encoding, files, image_decoder="array")] == [
        (1, 8, 3),
        (2, 8, 3),
        (3, 8, 3),
    ]


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("pil", np.zeros((2, 2), np.uint8)),
        ("jpeg", "image.jpg"),
        ("png", None),
        ("list[pil]", (Image.new("L", (1, 1)),)),
        ("list[png]", Image.new("L", (1, 1))),
        ("list[jpeg]", [b"x", 3]),
        ("jpeg_array", [1, 2]),
        ("jpeg_array", 5),
        ("jpegarray", ["text"]),
        ("bytes", "text"),
        ("bytes", bytearray(b"x")),
        ("str", 1),
        ("int", np.float64(1)),
        ("int", True),
        ("int", 1.0),
        ("str_int", 1.0),
        ("str_float", 1),
        ("str_decimal", 1.0),
        ("json", {1, 2}),
    ],
)
def test_values_of_the_wrong_type(encoding: str, value: Any) -> None:
    with pytest.raises(ColumnTypeError, match="^column 'x' ") as caught:
        store_and_read(encoding, value)
    assert isinstance(caught.value, AttributeError)
    assert isinstance(caught.value, TypeError)
    assert caught.value.facts["column"] == "x"


# --- Stored bytes that make no value ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "stored"),
    [
        ("str", b"\xff"),
        ("str", b"\xed\xa0\x80"),
        ("str_int", b""),
        ("str_int", b"1.5"),
        ("str_int", b"\xff"),
        ("str_int", b"9" * 5000),
        ("str_float", b"x"),
        ("str_decimal", b"x"),
        ("json", b""),
        ("json", b"{"),
        ("json", b"\xff\xfe\xfd"),
        ("json", b"[" * 100_000),
        ("ndarray", b""),
        ("ndarray", b"\x07\x04\x01"),
        ("ndarray", b"\x08"),
        ("ndarray", b"\x08\x04"),
        ("ndarray", b"\x08\x04\x02\x00"),
        ("ndarray", b"\x08\x04\x01\x00\x00"),
        ("ndarray", b"\x08\x07" + b"\xff" * 8),
        ("ndarray", b"\x08\x0b\x00" + b"\x00" * 7 + b"\xff" * 8),
        ("ndarray:int16", b""),
        ("ndarray:int16", b"\x04\x01\x00"),
        ("ndarray:int16", b"\xff" + b"\xff" * 600),
        ("pil", b""),
        ("pil", b"\x01\0\0\0\x01\0\0\0\x05\0\0\0"),
        ("png", b""),
        ("png", b"\x89PNG\r\n\x1a\n"),
        ("jpeg", b"\xff\xd8\xff"),
        ("list[png]", b"\0\0\0"),
        ("list[png]", b"\0\0\0\0\0\0\0"),
        ("list[pil]", b"\0\0\0\0\x01\0\0\0\x01\0\0\0"),
        ("list[pil]", b"\0\0\0\0\0\0\0\0x"),
        ("jpeg_array", b"\0\0\0"),
        ("jpeg_array", b"\0\0\0\0"),
        ("jpeg_array", b"\x01\0\0\0"),
    ],
)
def test_stored_bytes_that_do_not_decode(encoding: str, stored: bytes) -> None:
    with pytest.raises(CorruptShardError, match=r"^shard\.00000\.mds, row 0: column 'x' ") as caught:
        read_stored(encoding, stored)
    assert isinstance(caught.value, ValueError)
    assert caught.value.facts == {"shard": "shard.00000.mds", "row": 0, "column": "x"}


def test_the_row_that_does_not_decode_is_named() -> None:
    layout = make_layout({"x": "str"})
    parts = build(make_layout({"x": "bytes"}), [{"x": value} for value in (b"a", b"\xff", b"c", b"\xfe")])
    reader = open_parts(layout, parts, 4)
    assert reader.read([0, 2]) == [{"x": "a"}, {"x": "c"}]
    for rows, row in (([0, 1, 2, 3], 1), ([3, 1], 3)):
        with pytest.raises(CorruptShardError, match=rf"^shard\.00000\.mds, row {row}: column 'x' cannot be decoded"):
            reader.read(rows)


def test_a_pickle_that_breaks_is_a_corrupt_shard() -> None:
    with pytest.raises(CorruptShardError, match="row 0: column 'x' cannot be decoded: UnpicklingError"):
        read_stored("pkl", b"garbage", allow_unsafe_types=True)
    assert read_stored("pkl", pickle.dumps({"a": 1}), allow_unsafe_types=True) == {"a": 1}


# --- Names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["", "int128", "bool", "STR", "list[int]", "list", "utf8", "nd", "nope:3"])
def test_unknown_encodings_list_the_known_ones(encoding: str) -> None:
    with pytest.raises(UnknownEncodingError) as caught:
        make_layout({"x": encoding})
    assert str(caught.value) == f"unknown column encoding {encoding!r}: use one of {', '.join(encodings.names())}"
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "encoding",
    [
        "str:x",
        "int:8",
        "jpeg:90",
        "ndarray:bool",
        "ndarray:float8",
        "ndarray:int8:",
        "ndarray:int8:0",
        "ndarray:int8:-1",
        "ndarray:int8:2,",
        "ndarray:int8:2.5",
        "ndarray:int8:²",
        "ndarray:int8:1:2",
        "ndarray::3",
        "ndarray:uint8:4294967296",
        "ndarray:uint8:" + "9" * 5000,
        "ndarray:uint8:65536,65536",
    ],
)
def test_bad_settings_of_encodings(encoding: str) -> None:
    with pytest.raises(EncodingConfigError) as caught:
        make_layout({"x": encoding})
    assert str(caught.value).startswith((f"column encoding {encoding!r}", encoding[:100]))
    assert isinstance(caught.value, AttributeError)
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, ValueError)


def test_an_empty_config_is_none() -> None:
    value = np.arange(3)
    check_array(store_and_read("ndarray:", value), value)


def test_json_is_stored_as_text() -> None:
    (part,) = build(make_layout({"x": "json"}), [{"x": {"é": [1, 2.5]}}])
    assert part.endswith(json.dumps({"é": [1, 2.5]}).encode())
