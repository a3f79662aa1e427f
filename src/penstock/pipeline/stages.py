"""What the stages of a pipeline do, each a function of sources and settings."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.loaders.async_loader import AsyncDataLoader
from penstock.pipeline.cached import hold_in_memory
from penstock.pipeline.config import CacheStageConfig, ObservabilityConfig, RayConfig, SourceStageConfig
from penstock.pipeline.create_source import create_source
from penstock.pipeline.saving.save import save_dataset
from penstock.sources.mix.source import MixedShardedSource
from penstock.sources.mix.weights import WeightScheduler
from penstock.sources.pack.source import PackedShardedSource
from penstock.sources.tokens.source import TokenizedShardedSource
from penstock.sources.tokens.tokenizers import TokenizerConfig, TokenizerManager

if TYPE_CHECKING:
    from penstock.pipeline.config import (
        DatasetConfig,
        LoadStageConfig,
        MixStageConfig,
        PackStageConfig,
        PipelineConfig,
        SaveStageConfig,
        TokenizeStageConfig,
    )
    from penstock.pipeline.saving.writer import WriteStats
    from penstock.sources.base import ShardedSource

    Sources = dict[str, ShardedSource]


def check_supported(config: PipelineConfig) -> None:
    """Refuse settings that a pipeline does not follow: to ignore them would be worse."""
    given: list[tuple[str, Any, Any, str]] = [
        ("source.cloud_max_retries", config.source, SourceStageConfig(), "stores are retried by their own rules"),
        ("source.cloud_retry_delay", config.source, SourceStageConfig(), "stores are retried by their own rules"),
        ("cache.memory_cache_size", config.cache, CacheStageConfig(), "a cache in memory holds all samples"),
        ("cache.disk_cache_expiry", config.cache, CacheStageConfig(), "cached samples never go stale"),
        ("cache.hash_fn", config.cache, CacheStageConfig(), "fingerprints tell what is cached"),
        ("ray.enabled", config.ray, RayConfig(), "work is spread over threads of this process"),
        ("observability.progress_type", config.observability, ObservabilityConfig(), "no progress is shown"),
        ("observability.metrics_enabled", config.observability, ObservabilityConfig(), "stats() always counts"),
        ("observability.log_level", config.observability, ObservabilityConfig(), "set the level of the log 'penstock'"),
        ("observability.log_interval", config.observability, ObservabilityConfig(), "no progress is shown"),
        ("save.push_to_hub", config.save, replace(config.save, push_to_hub=False), "upload output_dir yourself"),
    ]
    for path, settings, default, why in given:
        name = path.partition(".")[2]
        if getattr(settings, name) not in (getattr(default, name), "none"):
            raise ConfigError(f"{path}={getattr(settings, name)!r} is not supported, {why}: leave it out")
    for name, dataset in zip(config.names, config.datasets, strict=True):
        if dataset.shard_column is not None:
            raise ConfigError(f"shard_column= of dataset {name!r} is not supported: leave it out")


def open_sources(config: PipelineConfig) -> Sources:
    """Find the files of all datasets, and apply the functions and names that a dataset comes with."""
    options = config.source.dask_storage_options if config.storage_options is None else config.storage_options
    sources: Sources = {}
    for name, dataset in zip(config.names, config.datasets, strict=True):
        source = create_source(dataset, options)
        if dataset.format_callback is not None:
            source = source.map(dataset.format_callback)
        if dataset.format_fields:
            source = source.rename_fields(dataset.format_fields)
        if not (config.streaming and config.source.streaming):
            source = hold_in_memory(source)
        sources[name] = source
    return sources


def tokenizer_of(
    name: str, dataset: DatasetConfig, config: TokenizeStageConfig, default: str | TokenizerConfig | None
) -> TokenizerConfig:
    """Find the tokenizer of a dataset: its own, that of the stage, or that of the pipeline."""
    given = dataset.tokenizer or config.default_tokenizer or default
    if given is None:
        raise ConfigError(f"dataset {name!r} has no tokenizer: give it one, or the pipeline a default_tokenizer")
    return TokenizerConfig(given, max_length=config.max_length) if isinstance(given, str) else given


def tokenize_sources(sources: Sources, config: PipelineConfig, stage: TokenizeStageConfig) -> Sources:
    """Tokenize each dataset; tokenizers are loaded once."""
    manager = TokenizerManager()
    made: Sources = {}
    for name, dataset in zip(config.names, config.datasets, strict=True):
        chosen = tokenizer_of(name, dataset, stage, config.default_tokenizer)
        source: ShardedSource = TokenizedShardedSource(
            sources[name],
            manager.get_tokenizer(chosen, **dict(dataset.tokenizer_kwargs or {})),
            chosen,
            dataset.content_field,
            dataset.additional_fields,
            batch_size=stage.batch_size,
            num_workers=stage.num_workers,
        )
        made[name] = source.drop_fields(stage.remove_columns) if stage.remove_columns else source
    return made


def mix_sources(sources: Sources, config: MixStageConfig, seed: int | None) -> ShardedSource:
    """Mix datasets by weights, or by a schedule of weights."""
    schedule = config.weight_schedule
    return MixedShardedSource(
        sources,
        config.weights,
        config.block_size,
        seed if config.seed is None else config.seed,
        config.stop_strategy,
        None if schedule is None else WeightScheduler(schedule, config.weight_schedule_type),
    )


def pack_source(source: ShardedSource, config: PackStageConfig, seed: int | None) -> ShardedSource:
    """Pack documents into rows."""
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
    )


def save_sources(sources: Sources, config: PipelineConfig, stage: SaveStageConfig) -> dict[str, WriteStats]:
    """Write each source to a folder of its name, or to where its dataset says."""
    own = dict(zip(config.names, config.datasets, strict=True))
    saved: dict[str, WriteStats] = {}
    for name, source in sources.items():
        dataset = own.get(name)
        path = None if dataset is None else dataset.save_path
        saved[name] = save_dataset(
            source,
            path or f"{os.fspath(stage.output_dir).rstrip('/')}/{name}",
            (None if dataset is None else dataset.save_format) or stage.format,
            stage.max_shard_size,
            (None if dataset is None else dataset.num_shards) or stage.num_shards,
            stage.compression,
            stage.overwrite,
            resume=stage.resume,
            storage_options=config.storage_options,
        )
    return saved


def load_source(source: ShardedSource, config: LoadStageConfig, seed: int | None) -> AsyncDataLoader:
    """Load batches of a source."""
    return AsyncDataLoader(
        source,
        config.batch_size,
        config.prefetch_enabled,
        config.prefetch_workers,
        config.prefetch_buffer_size,
        config.shuffle_buffer_size,
        config.drop_last,
        seed=seed,
        output="jax" if config.prefetch_to_device else "numpy",
    )
