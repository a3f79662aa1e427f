"""The five formats keep the contract that plug-ins are held to."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from penstock.errors import ConfigError
from penstock.formats.text import JSONFormat
from penstock.index.entry import formats
from penstock.testing import FormatContract
from penstock.testing.reading import is_same

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.formats.base import ReadOptions, ShardBytes
    from penstock.formats.lines.reader import LineReader
    from penstock.index.model import IndexedShard
    from penstock.types import Sample

TEXT_SAMPLES: list[Sample] = [
    {"count": 0, "name": "", "score": 0.5},
    {"count": -(2**70), "name": "naïve café 🙂", "score": -0.0},
    {"count": 3, "name": '"quoted" \\ \0', "score": float("nan")},
    {"count": 2**63 - 1, "name": "   ", "score": float("-inf")},
]


class TestMDS(FormatContract):
    format_name = "mds"
    columns: ClassVar[Mapping[str, str]] = {
        "text": "str",
        "raw": "bytes",
        "id": "int",
        "half": "float16",
        "big": "str_int",
        "price": "str_decimal",
        "any": "json",
        "tokens": "ndarray:int32:3",
        "shaped": "ndarray:float32",
        "free": "ndarray",
    }
    samples: ClassVar[Sequence[Sample]] = [
        {
            "text": "é" * n,
            "raw": bytes(range(n)),
            "id": -n,
            "half": np.float16(n / 8),
            "big": 10 ** (30 * n),
            "price": Decimal(n) / 8,
            "any": {"n": [n, None, 0.5]},
            "tokens": np.arange(n, n + 3, dtype=np.int32),
            "shaped": np.full((2, n + 1), n, np.float32),
            "free": np.arange(n + 1, dtype=f"uint{8 << n % 4}"),
        }
        for n in range(6)
    ]
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {
        "text": [None, 1, bytearray(b"x")],
        "raw": ["x", bytearray(b"x"), memoryview(b"x")],
        "id": [1.0, "1", True, np.uint64(2**63), 2**63, b"1234567"],
        "half": ["x", "1", None, True, 1e6, 2049, [1.0, 2.0], np.zeros(1, np.float16), b"123"],
        "big": [1.5, "1"],
        "price": [1, "1.5", 0.5],
        "any": [object(), {1, 2}, {1: 2}, [{"a": {(1, 2): 3}}]],
        "tokens": [
            [1, 2],
            [1, 2, 2**31],
            [1, 2, 0.5],
            [1, 2, True],
            np.arange(3),
            np.arange(4, dtype=np.int32),
            b"12345678901",
        ],
        "shaped": [np.float32(1), np.zeros(3), np.zeros((), np.float32), np.zeros((0, 2), np.float32)],
        "free": [np.zeros(2, complex), np.array(["x"]), np.zeros(2, bool), np.zeros((0,), np.int8)],
    }


class TestMDSOfNumbersOnly(FormatContract):
    format_name = "mds"
    samples: ClassVar[Sequence[Sample]] = [{"a": n, "b": np.uint8(n), "c": np.float64(n)} for n in range(5)]


class TestMDSOfPixels(FormatContract):
    format_name = "mds"
    columns: ClassVar[Mapping[str, str]] = {"image": "pil", "many": "list[pil]", "png": "png"}
    samples: ClassVar[Sequence[Sample]] = [
        {
            "image": Image.new(mode, (n + 1, 3), n),
            "many": [Image.new(mode, (2, n + 1), n)] * n,
            "png": Image.new("L", (n + 1, 2), n),
        }
        for n, mode in enumerate(["L", "RGB", "I"])
    ]
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {
        "image": [np.zeros((2, 2, 3), np.uint8), "x"],
        "many": [(Image.new("L", (1, 1)),), [1], Image.new("L", (1, 1))],
    }

    def same(self, found: Any, stored: Any) -> bool:
        if isinstance(stored, list):
            return len(found) == len(stored) and all(map(self.same, found, stored))
        return (found.mode, found.size, found.tobytes()) == (stored.mode, stored.size, stored.tobytes())

    test_columns_can_be_guessed = None  # type: ignore[assignment]  # a list of images is no JSON


class TestMDSOfPickles(FormatContract):
    format_name = "mds"
    columns: ClassVar[Mapping[str, str]] = {"object": "pkl"}
    samples: ClassVar[Sequence[Sample]] = [{"object": value} for value in [(1, {"a": 2.5}), None, {1, 2}, "x"]]
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {"object": [lambda: None]}
    read_options: ClassVar[Mapping[str, Any]] = {"allow_unsafe_types": True}

    test_columns_can_be_guessed = None  # type: ignore[assignment]  # nothing is pickled unless asked for


class TestJSON(FormatContract):
    format_name = "json"
    settings: ClassVar[Mapping[str, Any]] = {"newline": "\n"}
    samples: ClassVar[Sequence[Sample]] = [*TEXT_SAMPLES, {"count": 1, "name": "two\nlines\r\n", "score": 1e300}]
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {
        "count": [1.0, "1", None, np.float32(1)],
        "name": [b"x", 1, None],
        "score": [1, "1.0", None, np.int64(1)],
    }


class TestJSONWithLongNewline(TestJSON):
    settings: ClassVar[Mapping[str, Any]] = {"newline": "\r\n"}


class TestCSV(FormatContract):
    format_name = "csv"
    settings: ClassVar[Mapping[str, Any]] = {"newline": "\n"}
    samples: ClassVar[Sequence[Sample]] = [*TEXT_SAMPLES, {"count": 1, "name": "tab\tand|bar", "score": 1e300}]
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {
        "count": [1.0, "1", None, True, np.float32(1)],
        "name": [b"x", 1, None, "a,b", "a\nb", "\ud800"],
        "score": [1, "1.0", None, True, np.int64(1)],
    }


class TestTSV(TestCSV):
    format_name = "tsv"
    samples: ClassVar[Sequence[Sample]] = [*TEXT_SAMPLES, {"count": 1, "name": "a,b|c", "score": 1e300}]
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {"name": ["a\tb", "a\nb", "\ud800"]}


class TestXSV(FormatContract):
    format_name = "xsv"
    settings: ClassVar[Mapping[str, Any]] = {"newline": "\r\n", "separator": "||"}
    samples: ClassVar[Sequence[Sample]] = [*TEXT_SAMPLES, {"count": 1, "name": "a|b,c\td\n\r", "score": 1e300}]
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {"name": ["a||b", "a\r\nb", "\ud800"]}


# --- The contract itself ------------------------------------------------------------------------------------


class _ForgetfulFormat(JSONFormat):
    """Gives a wrong value for one sample."""

    def open(self, parts: Sequence[ShardBytes], info: IndexedShard, options: ReadOptions) -> LineReader:
        spoiled = [bytes(parts[0]).replace(b'"two"', b'"tow"'), parts[1]]
        return super().open(spoiled, info, options)


def test_the_contract_finds_a_format_that_breaks_it() -> None:
    formats.register("forgetful")(_ForgetfulFormat)

    class Contract(FormatContract):
        format_name = "forgetful"
        settings: ClassVar[Mapping[str, Any]] = {"newline": "\n"}
        samples: ClassVar[Sequence[Sample]] = [{"name": name} for name in ("one", "two", "three")]

    for broken in (
        Contract().test_samples_come_back,
        Contract().test_any_rows_in_any_order,
        Contract().test_columns_agree_with_samples,
        Contract().test_some_columns_only,
        Contract().test_values_do_not_point_into_the_shard,
    ):
        with pytest.raises(AssertionError, match="stored 'two', found 'tow'|'name': 'two'"):
            broken()
    Contract().test_sizes_add_up()  # which does not depend on reading


def test_the_contract_names_unknown_formats() -> None:
    class Contract(FormatContract):
        format_name = "mdz"
        samples: ClassVar[Sequence[Sample]] = [{"a": n} for n in range(3)]

    with pytest.raises(ConfigError, match=r"unknown shard format 'mdz' \(did you mean 'mds'\?\): use one of"):
        Contract().test_samples_come_back()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.0, -0.0),
        (np.float32(1), np.float64(1)),
        (np.zeros(2), np.zeros((1, 2))),
        (np.zeros(2), np.array([0.0, -0.0])),
        ([1, [2]], [1, [2.0]]),
        ({"a": 1}, {"a": True}),
        ((1,), [1]),
    ],
)
def test_values_that_are_not_the_same(one: Any, other: Any) -> None:
    assert is_same(one, one)
    assert not is_same(one, other)


def test_the_contract_needs_no_test_runner() -> None:
    code = "import sys, penstock.testing; sys.exit('pytest' in sys.modules or 'hypothesis' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
