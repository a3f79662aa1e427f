"""All encodings, and some made here, keep the contract that plug-ins are held to."""

from __future__ import annotations

import struct
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from penstock import Encoding, encodings
from penstock.errors import ColumnTypeError, ConfigError, UnsafeTypeError
from penstock.formats.encodings.table import get_encoding
from penstock.testing import EncodingContract
from tests.formats.making import build, make_layout, open_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def jpeg() -> bytes:
    out = BytesIO()
    Image.new("RGB", (8, 8), (10, 200, 30)).save(out, format="JPEG")
    return out.getvalue()


def image(mode: str, size: int) -> Image.Image:
    return Image.new(mode, (size, 2), size)


PICTURES = [image("L", 1), image("RGB", 3), image("L", 5)]
# Of each builtin encoding: values that it gives back, and values that it refuses.
CASES: dict[str, tuple[list[Any], list[Any]]] = {
    **{f"uint{bits}": ([np.dtype(f"uint{bits}").type(n) for n in (0, 7)], ["x"]) for bits in (8, 16, 32, 64)},
    **{f"int{bits}": ([np.dtype(f"int{bits}").type(n) for n in (-3, 7)], ["x"]) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": ([np.dtype(f"float{bits}").type(n) for n in (-0.0, 1.5)], ["x"]) for bits in (16, 32, 64)},
    "int": ([0, -(2**63)], [1.0, 2**63]),
    "ndarray": ([np.zeros((2, 3), np.int8), np.ones(1)], [3, np.zeros(0)]),
    "ndarray:int32": ([np.zeros((2, 3), np.int32), np.ones(1, np.int32)], [np.ones(1)]),
    "ndarray:int16:2,2": ([np.zeros((2, 2), np.int16), np.ones((2, 2), np.int16)], [np.ones(4, np.int16)]),
    "str": (["", "é"], [3, "\ud800"]),
    "str_int": ([0, 10**40], ["1"]),
    "str_float": ([0.5, float("inf")], ["1"]),
    "str_decimal": ([Decimal("0.10"), Decimal(3)], [1]),
    "json": ([{"a": [None, 1.5]}, "x"], [object()]),
    "pkl": ([(1, 2), {"a"}], [lambda: None]),
    "pil": (PICTURES, ["x"]),
    "png": (PICTURES, ["x"]),
    "list[pil]": ([[], PICTURES], [PICTURES[0], ["x"]]),
    "list[png]": ([[], PICTURES], [PICTURES[0], ["x"]]),
}


class BuiltinContract(EncodingContract):
    read_options: ClassVar[Mapping[str, Any]] = {"allow_unsafe_types": True}

    def same(self, found: Any, stored: Any) -> bool:
        if isinstance(stored, list):
            return len(found) == len(stored) and all(map(self.same, found, stored))
        if isinstance(stored, Image.Image):
            return (found.mode, found.size, found.tobytes()) == (stored.mode, stored.size, stored.tobytes())
        return super().same(found, stored)


LAWS = [name for name in dir(EncodingContract) if name.startswith("test_")]
MADE_UP = "test_any_bytes_are_a_value_or_a_corrupt_shard"
PAIRS = [(name, law) for name in CASES for law in LAWS if (name, law) != ("pkl", MADE_UP)]  # which would run code


@pytest.mark.parametrize(("encoding", "law"), PAIRS)
def test_builtin(encoding: str, law: str) -> None:
    values, bad_values = CASES[encoding]
    one = type("One", (BuiltinContract,), {"encoding": encoding, "values": values, "bad_values": bad_values})
    getattr(one(), law)()


@pytest.mark.parametrize("law", [MADE_UP, "test_bad_values_are_refused_by_the_name_of_their_column"])
@pytest.mark.parametrize("encoding", ["jpeg", "list[jpeg]", "jpeg_array", "jpegarray"])
def test_builtin_that_loses_something(encoding: str, law: str) -> None:
    picture: Any = Image.open(BytesIO(jpeg()))
    values = {"jpeg": [picture] * 2, "list[jpeg]": [[], [picture]]}.get(encoding, [[jpeg()], [jpeg()] * 2])
    one = type("One", (BuiltinContract,), {"encoding": encoding, "values": values, "bad_values": [3, object()]})
    getattr(one(), law)()


def test_every_builtin_is_held_to_it() -> None:
    tried = {name.partition(":")[0] for name in CASES} | {"jpeg", "list[jpeg]", "jpeg_array", "jpegarray", "bytes"}
    assert tried == {name for name in encodings.names() if not name.startswith("test_")}


# --- Encodings of one's own ---------------------------------------------------------------------------------


@encodings.register("test_words")
class Words(Encoding):
    """Of any size, with settings."""

    def __init__(self, separator: str = " ") -> None:
        self._separator = separator

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, list):
            raise TypeError("no list")
        return self._separator.join(value).encode()

    def decode(self, data: bytes) -> Any:
        return data.decode().split(self._separator)

    def with_settings(self, settings: str) -> Encoding:
        return Words(settings)


@encodings.register("test_point")
class Point(Encoding):
    """Of a fixed size, but nothing that NumPy holds."""

    num_bytes = 16

    def encode(self, value: Any) -> bytes:
        return struct.pack("<dd", *value)

    def decode(self, data: bytes) -> Any:
        return struct.unpack("<dd", data)


@encodings.register("test_careless")
class Careless(Encoding):
    """Gives what it should not."""

    num_bytes = 4
    is_unsafe = True

    def encode(self, value: Any) -> bytes:
        return value  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> Any:
        return data


class TestWords(EncodingContract):
    encoding = "test_words:;"
    values: ClassVar[Sequence[Any]] = [["a", "b c"], ["é"]]
    bad_values: ClassVar[Sequence[Any]] = ["a", [1]]


class TestPoint(EncodingContract):
    encoding = "test_point"
    values: ClassVar[Sequence[Any]] = [(0.5, 1.0), (-2.0, float("inf"))]
    bad_values: ClassVar[Sequence[Any]] = [(1.0,), "ab", None]


def test_an_encoding_is_made_once() -> None:
    assert get_encoding("test_point") is get_encoding("test_point")
    with pytest.raises(ConfigError, match="column encoding 'test_point:3': test_point takes no settings"):
        get_encoding("test_point:3")
    with pytest.raises(ConfigError, match="'int' is already registered"):
        encodings.register("int")(Point)


@pytest.mark.parametrize("value", ["four", bytearray(4), None, 3])
def test_what_is_no_bytes_is_not_stored(value: Any) -> None:
    with pytest.raises(ColumnTypeError, match="column 'x' is encoded as .* must return bytes"):
        build(make_layout({"x": "test_careless"}), [{"x": value}])


def test_an_encoding_may_ask_for_trust() -> None:
    layout = make_layout({"x": "test_careless"})
    parts = build(layout, [{"x": b"1234"}])
    with pytest.raises(UnsafeTypeError, match="allow_unsafe_types=True"):
        open_parts(layout, parts, 1)
    assert open_parts(layout, parts, 1, allow_unsafe_types=True).read([0]) == [{"x": b"1234"}]
