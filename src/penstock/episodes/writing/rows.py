"""Rows of episodes as Arrow tables, and Parquet files that are followed by the next one when they are large."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.episodes.info import Feature

_PURPOSE = "writing robot episodes"


def table_of(columns: Mapping[str, Sequence[Any]], features: Mapping[str, Feature]) -> Any:
    """Make the rows of an episode, by column, with the description that the Hub's readers look for."""
    arrow = require("pyarrow", extra="video", purpose=_PURPOSE)
    arrays = [_column(arrow, columns[key], feature) for key, feature in features.items()]
    described = {"info": {"features": {key: _hub_feature(feature) for key, feature in features.items()}}}
    return arrow.table(arrays, names=list(features)).replace_schema_metadata({"huggingface": json.dumps(described)})


def _column(arrow: Any, values: Sequence[Any], feature: Feature) -> Any:
    if feature.is_image:
        kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        names = [f"frame-{number:06d}.png" for number in range(len(values))]
        return arrow.array([{"bytes": value, "path": name} for value, name in zip(values, names, strict=True)], kind)
    if feature.dtype == "string":
        kind = arrow.string()
        return arrow.array(values, kind if feature.shape == (1,) else arrow.list_(kind, feature.shape[0]))
    numbers = np.stack(values)
    column = arrow.array(np.ascontiguousarray(numbers).ravel())
    if feature.shape == (1,):
        return column
    if len(feature.shape) == 1:
        return arrow.FixedSizeListArray.from_arrays(column, feature.shape[0])
    for length in reversed(feature.shape):
        offsets = np.arange(0, len(column) + 1, length, dtype=np.int32)
        column = arrow.ListArray.from_arrays(arrow.array(offsets), column)
    return column


def _hub_feature(feature: Feature) -> dict[str, Any]:
    if feature.is_image:
        return {"_type": "Image"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


class FileNumbers:
    """Counts files: so many in a chunk, then the next chunk."""

    def __init__(self, chunks_size: int) -> None:
        self._chunks_size = chunks_size
        self.chunk, self.file = 0, -1

    def next(self) -> None:
        """Go on to the next file."""
        self.chunk, self.file = (
            (self.chunk + 1, 0) if self.file + 1 == self._chunks_size else (self.chunk, self.file + 1)
        )


class ParquetFiles:
    """Writes tables one after the other, each a row group, to a new file whenever one would get too large."""

    def __init__(self, root: Path, template: str, limit_bytes: float, chunks_size: int) -> None:
        self._root, self._template, self._limit = root, template, limit_bytes
        self.numbers = FileNumbers(chunks_size)
        self._file: Any = None
        self._writer: Any = None
        self._schema: Any = None

    def make_room(self, num_bytes: int) -> None:
        """Begin a new file if this one has no room for so many bytes more."""
        if self._writer is None or self._file.tell() + num_bytes > self._limit:
            self.close()
            self.numbers.next()

    def add(self, table: Any) -> None:
        """Write a table to the file of now; all have the columns of the first one."""
        if self._writer is None:
            parquet = require("pyarrow.parquet", extra="video", purpose=_PURPOSE)
            path = self._root / self._template.format(chunk_index=self.numbers.chunk, file_index=self.numbers.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._schema = self._schema or table.schema
            self._file = path.open("xb")
            self._writer = parquet.ParquetWriter(self._file, self._schema, compression="snappy")
        self._writer.write_table(table.cast(self._schema), row_group_size=max(1, len(table)))

    def close(self) -> None:
        """Finish the file of now."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            self._writer = self._file = None
