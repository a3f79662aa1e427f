"""A package of another author: a format, encodings, an order, a store and a catalog, each known by an entry point."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock import Encoding
from penstock.codecs.unpack import check_whole, drop_pages, release
from penstock.errors import CorruptShardError, IndexFieldError
from penstock.formats.base import ShardFormat
from penstock.formats.body import BodyBuilder
from penstock.formats.column_errors import encode_error
from penstock.formats.rows import check_rows, read_offsets, table_bytes, write_offsets
from penstock.index.model import Column, FileInfo, Index, Part, ShardInfo, ShardLayout
from penstock.order.conveyor import Conveyor
from penstock.publish.writer import Writer
from penstock.storage.base import StoreFamily
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.formats.base import ReadOptions, Rows, ShardBytes, ShardReader
    from penstock.formats.body import ChunkPool
    from penstock.types import Columns, Int64Array, Sample

ENTRY_POINTS = """
[penstock.formats]
acme = acme:AcmeFormat
[penstock.encodings]
acme_point = acme:Point
acme_words = acme:Words
[penstock.orders]
acme = acme:make_order
[penstock.stores]
acme = acme:family
[penstock.catalogs]
acme = acme:AcmeCatalog
"""


class AcmeFormat(ShardFormat):
    """JSON lists of values behind a table of offsets, each letter moved by some places: a setting of its own."""

    setting_fields = ("moved_by",)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        if type(settings["moved_by"]) is not int:
            raise IndexFieldError("has 'moved_by' that is not a number")

    def columns(self, encodings: Mapping[str, str]) -> tuple[Column, ...]:
        return tuple(Column(name, encoding) for name, encoding in sorted(encodings.items()))

    def infer(self, sample: Sample) -> dict[str, str]:
        return dict.fromkeys(sample, "anything")

    def open(self, parts: Sequence[ShardBytes], info: ShardInfo, options: ReadOptions) -> ShardReader:
        self.check(info.layout, options)
        return AcmeReader(parts[0], info, options)

    def builder(self, layout: ShardLayout, pool: ChunkPool) -> AcmeBuilder:
        return AcmeBuilder(layout, pool)


class AcmeBuilder(BodyBuilder):
    sample_overhead = 4

    def __init__(self, layout: ShardLayout, pool: ChunkPool) -> None:
        self._names = [column.name for column in layout.columns]
        self._moved_by = layout.settings["moved_by"]
        super().__init__(pool, num_bytes=table_bytes(0), front_bytes=0)

    def encode(self, sample: Sample) -> bytes:
        name, texts = "", []
        try:
            for name in self._names:
                texts.append(json.dumps(sample[name]))
        except Exception as error:
            raise encode_error(sample, name, error) from error
        return _move(f"[{','.join(texts)}]".encode(), self._moved_by)

    def build(self) -> list[list[Buffer]]:
        ends = self.ends()
        return [[write_offsets(ends, table_bytes(len(ends))), *self.pieces(b"")]]


class AcmeReader:
    def __init__(self, data: ShardBytes, info: ShardInfo, options: ReadOptions) -> None:
        self._data, self._name, self._num_samples = data, info.name, info.num_samples
        self._moved_by = info.layout.settings["moved_by"]
        self._names = [column.name for column in info.layout.columns]
        self._wanted = self._names if options.columns is None else list(options.columns)
        offsets = read_offsets(
            data, info.num_samples, begin=table_bytes(info.num_samples), end=len(data), shard=info.name
        )
        self._offsets = offsets.tolist()

    def __len__(self) -> int:
        return self._num_samples

    def read(self, rows: Rows) -> list[Sample]:
        numbers = check_rows(rows, self._num_samples, self._name).tolist()
        check_whole(self._data, self._name)
        return [self._read_row(row) for row in numbers]

    def read_columns(self, rows: Rows) -> Columns:
        samples = self.read(rows)
        return {name: [sample[name] for sample in samples] for name in self._wanted}

    def drop_pages(self) -> None:
        drop_pages(self._data)

    def close(self) -> None:
        release(self._data)

    def _read_row(self, row: int) -> Sample:
        try:
            values = json.loads(_move(self._data[self._offsets[row] : self._offsets[row + 1]], -self._moved_by))
            sample = dict(zip(self._names, values, strict=True))
        except (ValueError, TypeError) as error:
            raise CorruptShardError(f"{self._name}, row {row}: no list of values", row=row) from error
        return {name: sample[name] for name in self._wanted}


def _move(data: bytes, places: int) -> bytes:
    return bytes((byte + places) % 256 for byte in data)


class AcmeWriter(Writer):
    format_name = "acme"
    format_arguments = frozenset({"moved_by"})


class Point(Encoding):
    """Of a fixed size."""

    num_bytes = 16

    def encode(self, value: Any) -> bytes:
        return struct.pack("<dd", *value)

    def decode(self, data: bytes) -> tuple[float, float]:
        return struct.unpack("<dd", data)


class Words(Encoding):
    """Of any size."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, list):
            raise TypeError("not a list of words")
        return " ".join(value).encode()

    def decode(self, data: bytes) -> list[str]:
        return data.decode().split(" ")


def make_order(lengths: Int64Array, *, seed: int, stream: str, num_lanes: int, window: int) -> Conveyor:
    """Shuffle as always, but otherwise."""
    return Conveyor(lengths, seed=seed + 12345, stream=stream, num_lanes=num_lanes, window=window)


family = StoreFamily(open=lambda settings, _retry, _hooks: LocalStore(Path(urlsplit(settings.url).path)))


class AcmeCatalog:
    """Knows the files of a dataset by their names, sizes and numbers of samples alone."""

    def parse(self, document: dict[str, Any], where: str) -> Index:
        del where
        columns = AcmeFormat().columns(document["columns"])
        layout = ShardLayout(format="acme", columns=columns, settings={"moved_by": document["moved_by"]})
        return Index(
            tuple(
                ShardInfo(layout, num_samples, (Part(FileInfo(name, num_bytes)),))
                for name, num_bytes, num_samples in document["files"]
            )
        )
