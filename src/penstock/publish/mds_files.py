"""Rows → MDS shards a block at a time, as saves and caches write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.blocks.block import Block
from penstock.codecs.compress import parse_compression
from penstock.codecs.digest import check_hashes
from penstock.errors import BadSampleError, ConfigError, ExtraColumnError
from penstock.files import write_file
from penstock.formats.base import get_format
from penstock.formats.body import ChunkPool
from penstock.formats.mds import MDSBuilder, encode_columns
from penstock.formats.shard_files import ShardBlocks, ShardFileFormat
from penstock.index.catalog import parse_index
from penstock.index.model import Index, ShardLayout
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import INDEX_NAME
from penstock.publish.shard_queue import PendingShard
from penstock.publish.sizes import check_size_limit, shard_name
from penstock.publish.target import FilesTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.types import Sample

_PLAIN = {str, int, float, bool, list, dict, type(None)}  # what JSON gives back as it was


def infer_columns(rows: Sequence[Sample]) -> dict[str, str]:
    """Choose encodings by some first rows: of plain values that differ in type, or are None, as JSON keeps them."""
    form, columns = get_format("mds"), {}
    for name in rows[0]:
        values = [row[name] for row in rows if name in row]
        kinds = {type(value) for value in values}
        if kinds == {type(None)} or (len(kinds) > 1 and kinds <= _PLAIN):
            columns[name] = "json"
        else:
            columns |= form.infer({name: next(value for value in values if value is not None)})
    return columns


class MDSSaveFormat(ShardFileFormat):
    """MDS shards with the columns of the first rows, and their index."""

    def __init__(
        self,
        compression: str | None,
        max_bytes: int,
        columns: Mapping[str, str] | None = None,
        *,
        drops_extra: bool = True,
        hashes: Sequence[str] = (),
    ) -> None:
        self._compression = None if compression == "none" else compression
        if self._compression is not None:
            parse_compression(self._compression)
        self._columns = None if columns is None else dict(columns)
        self._takes_extra = columns is not None and drops_extra
        self._format = get_format("mds")
        self._hashes = check_hashes(hashes)
        self._max_bytes = check_size_limit(max_bytes)
        self._pool = ChunkPool(self._max_bytes)

    def begin(self, rows: Sequence[Sample]) -> None:
        """Choose encodings by the first rows."""
        if self._columns is None and rows:
            self._columns = infer_columns(rows)

    def state(self) -> dict[str, Any]:
        """Return the columns."""
        return {"columns": self._columns, "takes_extra": self._takes_extra}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over columns."""
        self._columns, self._takes_extra = state["columns"], state["takes_extra"]

    def open(self, folder: Path, number: int) -> ShardBlocks:
        """Begin a shard."""
        if not self._columns:
            raise ConfigError("there is no row, so columns are unknown: pass columns=")
        layout = ShardLayout(
            format="mds",
            columns=self._format.columns(self._columns),
            compression=self._compression,
            hashes=self._hashes,
            size_limit=self._max_bytes,
            settings={},
        )
        return _MDSFile(folder, number, layout, self._pool, takes_extra=self._takes_extra)

    def finish(self, folder: Path, shards: Sequence[dict[str, Any]]) -> list[str]:
        """Write the index."""
        parts = [parse_index(json.dumps(shard["index"]).encode(), "the ledger") for shard in shards]
        index = Index([info for part in parts for info in part.shards])
        write_file(folder / INDEX_NAME, [dump_index(index)], flush=True)
        return [INDEX_NAME]


class _MDSFile(ShardBlocks):
    def __init__(self, folder: Path, number: int, layout: ShardLayout, pool: ChunkPool, *, takes_extra: bool) -> None:
        self._target, self._name, self._layout = FilesTarget(folder), shard_name(number, "mds"), layout
        self._names = {column.name for column in layout.columns}
        self._takes_extra = takes_extra
        self._builder = MDSBuilder(layout, pool, takes_empty=True)  # a text may have no tokens

    def add(self, rows: Block | Sequence[Sample], first: int) -> None:
        """Encode rows: columns at once, if they can be."""
        if isinstance(rows, Block):
            is_known = rows.is_columnar and self._knows(rows.columns())
            encoded = encode_columns(self._layout.columns, rows) if is_known else None
            if encoded is not None:
                self._builder.extend_joined(*encoded)
                self.num_bytes = self._builder.num_bytes
                return
            rows = rows.samples()
        for number, row in enumerate(rows):
            try:
                if not self._knows(row):
                    extra = next(name for name in row if name not in self._names)
                    raise ExtraColumnError(
                        f"column {extra!r} is not in the first row: pass columns= with those that you want",
                        column=extra,
                    )
                self._builder.append(self._builder.encode(row))
            except BadSampleError as error:
                raise type(error)(f"row {first + number}: {error.message}", **error.facts) from error
        self.num_bytes = self._builder.num_bytes

    def _knows(self, names: Iterable[str]) -> bool:
        return self._takes_extra or self._names.issuperset(names)

    def finish(self) -> dict[str, Any]:
        """Store the shard, and return how it stands in an index."""
        pending = PendingShard(builder=self._builder, layout=self._layout, names=(self._name,), target=self._target)
        info = pending.store()
        self.names = [part.stored.basename for part in info.parts]
        return {"index": json.loads(dump_index(Index([info])))}

    def close(self) -> None:
        """Release the memory."""
        self._builder.release()
