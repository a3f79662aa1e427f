"""What is checked of files of columns that are read in order: values, columns, and that files are alike."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, CorruptShardError, PenstockError
from penstock.formats.columnar.arrow_types import pyarrow, validated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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
    types = pyarrow().types
    if first.equals(other) or types.is_null(first) or types.is_null(other):
        return True
    if types.is_dictionary(first) or types.is_dictionary(other):
        return _are_alike(*(each.value_type if types.is_dictionary(each) else each for each in (first, other)))
    if all(map(_is_list, (first, other))):
        return _are_alike(first.value_type, other.value_type)
    return any(all(map(is_kind, (first, other))) for is_kind in _kinds())


def _is_list(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _kinds() -> list[Callable[[Any], bool]]:
    """Return tests for families of types."""
    types = pyarrow().types
    return [
        lambda kind: types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind),
        lambda kind: types.is_string(kind) or types.is_large_string(kind),
        lambda kind: types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind),
        types.is_temporal,
        types.is_struct,
        types.is_map,
    ]


@contextmanager
def naming(where: str, part: str = "") -> Iterator[None]:
    """Turn what Arrow says of a broken file, or of a part of it, into an error that names it."""
    try:
        yield
    except PenstockError:
        raise
    except (pyarrow().ArrowException, OSError, ValueError, ArithmeticError, LookupError) as error:
        raise CorruptShardError(f"{where}{part} cannot be read: {error}", path=where) from error
