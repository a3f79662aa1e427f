"""`try_codecs`: what codecs, levels and sizes of shards make of a sample of the user's own data."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.conversion.rows import Piece, TaskRows, as_chain
from penstock.data.local import LocalDataset
from penstock.errors import ConfigError, EmptyDatasetError
from penstock.publish.dataset_writer import SaveSettings, open_writer
from penstock.publish.mds_files import infer_columns
from penstock.sources.shuffling import size_of
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.sources.base import ShardedSource
    from penstock.types import Sample

COMPRESSIONS = (None, "lz4", "snappy", "zstd:1", "zstd:3", "zstd:9", "gz:6", "br:4")
_ROWS_AT_ONCE = 256
_LEAST_PART_OF_READING = 0.5  # of the quickest one's rate, for a codec to be worth its size


@dataclass(frozen=True, slots=True)
class CodecTrial:
    """What one way of storing has made of the sample.

    Attributes:
        compression: The codec and level; None: none.
        size_limit: The size of a shard before compression.
        num_bytes: What all files take.
        part: Which part of the uncompressed bytes that is.
        write_rate: Uncompressed bytes written a second, by one core.
        read_rate: Uncompressed bytes read a second, by one core.
        is_advised: Whether this is the one to take.
    """

    compression: str | None
    size_limit: str
    num_bytes: int
    part: float
    write_rate: float
    read_rate: float
    is_advised: bool = False


def try_codecs(
    source: ShardedSource,
    *,
    columns: Mapping[str, str] | None = None,
    transform: Any = None,
    compressions: Sequence[str | None] = COMPRESSIONS,
    size_limits: Sequence[str] = ("16mb", "64mb"),
    sample_size: int | str = "128mb",
) -> list[CodecTrial]:
    """Write first samples of a source as MDS in several ways, read them again, and return what came of each."""
    rows = _sample_of(source, () if transform is None else as_chain(transform), parse_bytes(sample_size))
    chosen = dict(columns or infer_columns(rows))
    sizes: dict[str, int] = {}
    trials = []
    with tempfile.TemporaryDirectory(prefix="penstock-codecs-") as folder:
        for number, compression in enumerate(compressions):
            for limit in size_limits:
                place = Path(folder, f"{number}-{limit}")
                settings = SaveSettings("mds", limit, None, compression, columns=chosen)
                try:
                    wrote, read, stored = _timed(rows, place, settings)
                except ConfigError:  # a codec that is not installed
                    continue
                raw = sizes.setdefault(limit, stored)  # the first way has no codec
                trials.append(CodecTrial(compression, limit, stored, stored / raw, raw / wrote, raw / read))
    return advised(trials)


def advised(trials: Sequence[CodecTrial]) -> list[CodecTrial]:
    """Mark the smallest of those that are read at a good part of the highest rate."""
    quick = [each for each in trials if each.read_rate >= _LEAST_PART_OF_READING * max(t.read_rate for t in trials)]
    best = min(quick, key=lambda each: (round(each.part, 2), -each.read_rate))
    return [replace(each, is_advised=each is best) for each in trials]


def _sample_of(source: ShardedSource, transforms: Any, most_bytes: int) -> list[Sample]:
    rows: list[Sample] = []
    num_bytes = 0
    with closing(TaskRows(source, [Piece(name) for name in source.shard_names], tuple(transforms))) as taken:
        while num_bytes < most_bytes and (some := taken.take(_ROWS_AT_ONCE)):
            rows += some
            num_bytes += sum(map(size_of, some))
    if not rows:
        raise EmptyDatasetError("there is no sample to try codecs with")
    return rows


def _timed(rows: Sequence[Sample], place: Path, settings: SaveSettings) -> tuple[float, float, int]:
    """Return the seconds that writing and reading takes, and the bytes that are stored."""
    begin = time.process_time()
    with open_writer(place, settings) as writer:
        for row in rows:
            writer.write(row)
        stored = writer.finish().total_bytes
    written = time.process_time()
    dataset = LocalDataset(place, image_decoder="raw")
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        dataset[first : first + _ROWS_AT_ONCE]
    return written - begin, time.process_time() - written, stored
