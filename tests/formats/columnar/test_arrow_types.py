"""Types of Arrow become types of columns; files whose types do not go together are refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, CorruptShardError, StoreError
from penstock.formats.columnar.arrow_types import check_alike, check_columns, describe_schema, describe_type, naming


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "int8"),
        (pa.float16(), "float16"),
        (pa.large_string(), "string"),
        (pa.binary(4), "fixed_binary[4]"),
        (pa.timestamp("us", "UTC"), "timestamp[us, UTC]"),
        (pa.list_(pa.list_(pa.float32(), 3)), "list<fixed_list<float32>[3]>"),
        (pa.struct([("a", pa.bool_()), ("b", pa.date32())]), "struct<a: bool, b: date>"),
        (pa.map_(pa.string(), pa.int64()), "map<string, int64>"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.decimal128(5, 2), "decimal[5, 2]"),
    ],
)
def test_types_by_their_names(kind: Any, text: str) -> None:
    assert str(describe_type(kind, "x")) == text


def test_a_type_that_is_not_read() -> None:
    with pytest.raises(ConfigError, match="column 'x' has the type dense_union"):
        describe_type(pa.dense_union([pa.field("a", pa.int8())]), "x")


def test_images_are_those_that_the_hub_names() -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"info": {"features": {"a": {"_type": "Image"}, "b": [{"_type": "Image"}]}}}
    schema = pa.schema([("a", kind), ("b", pa.list_(kind)), ("c", kind)]).with_metadata(
        {"huggingface": json.dumps(features)}
    )
    assert [str(found) for _, found in describe_schema(schema)] == [
        "image",
        "list<image>",
        "struct<bytes: binary, path: string>",
    ]


@pytest.mark.parametrize(
    ("first", "other", "are_alike"),
    [
        (pa.int8(), pa.float64(), True),
        (pa.int8(), pa.bool_(), False),
        (pa.string(), pa.dictionary(pa.int8(), pa.large_string()), True),
        (pa.string(), pa.binary(), False),
        (pa.null(), pa.string(), True),
        (pa.list_(pa.int8()), pa.list_(pa.int64(), 2), True),
        (pa.list_(pa.int8()), pa.list_(pa.string()), False),
        (pa.date32(), pa.timestamp("ns"), True),
        (pa.binary(), pa.binary(3), True),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), True),
        (pa.int8(), pa.list_(pa.int8()), False),
    ],
)
def test_columns_that_go_together(first: Any, other: Any, are_alike: bool) -> None:
    schemas = pa.schema([("x", first)]), pa.schema([("x", other)])
    if are_alike:
        check_alike(*schemas, None, ("a", "b"))
    else:
        with pytest.raises(CorruptShardError, match="b has .* in its column 'x', but a has"):
            check_alike(*schemas, None, ("a", "b"))


def test_columns_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match="a has no column 'y': it has x"):
        check_columns(["x", "y"], ["x"], "a")
    with pytest.raises(CorruptShardError, match="b has the columns y, but a has x"):
        check_alike(pa.schema([("x", pa.int8())]), pa.schema([("y", pa.int8())]), None, ("a", "b"))


def test_errors_of_arrow_name_the_file() -> None:
    with pytest.raises(CorruptShardError, match="^a cannot be read: bad$"), naming("a"):
        raise pa.ArrowInvalid("bad")
    with pytest.raises(CorruptShardError, match="^a was lost, because memory runs out: all$"), naming("a", " was lost"):
        raise MemoryError("all")
    with pytest.raises(StoreError, match="^as it is$"), naming("a"):
        raise StoreError("as it is")
