"""Arrow's types and the Hub's features → the types of columns. This and writing need pyarrow; reading does not."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError, CorruptShardError, PenstockError
from penstock.extras import require
from penstock.formats.columnar.types import ColumnType, array_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEEPEST = 60
_SAME_NAME = ("null", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
_BYTES = {
    **dict.fromkeys(("string", "large_string", "string_view"), "string"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), "binary"),
}


# Types whose values may stand in one column.
_FAMILIES = {
    **dict.fromkeys((*_SAME_NAME[2:], *_FLOATS.values(), "decimal"), "number"),
    **dict.fromkeys(("date", "time", "timestamp", "duration"), "time"),
    "fixed_binary": "binary",
    "fixed_list": "list",
}


@cache
def pyarrow() -> Any:
    """Import pyarrow, or say what brings it."""
    return require("pyarrow", extra="parquet", purpose="reading Parquet and Arrow files")


def number_dtype(kind: Any) -> np.dtype[Any]:
    """Return the dtype of a type of numbers; pyarrow's own answer may need pandas."""
    return np.dtype(_FLOATS.get(str(kind), str(kind)))


def describe_schema(schema: Any) -> tuple[tuple[str, ColumnType], ...]:
    """Return the columns of an Arrow schema; images are those that the Hub's features name."""
    names = list(schema.names)
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise ConfigError(f"two columns are called {twice!r}: rename one of them")
    features = _hub_features(schema.metadata or {})
    return tuple(
        (field.name, _with_feature(describe_type(field.type, field.name), features.get(field.name))) for field in schema
    )


def describe_type(kind: Any, column: str, depth: int = 0) -> ColumnType:
    """Return the type of a column; one that is not read is an error that says which column has it."""
    types = pyarrow().types
    text = str(kind)

    def within(*kinds: Any) -> tuple[tuple[str, ColumnType], ...]:
        return tuple(("", describe_type(each, column, depth + 1)) for each in kinds)

    if depth > _DEEPEST:
        raise ConfigError(f"column {column!r} is nested more than {_DEEPEST} levels deep")
    if isinstance(kind, pyarrow().BaseExtensionType):
        return describe_type(kind.storage_type, column, depth + 1)
    if text in _SAME_NAME or text in _FLOATS or text in _BYTES:
        return ColumnType(_FLOATS.get(text) or _BYTES.get(text) or text)
    if types.is_dictionary(kind):
        values = describe_type(kind.value_type, column, depth + 1)
        # They are kept apart if that saves something: others are made anew for each row anyway.
        is_simple = array_dtype(values) is not None or values.kind in ("string", "binary", "fixed_binary")
        return ColumnType("dictionary", (), (("", values),)) if is_simple else values
    if types.is_run_end_encoded(kind):
        return describe_type(kind.value_type, column, depth + 1)
    if types.is_timestamp(kind):
        return ColumnType("timestamp", (kind.unit, kind.tz or ""))
    if types.is_date(kind) or types.is_interval(kind):
        return ColumnType("date" if types.is_date(kind) else "interval")
    if types.is_time(kind) or types.is_duration(kind):
        return ColumnType("time" if types.is_time(kind) else "duration", (kind.unit,))
    if types.is_decimal(kind):
        return ColumnType("decimal", (kind.bit_width // 8, kind.precision, kind.scale))
    if types.is_fixed_size_binary(kind):
        return ColumnType("fixed_binary", (kind.byte_width,))
    if types.is_fixed_size_list(kind):
        return ColumnType("fixed_list", (kind.list_size,), within(kind.value_type))
    if types.is_map(kind):
        return ColumnType("map", (), within(kind.key_type, kind.item_type))
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        children = [child for _, child in within(*(field.type for field in fields))]
        return ColumnType("struct", (), tuple(zip((field.name for field in fields), children, strict=True)))
    if is_list(kind):
        return ColumnType("list", (), within(kind.value_type))
    raise ConfigError(f"column {column!r} has the type {text:.100}, which penstock does not read")


def is_list(kind: Any) -> bool:
    """Return whether this is a list of any length, however it is laid out."""
    types = pyarrow().types
    return any(
        test(kind) for test in (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    )


# --- Values ---------------------------------------------------------------------------------------------------


def validated(batch: Any) -> Any:
    """Return a record batch whose values were all checked; an `ArrowInvalid` says what is wrong with one."""
    try:
        batch.validate(full=True)
    except pyarrow().ArrowInvalid:
        batch.validate()  # sizes, so that looking for nulls is safe
        none = np.zeros(batch.num_rows, np.bool_)
        columns = [_without_empty_dictionaries(column, none) for column in batch.columns]
        batch = pyarrow().RecordBatch.from_arrays(columns, schema=batch.schema)
        batch.validate(full=True)
    return batch


def _without_empty_dictionaries(array: Any, is_hidden: Any) -> Any:
    """Return the same values with nulls in the place of numbers of an empty dictionary, if all of them are hidden.

    Within structs and lists that are null, pyarrow writes zeros as the numbers, and refuses them when it checks.
    """
    pa, kind = pyarrow(), array.type
    is_hidden = is_hidden | array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(kind):
        return pa.nulls(len(array), kind) if not len(array.dictionary) and is_hidden.all() else array
    if pa.types.is_struct(kind):
        fields = [_without_empty_dictionaries(field, is_hidden) for field in map(array.field, range(kind.num_fields))]
    elif pa.types.is_fixed_size_list(kind):
        fields = [_without_empty_dictionaries(array.values, np.repeat(is_hidden, kind.list_size))]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        fields = [_without_empty_dictionaries(array.values, np.zeros(len(array.values), np.bool_))]
    else:
        return array
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, fields)


# --- Features of the Hub --------------------------------------------------------------------------------------


def _hub_features(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Find what Hugging Face's datasets wrote about the columns; what cannot be read is not there."""
    try:
        match json.loads(metadata.get(b"huggingface", b"null")):
            case {"info": {"features": dict(features)}}:
                return features
    except (ValueError, RecursionError):
        pass
    return {}


def _with_feature(kind: ColumnType, feature: Any) -> ColumnType:
    """Mark images, also those in lists."""
    match feature, kind:
        case {"_type": "Image"}, ColumnType("struct") if feature.get("decode", True):
            if any(name == "bytes" and field.kind == "binary" for name, field in kind.fields):
                return ColumnType("image")
        case [inner], ColumnType("list" | "fixed_list"):
            return _with_element(kind, inner)
        case {"_type": "Sequence" | "List" | "LargeList", "feature": inner}, ColumnType("list" | "fixed_list"):
            return _with_element(kind, inner)
    return kind


def _with_element(kind: ColumnType, feature: Any) -> ColumnType:
    return ColumnType(kind.kind, kind.settings, (("", _with_feature(kind.child, feature)),))


def checked(batch: Any, first: int, where: str) -> Any:
    """Refuse text that is not UTF-8, and offsets that would end the process; `first` is the batch's first row."""
    try:
        return validated(batch)
    except (pyarrow().ArrowException, ValueError) as error:
        begin, end = _bad_rows(batch)
        row = first + begin
        rows = f"row {row}" if end - begin == 1 else f"rows {row} to {first + end - 1}"
        raise CorruptShardError(f"{where}, {rows}, cannot be read: {error}", path=where, row=row) from error


def _bad_rows(batch: Any) -> tuple[int, int]:
    """Find the first row with a bad value, or all that it may be: what is nested cannot be looked at row by row."""
    column = next((each for each in batch.columns if not _is_valid(each)), None)
    begin, end = 0, batch.num_rows
    if column is None or column.type.num_fields or pyarrow().types.is_dictionary(column.type):
        return begin, end
    while end - begin > 1:
        middle = (begin + end) // 2
        if _is_valid(column.slice(begin, middle - begin)):
            begin = middle
        else:
            end = middle
    return begin, end


def _is_valid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except (pyarrow().ArrowException, ValueError):
        return False
    return True


def check_columns(wanted: Sequence[str] | None, names: Sequence[str], where: str) -> None:
    """Refuse columns that a file does not have."""
    missing = [name for name in wanted or () if name not in names]
    if missing:
        raise ConfigError(
            f"{where} has no column {', '.join(map(repr, missing))}: it has {', '.join(names)}", path=where
        )


def check_alike(first: Any, other: Any, wanted: Sequence[str] | None, names: tuple[str, str]) -> None:
    """Refuse a file with other columns than the first one, or with other kinds of values in them."""
    where, there = names[1], names[0]
    if wanted is None and set(first.names) != set(other.names):
        raise CorruptShardError(
            f"{where} has the columns {', '.join(other.names)}, but {there} has {', '.join(first.names)}: pass columns="
            " that all files have, or make a source of each kind",
            path=where,
        )
    for name in first.names if wanted is None else wanted:
        kinds = [schema.field(name).type for schema in (first, other) if name in schema.names]
        if len(kinds) == 2 and not _are_alike(*kinds):
            raise CorruptShardError(
                f"{where} has {kinds[1]} in its column {name!r}, but {there} has {kinds[0]}: write them with the same"
                " types, or make a source of each kind",
                path=where,
            )


def _are_alike(first: Any, other: Any) -> bool:
    """Return whether values of two types may stand in one column: samples have integers, whatever their width."""
    return bool(first.equals(other)) or _match(*(describe_type(kind, "").logical for kind in (first, other)))


def _match(first: ColumnType, other: ColumnType) -> bool:
    if "null" in (first.kind, other.kind):
        return True
    families = [_FAMILIES.get(each.kind, each.kind) for each in (first, other)]
    return families[0] == families[1] and (families[0] != "list" or _match(first.child, other.child))


@contextmanager
def naming(where: str, what: str = " cannot be read", **facts: str) -> Iterator[None]:
    """Turn what Arrow says of a broken file, or what breaks because of one, into an error that names it."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # pyarrow's errors are of many classes
        reason = ", because memory runs out" if isinstance(error, MemoryError) else ""
        raise CorruptShardError(f"{where}{what}{reason}: {error}", **(facts or {"path": where})) from error
