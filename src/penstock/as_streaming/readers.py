"""MosaicML Streaming's `Reader` of one shard; our formats read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.as_streaming.helpers import Array
from penstock.data.mosaic_names import Shard
from penstock.errors import SampleIndexError
from penstock.formats.base import ReadOptions
from penstock.formats.parts import open_shard
from penstock.index.catalog import parse_index
from penstock.index.paths import INDEX_NAME
from penstock.reading.shard_table import check_layouts

if TYPE_CHECKING:
    from penstock.formats.base import ShardReader
    from penstock.index.model import Index


class Reader(Shard, Array):
    """The samples of one shard in a folder of this machine, by number: make it with `reader_from_json`."""

    def __init__(self, dirname: str, split: str | None, index: Index) -> None:
        self._index, self._info = index, index.shards[0]
        super().__init__(self._info)
        self.dirname, self.split = dirname, split or ""
        self._allow_unsafe_types = False
        self._opened: ShardReader | None = None

    def validate(self, allow_unsafe_types: bool) -> None:
        """Refuse a shard that cannot be read; one with `pkl` columns is read only after it was allowed here."""
        check_layouts(self._index, ReadOptions(allow_unsafe_types=allow_unsafe_types))
        self._allow_unsafe_types = allow_unsafe_types
        self._opened = None

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return one sample by its number, counted from 0."""
        if not 0 <= idx < self.samples:
            raise SampleIndexError(f"sample {idx} is out of range: the shard has {self.samples} samples", sample=idx)
        if self._opened is None:
            options = ReadOptions(allow_unsafe_types=self._allow_unsafe_types)
            self._opened = open_shard(Path(self.dirname).expanduser() / self.split, self._info, options)
        return self._opened.read([idx])[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # open files stay in their process


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """Read the shard that an entry of an index describes, `json.load(file)["shards"][0]` for example."""
    document = json.dumps({"version": obj.get("version"), "shards": [obj]})
    return Reader(dirname, split, parse_index(document.encode(), str(Path(dirname) / (split or "") / INDEX_NAME)))
