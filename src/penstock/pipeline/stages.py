"""The stages of a pipeline: each takes sources by name, and gives sources or, at the end, a loader."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import ConfigError
from penstock.pipeline.caching.stage import cache_source, hold_in_memory
from penstock.pipeline.config import SourceStageConfig
from penstock.pipeline.config_sources import create_source
from penstock.pipeline.hub import SavedFolder, check_hub_target, push_to_hub
from penstock.pipeline.observed_loader import ObservedLoader
from penstock.pipeline.save import save_by_column, save_source
from penstock.pipeline.stage import BaseStage
from penstock.publish.settings import SaveSettings
from penstock.sources.composite import CompositeShardedSource
from penstock.sources.mix.source import MixedShardedSource
from penstock.sources.pack.source import PackedShardedSource
from penstock.sources.tokens.source import TokenizedShardedSource
from penstock.sources.tokens.tokenizers import TokenizerConfig, TokenizerManager
from penstock.storage.retry import RetryPolicy
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from penstock.pipeline.config import DatasetConfig, PipelineConfig, SaveStageConfig
    from penstock.pipeline.stage import Data, PipelineContext
    from penstock.publish.dataset_writer import WriteStats
    from penstock.sources.base import ShardedSource

    Sources = dict[str, ShardedSource]

MIXED = "mixed"


def joined(data: Data) -> ShardedSource:
    """Return all sources as one, one after the other: none is dropped."""
    every = cast("list[ShardedSource]", list(data.values()))
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
        for name, dataset in zip(config.names, config.datasets, strict=True):
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


def tokenizer_of(
    name: str, dataset: DatasetConfig, default: str | TokenizerConfig | None, max_length: int
) -> TokenizerConfig:
    """Find the tokenizer of a dataset: its own, or a default one."""
    given = dataset.tokenizer or default
    if given is None:
        raise ConfigError(f"dataset {name!r} has no tokenizer: give it one, or the pipeline a default_tokenizer")
    return TokenizerConfig(given, max_length=max_length) if isinstance(given, str) else given


class TokenizeStage(BaseStage):
    """Tokenizes each dataset; tokenizers are loaded once."""

    name = "tokenize"

    def _tokenizers(self, config: PipelineConfig) -> dict[str, TokenizerConfig]:
        default = self.config.default_tokenizer or config.default_tokenizer
        named = zip(config.names, config.datasets, strict=True)
        return {name: tokenizer_of(name, dataset, default, self.config.max_length) for name, dataset in named}

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
                cast("ShardedSource", data[name]),
                manager.get_tokenizer(chosen, **dict(dataset.tokenizer_kwargs or {})),
                chosen,
                dataset.content_field,
                dataset.additional_fields,
                batch_size=stage.batch_size,
                num_workers=stage.num_workers,
            )
            made[name] = source.drop_fields(stage.remove_columns) if stage.remove_columns else source
        return made


class CacheStage(BaseStage):
    """Keeps what each dataset gives up to here, under its fingerprint."""

    name = "cache"

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Build or find the caches."""
        config, made = context.config, dict(data)
        for name, dataset in zip(config.names, config.datasets, strict=True):
            if dataset.cache_enabled and name in made:
                made[name] = cache_source(
                    cast("ShardedSource", made[name]),
                    self.config,
                    name=name,
                    observer=context.observer,
                    root=dataset.cache_path,
                    ray=config.ray,
                    storage_options=storage_options(config),
                )
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
            cast("Sources", data),
            config.weights,
            config.block_size,
            context.seed if config.seed is None else config.seed,
            config.stop_strategy,
            config.scheduler(),
            epochs=config.epochs,
        )
        return {MIXED: mixed}


class PackStage(BaseStage):
    """Packs documents into rows."""

    name = "pack"

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Pack each source."""
        if not self.config.enabled:
            return data
        return {name: self._pack(source, context.seed) for name, source in cast("Sources", data).items()}

    def _pack(self, source: ShardedSource, seed: int | None) -> ShardedSource:
        config = self.config
        return PackedShardedSource(
            source,
            config.seq_length,
            config.eos_token_id,
            config.pad_token_id,
            config.strategy,
            config.num_packers,
            config.include_segment_ids,
            shuffle=config.shuffle_packed,
            shuffle_buffer_factor=config.shuffle_buffer_factor,
            seed=seed,
            long_documents=config.long_documents,
            include_cu_seqlens=config.include_cu_seqlens,
        )


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
            for name, dataset in zip(config.names, config.datasets, strict=True):
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
        own = dict(zip(config.names, config.datasets, strict=True))
        places: dict[str, str] = {}
        for name, source in cast("Sources", data).items():
            dataset = own.get(name)
            path = None if dataset is None else dataset.save_path
            places[name] = path or join_url(os.fspath(stage.output_dir), name)
            settings = self._settings(config, dataset, name)
            with context.observer.watch("save", name) as work:
                settings = replace(settings, on_rows=work.add)
                if dataset is None or dataset.shard_column is None:
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

    def _settings(self, config: PipelineConfig, dataset: DatasetConfig | None, name: str) -> SaveSettings:
        stage: SaveStageConfig = self.config
        num_shards = (None if dataset is None else dataset.num_shards) or stage.num_shards
        if dataset is not None and dataset.shard_column is not None and num_shards is None:
            raise ConfigError(f"shard_column= of dataset {name!r} needs num_shards=, to divide its values among them")
        return SaveSettings(
            format=(None if dataset is None else dataset.save_format) or stage.format,
            max_shard_size=stage.max_shard_size,
            num_shards=num_shards,
            compression=stage.compression,
            overwrite=stage.overwrite,
            resume=stage.resume,
            storage_options=storage_options(config),
        )


class LoadStage(BaseStage):
    """Loads batches of all sources."""

    name = "load"

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Make the loader."""
        config = self.config
        loader = ObservedLoader(
            joined(data),
            config.batch_size,
            config.prefetch_enabled,
            config.prefetch_workers,
            config.prefetch_buffer_size,
            config.shuffle_buffer_size,
            config.drop_last,
            seed=context.seed,
            shuffle=config.shuffle,
            output="jax" if config.prefetch_to_device else "numpy",
        )
        loader.observe(context)
        return {"loader": loader}
