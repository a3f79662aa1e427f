"""Shards and datasets made for a test, whole or damaged on purpose."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import PenstockError
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.body import ChunkPool
from penstock.index.model import FileInfo, IndexedShard, Part, ShardLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from penstock.formats.base import ShardReader
    from penstock.types import Sample

T = TypeVar("T")


def make_layout(columns: Mapping[str, str], format_name: str = "mds", **settings: Any) -> ShardLayout:
    if format_name != "mds":
        settings.setdefault("newline", "\n")
    return ShardLayout(format=format_name, columns=get_format(format_name).columns(columns), settings=settings)


def build(layout: ShardLayout, samples: Sequence[Sample]) -> list[bytes]:
    """The parts of a shard."""
    builder = get_format(layout.format).builder(layout, ChunkPool())
    for sample in samples:
        builder.append(builder.encode(sample))
    return [b"".join(pieces) for pieces in builder.build()]


def open_parts(
    layout: ShardLayout, parts: Sequence[bytes], num_samples: int, *, checked: bool = False, **options: Any
) -> ShardReader:
    """Open a shard whose parts are in memory; `checked`, all of its samples are looked at."""
    suffixes = get_format(layout.format).part_suffixes
    infos = tuple(
        Part(FileInfo(f"shard.00000.{layout.format}{suffix}", len(part)))
        for part, suffix in zip(parts, suffixes, strict=True)
    )
    form = get_format(layout.format)
    opening = form.open_checked if checked else form.open
    return opening(parts, IndexedShard(layout, num_samples, infos), ReadOptions(**options))


def round_trip(columns: Mapping[str, str], samples: Sequence[Sample], **options: Any) -> list[Sample]:
    """Store samples in an MDS shard and read them back."""
    layout = make_layout(columns)
    reader = open_parts(layout, build(layout, samples), len(samples), **options)
    return reader.read(range(len(samples)))


def store_and_read(encoding: str, value: Any, **options: Any) -> Any:
    """Store a value in a column and read it back, alone and as a column."""
    layout = make_layout({"x": encoding})
    reader = open_parts(layout, build(layout, [{"x": value}]), 1, **options)
    (sample,) = reader.read([0])
    assert len(reader.read_columns([0])["x"]) == 1
    return sample["x"]


def read_stored(encoding: str, stored: bytes, **options: Any) -> Any:
    """Read a value whose stored bytes are given, alone; a column of it must read, or fail, alike."""
    layout = make_layout({"x": encoding})
    reader = open_parts(layout, build(make_layout({"x": "bytes"}), [{"x": stored}]), 1, **options)
    samples, error = attempt(PenstockError, lambda: reader.read([0]))
    columns, same_error = attempt(PenstockError, lambda: reader.read_columns([0]))
    assert (type(same_error), _words(same_error)) == (type(error), _words(error))
    if samples is None or columns is None:
        assert error is not None
        raise error
    assert len(columns["x"]) == len(samples) == 1
    return samples[0]["x"]


def _words(error: PenstockError | None) -> str:
    """An error's message without the address of an object, which Pillow is fond of."""
    return str(error).partition(" object at ")[0]


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the first shard's entry of an index file."""
    path = folder / "index.json"
    document = json.loads(path.read_bytes())
    change(document["shards"][0])
    path.write_text(json.dumps(document))


def attempt(kind: type[PenstockError], action: Callable[[], T]) -> tuple[T | None, PenstockError | None]:
    """What an action gives, or the error of this kind that it raises."""
    try:
        return action(), None
    except kind as error:
        return None, error


def mds_shard(records: Sequence[bytes], *, header: bytes = b"{}") -> bytes:
    """An MDS shard with any records."""
    begin = 4 + 4 * (len(records) + 1) + len(header)
    offsets = [begin]
    for record in records:
        offsets.append(offsets[-1] + len(record))
    return struct.pack(f"<{len(offsets) + 1}I", len(records), *offsets) + header + b"".join(records)
