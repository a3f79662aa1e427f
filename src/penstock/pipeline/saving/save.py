"""`save_dataset` and `save_iterator`: all rows of a source, or of anything that gives rows, written to files."""

from __future__ import annotations

from collections.abc import Sized
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.pipeline.saving.blocks import PROBE_ROWS
from penstock.pipeline.saving.writer import DatasetWriter, FormatName, WriteStats, create_writer
from penstock.sources.base import ShardedSource

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from penstock.types import Sample


def save_dataset(
    source: ShardedSource,
    output_path: str | os.PathLike[str],
    format: FormatName = "parquet",  # noqa: A002  what users call it
    max_shard_size: int | str = "500MB",
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    *,
    resume: bool = False,
    schema: Any = None,
    columns: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    waits_for_others: bool = False,
) -> WriteStats:
    """Write all samples of a source to files, and say what was written.

    With `resume=True`, a save that was killed goes on after its last whole shard, without reading again what comes
    before wherever the source can seek. `num_shards` of a source that does not know its length takes a pass to count.
    The other arguments are those of `create_writer`.
    """
    if not isinstance(source, ShardedSource):
        raise ConfigError(
            f"source is a {type(source).__name__}, not a ShardedSource: save_iterator takes anything else"
        )
    if source.is_endless:
        raise ConfigError(
            "the source never ends, because its mix restarts: use stop_strategy='all_exhausted' or 'first_exhausted',"
            " epochs=, or LimitedShardedSource"
        )
    with create_writer(
        output_path,
        format,
        max_shard_size,
        num_shards,
        compression,
        overwrite,
        resume=resume,
        num_rows=None if num_shards is None else _count(source),
        schema=schema,
        columns=columns,
        fingerprint=source.fingerprint,
        storage_options=storage_options,
        waits_for_others=waits_for_others,
    ) as writer:
        if not writer.has_all:
            _write_source(writer, source)
        return writer.finish()


def _write_source(writer: DatasetWriter, source: ShardedSource) -> None:
    samples = iter(source)
    try:
        if writer.position is not None:
            samples.load_state_dict(writer.position)
        else:
            first = iter(source)
            writer.begin(first.take(PROBE_ROWS))
            first.close()
        while rows := samples.take(writer.num_wanted):
            writer.write_block(rows, samples.state_dict)
    finally:
        samples.close()


def _count(source: ShardedSource) -> int:
    lengths = source.shard_lengths()
    if lengths is not None:
        return sum(lengths)
    samples, count = iter(source), 0
    while rows := samples.read():
        count += len(rows)
    samples.close()
    return count


def save_iterator(
    samples: Iterable[Sample],
    output_path: str | os.PathLike[str],
    format: FormatName = "parquet",  # noqa: A002  what users call it
    max_shard_size: int | str = "500MB",
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    *,
    resume: bool = False,
    num_rows: int | None = None,
    schema: Any = None,
    columns: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteStats:
    """Write all rows that anything gives, and say what was written.

    With `resume=True` it must give the same rows again: those that were written are passed over. `num_shards` needs
    `num_rows`, or something with a length. The other arguments are those of `create_writer`.
    """
    if num_rows is None and isinstance(samples, Sized):
        num_rows = len(samples)
    with create_writer(
        output_path,
        format,
        max_shard_size,
        num_shards,
        compression,
        overwrite,
        resume=resume,
        num_rows=num_rows,
        schema=schema,
        columns=columns,
        storage_options=storage_options,
    ) as writer:
        if not writer.has_all:
            for sample in islice(samples, writer.num_rows, None):
                writer.write(sample)
        return writer.finish()
