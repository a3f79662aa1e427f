"""Tokenized documents on their way into rows: as arrays, with the token that ends them, none longer than asked for."""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.errors import DataError, MissingColumnError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from penstock.types import Sample

LongDocuments = Literal["split", "truncate", "drop"]

_LARGEST = np.iinfo(np.int32)


@dataclass(slots=True)
class Document:
    """One document, ready to be packed; a dropped one has a length of 0."""

    columns: dict[str, npt.NDArray[Any]]
    length: int  # with the token that ends it
    has_own_end: bool
    num_dropped: int = 0  # tokens that are left out

    @property
    def is_dropped(self) -> bool:
        """Whether nothing of it is left."""
        return self.length == 0


def prepare_document(
    sample: Sample,
    *,
    input_field: str,
    more_fields: Collection[str],
    eos_token_id: int | None,
    seq_length: int,
    long_documents: LongDocuments,
) -> Document:
    """Make a document of a sample; one that is empty, or too long where such are dropped, is made without tokens."""
    tokens = _as_array(sample, input_field)
    if tokens.dtype.kind == "f":
        if len(tokens):
            raise DataError(f"{input_field!r} of a document must be whole numbers, got {sample[input_field]!r:.80}")
        tokens = tokens.astype(np.int32)  # an empty list has no type
    columns, num_tokens = {input_field: tokens}, len(tokens)
    for name in (*more_fields, "labels") if "labels" in sample else more_fields:
        columns[name] = _as_array(sample, name)
        if len(columns[name]) != num_tokens:
            raise DataError(f"a document has {num_tokens} tokens but {len(columns[name])} values of {name!r}")
    ends_itself = eos_token_id is None or (num_tokens > 0 and tokens.item(-1) == eos_token_id)
    length = num_tokens if ends_itself else num_tokens + 1
    if not num_tokens or (length > seq_length and long_documents == "drop"):
        nothing = {name: values[:0] for name, values in columns.items()}
        return Document(nothing, 0, True, num_tokens)
    if length > seq_length and long_documents == "truncate":
        kept = {name: values[:seq_length] for name, values in columns.items()}
        return Document(kept, seq_length, True, num_tokens - seq_length)
    return Document(columns, length, ends_itself)


def join_documents(
    documents: Sequence[Document], input_field: str, eos_token_id: int | None
) -> dict[str, npt.NDArray[Any]]:
    """Lay the columns of documents end to end, each document with the token that ends it."""
    eos = np.array([eos_token_id or 0], np.int32)
    joined = {}
    for name in documents[0].columns:
        parts = []
        for document in documents:
            try:
                values = document.columns[name]
            except KeyError:
                raise MissingColumnError(f"some documents have {name!r} and some do not") from None
            parts.append(values)
            if not document.has_own_end:
                parts.append(eos if name in (input_field, "labels") else values[-1:])
        joined[name] = np.concatenate(parts)
    return joined


def _as_array(sample: Sample, name: str) -> npt.NDArray[Any]:
    try:
        given = sample[name]
    except KeyError:
        raise MissingColumnError(f"a document has no {name!r}: it has {', '.join(sample)}") from None
    if type(given) is np.ndarray and given.dtype == np.int32 and given.ndim == 1:
        return given
    if type(given) is list:
        with suppress(TypeError, OverflowError):  # takes integers of 32 bits and nothing else, and that quickly
            return np.frombuffer(array("i", given), np.int32)
    try:
        values = given if isinstance(given, np.ndarray) else np.array(given)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name!r} of a document must be a list of numbers, got {given!r:.80}") from error
    if values.ndim != 1 or values.dtype.kind not in "iubf":
        raise DataError(f"{name!r} of a document must be a list of numbers, got {given!r:.80}")
    if values.dtype.kind == "f":
        return values
    is_wide = values.dtype.itemsize >= 4
    if is_wide and len(values) and not _LARGEST.min <= int(values.min()) <= int(values.max()) <= _LARGEST.max:
        raise DataError(f"{name!r} of a document has numbers that do not fit in 32 bits")
    return values.astype(np.int32)
