"""`save_dataset`, `pretokenize` and the save stage: all rows of a source, or of anything that gives rows, in files."""

from __future__ import annotations

import os
from collections.abc import Sized
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MissingColumnError
from penstock.order.keys import hash_key
from penstock.pipeline.config import DatasetConfig, ObservabilityConfig
from penstock.pipeline.hub import SavedFolder, check_hub_target, push_to_hub
from penstock.pipeline.observing import Observer
from penstock.pipeline.stages import BaseStage, create_source, storage_options
from penstock.publish.dataset_writer import SaveSettings, WriteStats, learn_from, open_writer, save_samples
from penstock.sources.base import ShardedSource
from penstock.sources.tokens.source import TokenizedShardedSource
from penstock.sources.tokens.tokenizers import TokenizerConfig
from penstock.storage.url_names import join_url
from penstock.units import check_whole, checks_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from penstock.pipeline.config import PipelineConfig, SaveStageConfig
    from penstock.pipeline.stages import Data, PipelineContext
    from penstock.publish.dataset_writer import FurtherOptions, SaveFormat, SaveOptions
    from penstock.sources.iterators import SampleIterator
    from penstock.sources.transforms import AnySourceTransform
    from penstock.types import Sample

_ROWS_OF_BLOCK = 1024


@checks_call
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
    settings = replace(settings, num_rows=num_rows, fingerprint=settings.fingerprint or source.fingerprint)
    return save_samples(source.__iter__, output_path, settings)


def save_by_column(
    source: ShardedSource, column: str, num_shards: int, output_path: str | os.PathLike[str], settings: SaveSettings
) -> WriteStats:
    """Write rows that share a value of a column to the same one of so many shards; one without any row is left out.

    All shards are open at once, so a save that was killed begins anew.
    """
    fingerprint = f"{source.fingerprint}-by-{column}-{num_shards}"
    with open_writer(output_path, replace(settings, num_shards=None, fingerprint=fingerprint)) as writer:
        if not writer.has_all:
            learn_from(source.__iter__, writer)
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


# --- Tokens --------------------------------------------------------------------------------------------------


def pretokenize(
    source: ShardedSource,
    transform: AnySourceTransform | None,
    output_path: str | os.PathLike[str],
    output_format: SaveFormat = "parquet",
    *,
    num_proc: int | None = None,
    show_progress: bool = True,
    **options: Unpack[SaveOptions],
) -> WriteStats:
    """Apply a transform to all samples of a source and write what it gives, such as the tokens of a text.

    With `num_proc`, so many processes apply it, in order; it must then be picklable. On a terminal, a bar shows the
    progress unless `show_progress=False`. The other arguments are those of `save_dataset`.
    """
    check_whole("num_proc", num_proc, 0)
    if transform is not None:
        source = source.transform(transform, num_workers=num_proc or 0, worker_kind="process" if num_proc else "thread")
    with Observer(ObservabilityConfig(progress_enabled=show_progress)).watch("save", str(output_path)) as work:
        options.setdefault("on_rows", work.add)
        return save_dataset(source, output_path, output_format, **options)


def tokenize_and_save(
    data_files: str | Path | Sequence[str | Path],
    tokenizer: Any,
    output_path: str | os.PathLike[str],
    output_format: SaveFormat = "parquet",
    max_length: int = 2048,
    *,
    content_field: str = "text",
    additional_fields: Sequence[str] | None = None,
    num_workers: int = 0,
    show_progress: bool = True,
    **options: Unpack[SaveOptions],
) -> WriteStats:
    """Tokenize the text of files and write the tokens: `input_ids`, `attention_mask` and the fields to be kept.

    Args:
        data_files: The files: a path, a URL, a glob, a folder, or a list of these.
        tokenizer: A name or path, a `TokenizerConfig`, or a tokenizer of the tokenizers library or of transformers.
        output_path: Where to write to.
        output_format: `"parquet"`, `"arrow"`, `"jsonl"` or `"mds"`.
        max_length: The most tokens of a sample; longer texts are cut. A `TokenizerConfig` says that itself.
        content_field: Where the text is.
        additional_fields: Fields to keep beside the tokens.
        num_workers: How many threads tokenize.
        show_progress: Show a bar, on a terminal.
        **options: Those of `save_dataset`; `storage_options` are also those of the files.
    """
    source = create_source(
        DatasetConfig(data_files=data_files, content_field=content_field), options.get("storage_options")
    )
    if isinstance(tokenizer, TokenizerConfig):
        config, given = tokenizer, None
    else:
        config = TokenizerConfig(tokenizer if isinstance(tokenizer, str) else "given", max_length=max_length)
        given = None if isinstance(tokenizer, str) else tokenizer
    tokens = TokenizedShardedSource(source, given, config, content_field, additional_fields, num_workers=num_workers)
    return pretokenize(tokens, None, output_path, output_format, show_progress=show_progress, **options)


# --- The stage -----------------------------------------------------------------------------------------------


class SaveStage(BaseStage):
    """Writes each source to a folder of its name, or to where its dataset says; and to the Hub, if asked to."""

    name = "save"

    def __init__(self, config: SaveStageConfig) -> None:
        super().__init__(config)
        self.saved: dict[str, WriteStats] = {}

    def validate_config(self, config: PipelineConfig) -> list[str]:
        """Check what would fail only after hours."""
        stage: SaveStageConfig = self.config
        if stage.enabled:
            for name, dataset in config.named.items():
                self._settings(config, dataset, name)
            if stage.push_to_hub:
                paths = [path for dataset in config.datasets if (path := dataset.save_path)]
                check_hub_target(stage.hub_repo_id, [os.fspath(stage.output_dir), *paths])
        return []

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Save all sources, and go on with them."""
        stage: SaveStageConfig = self.config
        if not stage.enabled:
            return data
        config = context.config
        places: dict[str, str] = {}
        for name, source in data.items():
            dataset = config.named.get(name) or DatasetConfig(data_files=name)  # of a mix
            places[name] = dataset.save_path or join_url(os.fspath(stage.output_dir), name)
            settings = self._settings(config, dataset, name)
            with context.observer.watch("save", name) as work:
                settings = replace(settings, on_rows=work.add)
                if dataset.shard_column is None:
                    self.saved[name] = save_source(source, places[name], settings)
                else:
                    count = settings.num_shards or 1
                    self.saved[name] = save_by_column(source, dataset.shard_column, count, places[name], settings)
        if stage.push_to_hub and stage.hub_repo_id:
            push_to_hub(
                [SavedFolder.open(name, place) for name, place in places.items()],
                stage.hub_repo_id,
                private=stage.hub_private,
                token=stage.hub_token,
                storage_options=storage_options(config),
            )
        return data

    def _settings(self, config: PipelineConfig, dataset: DatasetConfig, name: str) -> SaveSettings:
        stage: SaveStageConfig = self.config
        num_shards = dataset.num_shards or stage.num_shards
        if dataset.shard_column is not None and num_shards is None:
            raise ConfigError(f"shard_column= of dataset {name!r} needs num_shards=, to divide its values among them")
        of_stage = stage.arguments(
            "enabled", "output_dir", "push_to_hub", "hub_repo_id", "hub_private", "hub_token", "format", "num_shards"
        )
        form = dataset.save_format or stage.format
        return SaveSettings(form, num_shards=num_shards, storage_options=storage_options(config), **of_stage)
