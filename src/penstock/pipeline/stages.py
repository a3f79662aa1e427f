"""The stages of a pipeline, from sources to sources: what a stage is, and those that are there."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.pipeline.config import DatasetConfig, SourceStageConfig
from penstock.pipeline.observing import Observer
from penstock.scan.patterns import is_list
from penstock.sources.composite import CompositeShardedSource, LimitedShardedSource
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.sources.files.of_any_type import open_files
from penstock.sources.memory import MemoryShardedSource
from penstock.sources.mix.source import MixedShardedSource
from penstock.sources.pack.source import PackedShardedSource
from penstock.sources.tokens.source import TokenizedShardedSource
from penstock.sources.tokens.tokenizers import TokenizerConfig, TokenizerManager
from penstock.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.pipeline.config import PipelineConfig
    from penstock.sources.base import ShardedSource
    from penstock.types import Sample

    Data = dict[str, ShardedSource]  # by dataset


@dataclass(slots=True)
class PipelineContext:
    """What all stages of a pipeline share.

    Args:
        config: The settings of the pipeline.
        seed: What order and mixing depend on.
        step: How many batches of the current pass have been delivered.
        epoch: The number of the current pass.
        metrics: Counts by stage and dataset, such as `metrics["cache/web"]["samples"]`.
        observer: Shows progress, writes the log, and fills `metrics`.
    """

    config: PipelineConfig
    seed: int | None = None
    step: int = 0
    epoch: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    observer: Observer = None  # type: ignore[assignment]  # made below

    def __post_init__(self) -> None:
        if self.observer is None:
            self.observer = Observer(self.config.observability)
        self.observer.metrics = self.metrics


class BaseStage(ABC):
    """One step of a pipeline, from sources to sources. Define `process`, and add it with `Pipeline.add`.

        class Shouting(BaseStage):
            name = "shouting"

            def process(self, data, context):
                return {name: source.map(shout) for name, source in data.items()}

    Args:
        config: Settings of the stage, whatever they are.
    """

    name: str

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.metrics: dict[str, float] = {}

    @abstractmethod
    def process(self, data: Data, context: PipelineContext) -> Data:
        """Make new sources, by name, of those that the stages before gave."""

    def validate_config(self, config: PipelineConfig) -> list[str]:  # noqa: ARG002
        """List what is wrong with the settings, before anything is read."""
        return []

    def get_metrics(self) -> dict[str, float]:
        """Return what the stage has counted."""
        return dict(self.metrics)


# --- Those that are there ------------------------------------------------------------------------------------


def joined(data: Data) -> ShardedSource:
    """Return all sources as one, one after the other: none is dropped."""
    every = list(data.values())
    return every[0] if len(every) == 1 else CompositeShardedSource(every)


def storage_options(config: PipelineConfig) -> Any:
    """Return the credentials and settings of stores, from either of the places where they may stand."""
    return config.source.dask_storage_options if config.storage_options is None else config.storage_options


class SourceStage(BaseStage):
    """Finds the files of all datasets, and applies the functions and names that a dataset comes with."""

    name = "source"

    def process(self, data: Data, context: PipelineContext) -> Data:  # noqa: ARG002
        """Open all datasets."""
        config = context.config
        sources: Data = {}
        for name, dataset in config.named.items():
            source = create_source(dataset, storage_options(config), retry=retry_policy(config.source))
            if dataset.format_callback is not None:
                source = source.map(dataset.format_callback)
            if dataset.format_fields:
                source = source.rename_fields(dataset.format_fields)
            if not (config.streaming and config.source.streaming):
                source = hold_in_memory(source, name, context.observer)
            sources[name] = source
        return sources


def retry_policy(config: SourceStageConfig) -> RetryPolicy | None:
    """Return the policy of settings that are not the usual ones: so many further tries, and no more."""
    usual = SourceStageConfig()
    if (config.cloud_max_retries, config.cloud_retry_delay) == (usual.cloud_max_retries, usual.cloud_retry_delay):
        return None
    shortest_s = 1e-3
    return RetryPolicy(
        attempts=config.cloud_max_retries + 1,
        base_s=max(config.cloud_retry_delay, shortest_s),
        max_s=max(config.cloud_retry_delay * 2**config.cloud_max_retries, shortest_s),
        patience_s=shortest_s,
    )


def hold_in_memory(source: ShardedSource, name: str, observer: Observer) -> ShardedSource:
    """Read all samples of a source now, once."""
    held: list[Sample] = []
    with observer.watch("memory", name) as work, closing(iter(source)) as samples:
        while rows := samples.read():
            held += rows
            work.add(len(rows))
    made = MemoryShardedSource(held, num_shards=max(1, int(source.num_shards)), fingerprint=source.order_fingerprint)
    made.code_digests = source.code_digests
    return made


class TokenizeStage(BaseStage):
    """Tokenizes each dataset; tokenizers are loaded once."""

    name = "tokenize"

    def _tokenizers(self, config: PipelineConfig) -> dict[str, TokenizerConfig]:
        """Find the tokenizer of each dataset: its own, or a default one."""
        default, found = self.config.default_tokenizer or config.default_tokenizer, {}
        for name, dataset in config.named.items():
            given = dataset.tokenizer or default
            if given is None:
                raise ConfigError(
                    f"dataset {name!r} has no tokenizer: give it one, or the pipeline a default_tokenizer"
                )
            found[name] = TokenizerConfig(given, max_length=self.config.max_length) if isinstance(given, str) else given
        return found

    def validate_config(self, config: PipelineConfig) -> list[str]:
        """Make sure that every dataset has a tokenizer."""
        self._tokenizers(config)
        return []

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Make tokens of text."""
        manager, stage = TokenizerManager(), self.config
        made: Data = {}
        for name, chosen in self._tokenizers(context.config).items():
            dataset = context.config.get_dataset_by_name(name)
            source: ShardedSource = TokenizedShardedSource(
                data[name],
                manager.get_tokenizer(chosen, **dict(dataset.tokenizer_kwargs or {})),
                chosen,
                dataset.content_field,
                dataset.additional_fields,
                batch_size=stage.batch_size,
                num_workers=stage.num_workers,
            )
            made[name] = source.drop_fields(stage.remove_columns) if stage.remove_columns else source
        return made


class MixStage(BaseStage):
    """Mixes datasets by weights, or by a schedule of weights."""

    name = "mix"

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Mix what there is, if there is more than one."""
        config = self.config
        if len(data) == 1:
            return data
        mixed = MixedShardedSource(
            data,
            config.weights,
            config.block_size,
            context.seed if config.seed is None else config.seed,
            config.stop_strategy,
            config.scheduler(),
            epochs=config.epochs,
        )
        return {"mixed": mixed}


class PackStage(BaseStage):
    """Packs documents into rows."""

    name = "pack"

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Pack each source."""
        if not self.config.enabled:
            return data
        how = self.config.arguments("enabled", "shuffle_packed")
        how |= {"shuffle": self.config.shuffle_packed, "seed": context.seed}
        return {name: PackedShardedSource(source, **how) for name, source in data.items()}


# --- Sources of settings -------------------------------------------------------------------------------------


def create_source(
    config: DatasetConfig, storage_options: Mapping[str, Any] | None = None, *, retry: RetryPolicy | None = None
) -> ShardedSource:
    """Make the source that settings describe: of their `type`, or of the one that the names of the files tell.

    Args:
        config: The settings of a dataset. `num_rows` limits it to its first rows.
        storage_options: Credentials and settings of stores, where the dataset has none of its own.
        retry: How often and how patiently stores are asked again, if not in the usual way.
    """
    if not isinstance(config, DatasetConfig):
        raise ConfigError(f"config is a {type(config).__name__}: pass DatasetConfig(data_files=…)")
    options = storage_options if config.storage_options is None else config.storage_options
    source: ShardedSource
    if config.type in ("huggingface", "hf"):
        if is_list(config.data_files):
            raise ConfigError("data_files= of a dataset of the Hub is its name, not a list")
        name = os.fspath(config.data_files)  # type: ignore[arg-type]
        source = HuggingFaceShardedSource(
            name, config.split, config.dataset_split_name, storage_options=options, retry=retry
        )
    else:
        if config.dataset_split_name is not None:
            raise ConfigError("dataset_split_name= is the subset of a dataset of the Hub: set type='huggingface' too")
        source = open_files(config.data_files, config.type, options, retry=retry, text_field=config.content_field)
    return source if config.num_rows is None else LimitedShardedSource(source, config.num_rows)
