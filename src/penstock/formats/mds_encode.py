"""Samples → MDS records: a quick way, compiled for the columns, and a careful way that finds what is wrong."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnSizeError, ColumnTypeError, ShardTooLargeError
from penstock.formats.column_errors import encode_error
from penstock.formats.encodings.arrays import ArrayEncoding
from penstock.formats.encodings.base import Encoding, FixedEncoding
from penstock.formats.encodings.scalars import NUMPY_TYPES, IntEncoding, NumberEncoding
from penstock.formats.encodings.table import get_encoding
from penstock.formats.encodings.text import StrEncoding
from penstock.index.model import MAX_SHARD_BYTES
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.index.model import Column
    from penstock.types import Sample


def compile_encoder(columns: Sequence[Column], *, takes_empty: bool = False) -> Callable[[Sample], bytes]:
    """Make the function that turns a sample of these columns into a record.

    A record is the sizes of the variable values, then all values. The function is written out for the columns, with
    neighbouring numbers packed in one call, which makes it three times as fast as a loop. Only kinds of columns enter
    its source text; names and encoders are values. What the quick way cannot take, the careful way decides:
    so also for arrays without elements, which it refuses unless `takes_empty`.
    """
    source, values = _write_source(columns)
    values["careful"] = _CarefulEncoder(columns, takes_empty=takes_empty)
    values["join"] = b"".join
    exec(source, values)  # noqa: S102
    encoder: Callable[[Sample], bytes] = values["encode"]
    return encoder


def _write_source(columns: Sequence[Column]) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {}
    statements: list[str] = []
    sizes = [f"len(p{i})" for i, column in enumerate(columns) if column.num_bytes is None]
    pieces: list[str] = []
    run_codes, run_items = "I" * len(sizes), sizes  # numbers that stand side by side, packed together

    def end_run() -> None:
        nonlocal run_codes, run_items
        if run_codes:
            pack = f"pack{len(pieces)}"
            values[pack] = struct.Struct("<" + run_codes).pack
            pieces.append(f"{pack}({', '.join(run_items)})")
        run_codes, run_items = "", []

    for i, column in enumerate(columns):
        encoding = get_encoding(column.encoding)
        values[f"k{i}"], values[f"e{i}"] = column.name, encoding.encode
        statements.append(f"v{i} = sample[k{i}]")
        if isinstance(encoding, IntEncoding):  # packing would take truth values too
            statements.append(f"if v{i}.__class__ is not int: return careful(sample)")
        if isinstance(encoding, NumberEncoding):
            values[f"t{i}"] = NUMPY_TYPES[encoding.plain_type]
            test = f"v{i}.__class__ is not {encoding.plain_type.__name__} and v{i}.__class__ not in t{i}"
            if encoding.plain_type is float:  # whole numbers up to here are the same as floats
                most = 2 ** (np.finfo(column.encoding).nmant + 1)
                test += f" and not (v{i}.__class__ is int and {-most} <= v{i} <= {most})"
            statements.append(f"if {test}: return careful(sample)")
        # Packing goes through 64 bits, which some bits of a NaN do not survive.
        if column.encoding in ("float16", "float32"):
            statements.append(f"if v{i} != v{i}: return careful(sample)")
        if isinstance(encoding, (NumberEncoding, IntEncoding)):
            run_codes, run_items = run_codes + encoding.code, [*run_items, f"v{i}"]
            continue
        end_run()
        if isinstance(encoding, StrEncoding):
            values[f"e{i}"] = str.encode
        if isinstance(encoding, FixedEncoding):
            statements.append(f"p{i} = e{i}(v{i})")
        else:
            values[f"s{i}"] = encoding.check_stored
            statements.append(f"p{i} = {_encoded(i, encoding)}")
            if column.num_bytes is not None:
                statements.append(
                    f"if p{i}.__class__ is not bytes or len(p{i}) != {column.num_bytes}: return careful(sample)"
                )
        pieces.append(f"p{i}")
    end_run()
    body = "".join(f"        {statement}\n" for statement in statements)
    joined = " + ".join(pieces) if len(pieces) <= 2 else f"join(({', '.join(pieces)}))"
    return (
        "def encode(sample):\n"
        "    try:\n"
        f"{body}"
        f"        return {joined}\n"
        "    except Exception:\n"
        "        return careful(sample)\n"
    ), values


def _encoded(i: int, encoding: Encoding) -> str:
    """Write how a value of any length is encoded, unless it comes as it is stored."""
    is_checked = type(encoding).check_stored is not Encoding.check_stored
    stored = f"s{i}(v{i})" if is_checked else f"v{i}"
    encoded = f"{stored} if isinstance(v{i}, bytes) else e{i}(v{i})"
    if isinstance(encoding, StrEncoding):  # nearly all that comes is text, and this the shortest way
        return f"v{i}.encode() if v{i}.__class__ is str else {encoded}"
    return encoded


class _CarefulEncoder:
    """Encodes a sample column by column, so that an error can name the column."""

    def __init__(self, columns: Sequence[Column], *, takes_empty: bool = False) -> None:
        encodings = [get_encoding(column.encoding) for column in columns]
        if takes_empty:
            encodings = [each.taking_empty() if isinstance(each, ArrayEncoding) else each for each in encodings]
        self._columns = [(each.name, how, each.num_bytes) for each, how in zip(columns, encodings, strict=True)]

    def __call__(self, sample: Sample) -> bytes:
        sizes: list[int] = []
        pieces: list[bytes] = []
        name = ""
        try:
            for name, encoding, num_bytes in self._columns:
                value = sample[name]
                # Whoever hands in bytes has encoded the value already.
                piece = encoding.check_stored(value) if isinstance(value, bytes) else encoding.encode(value)
                if not isinstance(piece, bytes):
                    raise ColumnTypeError(f"is encoded as {type(piece).__name__}, but an encoding must return bytes")
                if num_bytes is None:
                    sizes.append(len(piece))
                elif len(piece) != num_bytes:
                    raise ColumnSizeError(f"takes {num_bytes} bytes, got {len(piece)}")
                pieces.append(piece)
        except Exception as error:
            raise encode_error(sample, name, error) from error
        if sum(sizes) > MAX_SHARD_BYTES:
            raise ShardTooLargeError(f"the sample takes {format_bytes(sum(sizes))}, but a shard must stay below 4 GB")
        return b"".join([struct.pack(f"<{len(sizes)}I", *sizes), *pieces])
