"""Rows → files of one shard, block by block: Parquet, Arrow, JSON lines, MDS."""

from __future__ import annotations

import base64
import hashlib
import json
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.codecs.compress import parse_compression
from penstock.codecs.stream import STREAM_SUFFIXES
from penstock.errors import (
    ColumnTypeError,
    ColumnValueError,
    ConfigError,
    ExtraColumnError,
)
from penstock.formats.columnar.arrow_types import pyarrow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO

    from penstock.types import Sample

_COPY_BYTES = 1 << 20


class ShardFileFormat(ABC):
    """One format: begins shards, and keeps what all of them have in common, such as columns."""

    def __init__(self, compression: str | None) -> None:
        self.compression = compression

    @abstractmethod
    def begin(self, rows: Sequence[Sample]) -> None:
        """Learn the columns from first rows."""

    @abstractmethod
    def open(self, folder: Path, number: int) -> OpenShardFile:
        """Begin a shard."""

    def state(self) -> dict[str, Any]:
        """Give the columns as plain values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on with the columns that `state` gave."""

    def finish(self, folder: Path, shards: Sequence[dict[str, Any]]) -> list[str]:  # noqa: ARG002
        """Write what the dataset needs beside its shards, and give the names of these files."""
        return []


class OpenShardFile(ABC):
    """One shard in the making."""

    num_bytes: int  # stored so far

    @abstractmethod
    def add(self, rows: Sequence[Sample], first: int) -> None:
        """Write rows, of which the first has this number in the dataset."""

    @abstractmethod
    def finish(self) -> tuple[list[str], dict[str, Any]]:
        """Write the end of the shard; give the names of its files, and what to remember of it."""

    def close(self) -> None:  # noqa: B027
        """Close what is open, of a shard that will not be finished."""


def describe_file(folder: Path, name: str) -> dict[str, Any]:
    """Give name, size and digest of a finished file."""
    hasher = hashlib.sha256()
    path = folder / name
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            hasher.update(chunk)
    return {"name": name, "bytes": path.stat().st_size, "sha256": hasher.hexdigest()}


# --- Parquet and Arrow --------------------------------------------------------------------------------------

_COMPRESSIONS: dict[str, tuple[str | None, ...]] = {
    "parquet": (None, "none", "snappy", "gzip", "zstd", "lz4", "brotli"),
    "arrow": (None, "none", "zstd", "lz4"),
}


class ColumnarSaveFormat(ShardFileFormat):
    """Parquet or Arrow files, all with the columns of the first rows."""

    def __init__(self, name: str, compression: str | None, schema: Any = None) -> None:
        super().__init__(compression)
        if compression not in _COMPRESSIONS[name]:
            known = ", ".join(str(each) for each in _COMPRESSIONS[name][1:])
            raise ConfigError(f"compression={compression!r} is unknown to {name}: use one of {known}")
        self._name, self.schema = name, schema
        pyarrow()

    def begin(self, rows: Sequence[Sample]) -> None:
        """Take all columns that the first rows have, with types that fit all of them."""
        if self.schema is None:
            pa = pyarrow()
            names = list(dict.fromkeys(name for row in rows for name in row))
            columns = [_column([row.get(name) for row in rows], name, None, 0) for name in names]
            self.schema = pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)])

    def state(self) -> dict[str, Any]:
        """Give the schema."""
        return {"schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a schema."""
        pa = pyarrow()
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(state["schema"])))

    def open(self, folder: Path, number: int) -> OpenShardFile:
        """Begin a file."""
        name = f"shard-{number:05}.{self._name}"
        return _ColumnarFile(folder, name, self)

    def writer(self, sink: Any) -> Any:
        """Make the library's writer of a file."""
        pa = pyarrow()
        if self._name == "arrow":
            codec = None if self.compression == "none" else self.compression
            return pa.ipc.new_file(sink, self.schema, options=pa.ipc.IpcWriteOptions(compression=codec))
        from pyarrow import parquet

        return parquet.ParquetWriter(sink, self.schema, compression=self.compression or "snappy")

    def batch(self, rows: Sequence[Sample], first: int) -> Any:
        """Turn rows into a table of the schema; what does not fit it is an error that names row and column."""
        pa = pyarrow()
        known = set(self.schema.names)
        for number, row in enumerate(rows):
            if not known.issuperset(row):
                extra = next(name for name in row if name not in known)
                raise ExtraColumnError(
                    f"row {first + number} has a column {extra!r} that the first rows have not: pass schema=, a"
                    " pyarrow schema with all columns",
                    column=extra,
                )
        columns = [
            _column([row.get(field.name) for row in rows], field.name, field.type, first) for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)


def _column(values: list[Any], name: str, kind: Any, first: int) -> Any:
    pa = pyarrow()
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        if len(values) > 1:  # find the row that is to blame
            for number, value in enumerate(values):
                with suppress(ColumnTypeError):
                    _column([value], name, kind, first + number)
                    continue
                raise ColumnTypeError(_misfit(first + number, name, kind, error), column=name) from error
        raise ColumnTypeError(_misfit(first, name, kind, error), column=name) from error


def _misfit(row: int, name: str, kind: Any, error: Exception) -> str:
    expected = "cannot be stored" if kind is None else f"does not fit {kind}, the type in the first rows"
    return f"row {row}: column {name!r} {expected}: {error}. Pass schema= if values differ"


class _ColumnarFile(OpenShardFile):
    def __init__(self, folder: Path, name: str, form: ColumnarSaveFormat) -> None:
        self._name, self._form = name, form
        self._file: BinaryIO = (folder / name).open("wb")
        self._writer = form.writer(self._file)
        self.num_bytes = 0

    def add(self, rows: Sequence[Sample], first: int) -> None:
        self._writer.write_table(self._form.batch(rows, first))
        self.num_bytes = self._file.tell()

    def finish(self) -> tuple[list[str], dict[str, Any]]:
        self.close()
        return [self._name], {}

    def close(self) -> None:
        self._writer.close()
        self._file.close()


# --- JSON lines ---------------------------------------------------------------------------------------------


class LinesFormat(ShardFileFormat):
    """JSON lines; each block of a compressed file is a member of its own."""

    def __init__(self, compression: str | None) -> None:
        super().__init__(None if compression == "none" else compression)
        self._codec = None
        self.suffix = ""
        if self.compression is not None:
            name = {"gzip": "gz", "zst": "zstd"}.get(self.compression, self.compression)
            self._codec, self._level = parse_compression(name)
            suffixes = [suffix for suffix, codec in STREAM_SUFFIXES.items() if codec == self._codec.name]
            if self._codec.name not in ("gz", "zstd", "bz2"):
                raise ConfigError(f"compression={compression!r} is unknown to jsonl: use one of gzip, zstd, bz2")
            self.suffix = suffixes[0]

    def begin(self, rows: Sequence[Sample]) -> None:
        """Lines have no columns in common."""

    def open(self, folder: Path, number: int) -> OpenShardFile:
        """Begin a file."""
        return _LinesFile(folder, f"shard-{number:05}.jsonl{self.suffix}", self)

    def encode(self, rows: Sequence[Sample], first: int) -> bytes:
        """Give rows as they are stored."""
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


class _LinesFile(OpenShardFile):
    def __init__(self, folder: Path, name: str, form: LinesFormat) -> None:
        self._name, self._form = name, form
        self._file: BinaryIO = (folder / name).open("wb")
        self.num_bytes = 0

    def add(self, rows: Sequence[Sample], first: int) -> None:
        self.num_bytes += self._file.write(self._form.encode(rows, first))

    def finish(self) -> tuple[list[str], dict[str, Any]]:
        self.close()
        return [self._name], {}

    def close(self) -> None:
        self._file.close()
