"""Rows → files of JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.codecs.compress import parse_compression
from penstock.codecs.stream import STREAM_SUFFIXES
from penstock.errors import ColumnTypeError, ColumnValueError, ConfigError
from penstock.formats.shard_files import OneFileShard, ShardBlocks, ShardFileFormat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.types import Sample


class LinesFormat(ShardFileFormat):
    """JSON lines; each block of a compressed file is a member of its own."""

    def __init__(self, compression: str | None) -> None:
        self._codec, self._suffix = None, ""
        if compression not in (None, "none"):
            name = {"gzip": "gz", "zst": "zstd"}.get(compression, compression)
            self._codec, self._level = parse_compression(name)
            suffixes = [suffix for suffix, codec in STREAM_SUFFIXES.items() if codec == self._codec.name]
            if self._codec.name not in ("gz", "zstd", "bz2"):
                raise ConfigError(f"compression={compression!r} is unknown to jsonl: use one of gzip, zstd, bz2")
            self._suffix = suffixes[0]

    def begin(self, rows: Sequence[Sample]) -> None:
        """Lines have no columns in common."""

    def open(self, folder: Path, number: int) -> ShardBlocks:
        """Begin a file."""
        return _LinesFile(folder / f"shard-{number:05}.jsonl{self._suffix}", self)

    def encode(self, rows: Sequence[Sample], first: int) -> bytes:
        """Return rows as they are stored."""
        lines = b"".join(_line(row, first + number) for number, row in enumerate(rows))
        return lines if self._codec is None else self._codec.compress(lines, self._level)


def _line(row: Sample, number: int) -> bytes:
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        kind = ColumnTypeError if isinstance(error, TypeError) else ColumnValueError
        raise kind(f"row {number} cannot be written as JSON: {error}") from error
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of NumPy, arrays and single values
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")


class _LinesFile(OneFileShard):
    def __init__(self, path: Path, form: LinesFormat) -> None:
        super().__init__(path)
        self._form = form

    def _write(self, rows: Sequence[Sample], first: int) -> None:
        self._file.write(self._form.encode(rows, first))
