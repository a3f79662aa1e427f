"""`save_dataset` and `save_iterator`: all rows of a source, or of anything that gives rows, written to files."""

from __future__ import annotations

from collections.abc import Sized
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, MissingColumnError
from penstock.order.keys import hash_key
from penstock.publish.dataset_writer import WriteStats, open_writer
from penstock.publish.materialise import write_samples
from penstock.publish.settings import SaveSettings
from penstock.publish.sizes import PROBE_ROWS
from penstock.sources.base import ShardedSource

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from typing_extensions import Unpack

    from penstock.publish.dataset_writer import DatasetWriter
    from penstock.publish.settings import FurtherOptions, SaveFormat
    from penstock.sources.iterators import SampleIterator
    from penstock.types import Sample

_ROWS_OF_BLOCK = 1024


def save_dataset(
    source: ShardedSource,
    output_path: str | os.PathLike[str],
    format: SaveFormat = "parquet",  # noqa: A002  what users call it
    max_shard_size: int | str = "500MB",
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    **further: Unpack[FurtherOptions],
) -> WriteStats:
    """Write all samples of a source to files, and say what was written.

    With `resume=True`, a save that was killed goes on after its last whole shard, without reading again what comes
    before wherever the source can seek. `num_shards` of a source that does not know its length takes a pass to count.
    The other arguments are those of `create_writer`.
    """
    settings = SaveSettings(format, max_shard_size, num_shards, compression, overwrite, **further)
    return save_source(source, output_path, settings)


def save_source(source: ShardedSource, output_path: str | os.PathLike[str], settings: SaveSettings) -> WriteStats:
    """Write all samples of a source by settings."""
    if not isinstance(source, ShardedSource):
        raise ConfigError(
            f"source is a {type(source).__name__}, not a ShardedSource: save_iterator takes anything else"
        )
    if source.is_endless:
        raise ConfigError(
            "the source never ends, because its mix restarts: use stop_strategy='all_exhausted' or 'first_exhausted',"
            " epochs=, or LimitedShardedSource"
        )
    num_rows = settings.num_rows
    if num_rows is None and settings.num_shards is not None:
        num_rows = _count(source)
    fingerprint = settings.fingerprint or source.fingerprint
    with open_writer(output_path, replace(settings, num_rows=num_rows, fingerprint=fingerprint)) as writer:
        if not writer.has_all:
            _learn_from(source, writer)
            write_samples(lambda: iter(source), writer)
        return writer.finish()


def _learn_from(source: ShardedSource, writer: DatasetWriter) -> None:
    """Show a writer that begins the first samples, which are then read again."""
    if writer.position is None:
        with closing(iter(source)) as first:
            writer.begin(first.take(PROBE_ROWS))


def save_by_column(
    source: ShardedSource, column: str, num_shards: int, output_path: str | os.PathLike[str], settings: SaveSettings
) -> WriteStats:
    """Write rows that share a value of a column to the same one of so many shards; one without any row is left out.

    All shards are open at once, so a save that was killed begins anew.
    """
    fingerprint = f"{source.fingerprint}-by-{column}-{num_shards}"
    with open_writer(output_path, replace(settings, num_shards=None, fingerprint=fingerprint)) as writer:
        if not writer.has_all:
            _learn_from(source, writer)
            with closing(iter(source)) as samples:
                writer.write_parted(_by_column(samples, column, num_shards))
        return writer.finish()


def _by_column(samples: SampleIterator, column: str, num_shards: int) -> Iterator[tuple[int, list[Sample]]]:
    waiting: list[list[Sample]] = [[] for _ in range(num_shards)]
    while rows := samples.read():
        for row in rows:
            if column not in row:
                raise MissingColumnError(f"a row has no column {column!r} to shard by: it has {', '.join(row)}")
            number = hash_key("shard", repr(row[column])) % num_shards
            waiting[number].append(row)
            if len(waiting[number]) == _ROWS_OF_BLOCK:
                yield number, waiting[number]
                waiting[number] = []
    yield from ((number, rows) for number, rows in enumerate(waiting) if rows)


def _count(source: ShardedSource) -> int:
    lengths = source.shard_lengths()
    if lengths is not None:
        return sum(lengths)
    with closing(iter(source)) as samples:
        return sum(map(len, iter(samples.read, [])))


def save_iterator(
    iterator: Iterable[Sample],
    output_path: str | os.PathLike[str],
    format: SaveFormat = "parquet",  # noqa: A002  what users call it
    max_shard_size: int | str = "500MB",
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    **further: Unpack[FurtherOptions],
) -> WriteStats:
    """Write all rows that anything gives, and say what was written.

    With `resume=True` it must give the same rows again: those that were written are passed over. `num_shards` needs
    `num_rows`, or something with a length. The other arguments are those of `create_writer`.
    """
    if further.get("num_rows") is None and isinstance(iterator, Sized):
        further["num_rows"] = len(iterator)
    settings = SaveSettings(format, max_shard_size, num_shards, compression, overwrite, **further)
    with open_writer(output_path, settings) as writer:
        if not writer.has_all:
            for sample in islice(iterator, writer.num_rows, None):
                writer.write(sample)
        return writer.finish()
