"""Errors of encodings become errors that name the column, the shard and the row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.errors import (
    ColumnRangeError,
    ColumnTypeError,
    ColumnValueError,
    CorruptShardError,
    MissingColumnError,
    MissingExtraError,
)
from penstock.formats.column_errors import decode_all, encode_error

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("error", "kind"),
    [(TypeError("x"), ColumnTypeError), (OverflowError("x"), ColumnRangeError), (OSError("x"), ColumnValueError)],
)
def test_a_foreign_error_becomes_one_of_its_kind(error: Exception, kind: type[Exception]) -> None:
    found = encode_error({"a": 1}, "a", error)
    assert type(found) is kind
    assert str(found) == "column 'a' cannot be stored: x"


def test_a_sample_that_is_none_or_lacks_the_column() -> None:
    assert isinstance(encode_error({"b": 1}, "a", KeyError("a")), MissingColumnError)
    assert str(encode_error([1], "a", TypeError())) == "a sample must be a dict, got list"


def parse(pieces: Sequence[bytes]) -> list[int]:
    return [int(piece) for piece in pieces]


def test_the_first_row_that_does_not_decode_is_named() -> None:
    assert decode_all(parse, [b"1", b"2"], np.array([4, 5]), "a", "x") == [1, 2]
    with pytest.raises(CorruptShardError, match="^a, row 5: column 'x' cannot be decoded: ValueError") as caught:
        decode_all(parse, [b"1", b"no", b"nor"], np.array([4, 5, 6]), "a", "x")
    assert caught.value.facts["row"] == 5


def test_values_that_fail_only_together() -> None:
    def few(pieces: Sequence[bytes]) -> None:
        if len(pieces) > 1:
            raise ColumnValueError("holds too much")

    with pytest.raises(CorruptShardError, match="^a: column 'x' holds too much$"):
        decode_all(few, [b"1", b"2"], np.array([0, 1]), "a", "x")


def test_a_missing_library_stays_what_it_is() -> None:
    def lacking(pieces: Sequence[bytes]) -> None:
        raise MissingExtraError("pip install it")

    with pytest.raises(MissingExtraError, match="pip install it"):
        decode_all(lacking, [b"1"], np.array([0]), "a", "x")
