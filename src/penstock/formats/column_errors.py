"""Foreign errors become ours here: which column of which sample could not be stored or read, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import (
    BadSampleError,
    ColumnRangeError,
    ColumnTypeError,
    ColumnValueError,
    CorruptShardError,
    MissingColumnError,
    MissingExtraError,
    PenstockError,
)

if TYPE_CHECKING:
    from penstock.types import Int64Array

T = TypeVar("T")


def encode_error(sample: Any, column: str, error: Exception) -> PenstockError:
    """Return which column of a sample could not be encoded, in the kind of error that fits."""
    if not isinstance(sample, Mapping):
        return ColumnTypeError(f"a sample must be a dict, got {type(sample).__name__}")
    if column not in sample:
        has = ", ".join(map(repr, sample)) or "none"
        return MissingColumnError(f"column {column!r} is missing: the sample has {has}", column=column)
    if isinstance(error, MissingExtraError):
        return error
    reason = error.message if isinstance(error, PenstockError) else f"cannot be stored: {error}"
    return _kind_of(error)(f"column {column!r} {reason}", column=column)


def _kind_of(error: Exception) -> type[BadSampleError]:
    if isinstance(error, BadSampleError):
        return type(error)
    if isinstance(error, OverflowError):
        return ColumnRangeError
    return ColumnTypeError if isinstance(error, (TypeError, AttributeError)) else ColumnValueError


def decode_all(
    decode: Callable[[Sequence[bytes]], T], pieces: Sequence[bytes], rows: Int64Array, shard: str, column: str
) -> T:
    """Decode the stored values of some rows of a shard; an error says which of them cannot be."""
    try:
        return decode(pieces)
    except Exception as error:
        raise decode_error(decode, pieces, [(shard, row) for row in rows.tolist()], column, error) from error


def decode_error(
    decode: Callable[[Sequence[bytes]], object],
    pieces: Sequence[bytes],
    origins: Sequence[tuple[str, int]],
    column: str,
    error: Exception,
) -> PenstockError:
    """Find the first value of a batch that does not decode, and say from which row of which shard it is."""
    if isinstance(error, MissingExtraError):
        return error
    for (shard, row), piece in zip(origins, pieces, strict=True):
        try:
            decode([piece])
        except Exception as culprit:  # noqa: BLE001  decoders are foreign code on foreign bytes
            return CorruptShardError(
                f"{shard}, row {row}: column {column!r} {_decode_reason(culprit)}", shard=shard, row=row, column=column
            )
    shards = ", ".join(dict.fromkeys(shard for shard, _ in origins))
    return CorruptShardError(f"{shards}: column {column!r} {_decode_reason(error)}", shard=shards, column=column)


def _decode_reason(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return error.message
    return f"cannot be decoded: {type(error).__name__}: {error}"
