"""Rows → Parquet and Arrow files."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import ColumnTypeError, ConfigError, ExtraColumnError
from penstock.formats.columnar.arrow_types import pyarrow
from penstock.formats.shard_files import OneFileShard, ShardBlocks, ShardFileFormat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.types import Sample

_COMPRESSIONS: dict[str, tuple[str | None, ...]] = {
    "parquet": (None, "none", "snappy", "gzip", "zstd", "lz4", "brotli"),
    "arrow": (None, "none", "zstd", "lz4"),
}


class ColumnarSaveFormat(ShardFileFormat):
    """Parquet or Arrow files, all with the columns of the first rows."""

    def __init__(self, name: str, compression: str | None, schema: Any = None) -> None:
        if compression not in _COMPRESSIONS[name]:
            known = ", ".join(str(each) for each in _COMPRESSIONS[name][1:])
            raise ConfigError(f"compression={compression!r} is unknown to {name}: use one of {known}")
        self._name, self.schema, self._compression = name, schema, compression
        pyarrow()

    def begin(self, rows: Sequence[Sample]) -> None:
        """Take all columns that the first rows have, with types that fit all of them."""
        if self.schema is None:
            pa = pyarrow()
            names = list(dict.fromkeys(name for row in rows for name in row))
            columns = [_column([row.get(name) for row in rows], name, None, 0) for name in names]
            self.schema = pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)])

    def state(self) -> dict[str, Any]:
        """Return the schema."""
        return {"schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a schema."""
        pa = pyarrow()
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(state["schema"])))

    def open(self, folder: Path, number: int) -> ShardBlocks:
        """Begin a file."""
        return _ColumnarFile(folder / f"shard-{number:05}.{self._name}", self)

    def writer(self, sink: Any) -> Any:
        """Make the library's writer of a file."""
        pa = pyarrow()
        if self._name == "arrow":
            codec = None if self._compression == "none" else self._compression
            return pa.ipc.new_file(sink, self.schema, options=pa.ipc.IpcWriteOptions(compression=codec))
        from pyarrow import parquet

        return parquet.ParquetWriter(sink, self.schema, compression=self._compression or "snappy")

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


class _ColumnarFile(OneFileShard):
    def __init__(self, path: Path, form: ColumnarSaveFormat) -> None:
        super().__init__(path)
        self._form, self._writer = form, form.writer(self._file)

    def _write(self, rows: Sequence[Sample], first: int) -> None:
        self._writer.write_table(self._form.batch(rows, first))

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()
        super().close()
