"""penstock carries training samples from storage to the training step.

Public names are resolved on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._version import __version__

if TYPE_CHECKING:
    from penstock.cache.cleanup import clear_cache, prune_cache
    from penstock.cache.contents import list_cache
    from penstock.data.dataset import StreamingDataset
    from penstock.data.local import LocalDataset
    from penstock.data.stats import Stats
    from penstock.data.stream import Stream
    from penstock.data.warm import warm_cache
    from penstock.episodes.dataset import StreamingLeRobotDataset
    from penstock.episodes.mixing.dataset import StreamingLeRobotMix
    from penstock.episodes.mixing.stream import LeRobotStream
    from penstock.episodes.writing.convert import convert_to_lerobot
    from penstock.episodes.writing.writer import LeRobotWriter
    from penstock.errors import PenstockError, TransformError
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.encodings.table import encodings
    from penstock.loaders.async_loader import AsyncDataLoader
    from penstock.loaders.collate import PadCollator, collate_batch
    from penstock.loaders.torch import StreamingDataLoader
    from penstock.order.schedule import MixSchedule
    from penstock.pipeline.config import (
        CacheStageConfig,
        DatasetConfig,
        LoadStageConfig,
        MixStageConfig,
        ObservabilityConfig,
        PackStageConfig,
        PipelineConfig,
        RayConfig,
        SaveStageConfig,
        SourceStageConfig,
        TokenizeStageConfig,
    )
    from penstock.pipeline.create_source import create_source
    from penstock.pipeline.pipeline import Pipeline, create_pipeline
    from penstock.pipeline.pretokenize import pretokenize, tokenize_and_save
    from penstock.pipeline.saving.save import save_dataset, save_iterator
    from penstock.pipeline.saving.writer import WriteStats, create_writer
    from penstock.pipeline.stage import BaseStage, PipelineContext
    from penstock.reading.source import FunctionReader, OpenShard, Source
    from penstock.sources.base import ShardedSource, TransformedShardedSource
    from penstock.sources.chat import (
        ChatTemplate,
        ChatTemplateTransform,
        ConvertInputOutputToChatML,
        ConvertToChatML,
        MaybeApplyChatTemplate,
    )
    from penstock.sources.composite import CompositeShardedSource, LimitedShardedSource
    from penstock.sources.fields import (
        AddField,
        CombineFields,
        DropFields,
        ExtractField,
        FilterByField,
        FilterNonEmpty,
        MapField,
        RenameFields,
        SelectFields,
    )
    from penstock.sources.files.columnar_sources import ArrowShardedSource, ParquetShardedSource
    from penstock.sources.files.found import expand_data_files
    from penstock.sources.files.hub import HuggingFaceShardedSource
    from penstock.sources.files.text_sources import CsvShardedSource, JsonShardedSource, TextShardedSource
    from penstock.sources.hf import HFDatasetShardedSource, wrap_hf_dataset
    from penstock.sources.memory import MemoryShardedSource
    from penstock.sources.mix.source import MixedShardedSource
    from penstock.sources.mix.weights import WeightSchedulePoint, WeightScheduler
    from penstock.sources.pack.packer import PackStats
    from penstock.sources.pack.packers import FirstFitPacker, GreedyPacker, PackedSequence, PoolPacker
    from penstock.sources.pack.rows import join_cu_seqlens
    from penstock.sources.pack.source import PackedShardedSource
    from penstock.sources.shard_info import ShardInfo
    from penstock.sources.tokens.source import TokenizedShardedSource, TokenizeTransform
    from penstock.sources.tokens.tokenizers import TokenizerConfig, TokenizerManager, tokenizer_hash
    from penstock.sources.transforms import (
        BatchTransform,
        ChainedTransform,
        ExpandTransform,
        FilterTransform,
        FlatMapTransform,
        MapBatchTransform,
        MapTransform,
        Transform,
    )
    from penstock.write.merge_index import merge_index
    from penstock.write.writers import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

_HOMES = {
    "AddField": "penstock.sources.fields",
    "ArrowShardedSource": "penstock.sources.files.columnar_sources",
    "AsyncDataLoader": "penstock.loaders.async_loader",
    "BaseStage": "penstock.pipeline.stage",
    "BatchTransform": "penstock.sources.transforms",
    "CSVWriter": "penstock.write.writers",
    "CacheStageConfig": "penstock.pipeline.config",
    "ChainedTransform": "penstock.sources.transforms",
    "ChatTemplate": "penstock.sources.chat",
    "ChatTemplateTransform": "penstock.sources.chat",
    "CombineFields": "penstock.sources.fields",
    "CompositeShardedSource": "penstock.sources.composite",
    "ConvertInputOutputToChatML": "penstock.sources.chat",
    "ConvertToChatML": "penstock.sources.chat",
    "CsvShardedSource": "penstock.sources.files.text_sources",
    "DatasetConfig": "penstock.pipeline.config",
    "DropFields": "penstock.sources.fields",
    "Encoding": "penstock.formats.encodings.base",
    "ExpandTransform": "penstock.sources.transforms",
    "ExtractField": "penstock.sources.fields",
    "FilterByField": "penstock.sources.fields",
    "FilterNonEmpty": "penstock.sources.fields",
    "FilterTransform": "penstock.sources.transforms",
    "FirstFitPacker": "penstock.sources.pack.packers",
    "FlatMapTransform": "penstock.sources.transforms",
    "FunctionReader": "penstock.reading.source",
    "GreedyPacker": "penstock.sources.pack.packers",
    "HFDatasetShardedSource": "penstock.sources.hf",
    "HuggingFaceShardedSource": "penstock.sources.files.hub",
    "JSONWriter": "penstock.write.writers",
    "JsonShardedSource": "penstock.sources.files.text_sources",
    "LeRobotStream": "penstock.episodes.mixing.stream",
    "LeRobotWriter": "penstock.episodes.writing.writer",
    "LimitedShardedSource": "penstock.sources.composite",
    "LoadStageConfig": "penstock.pipeline.config",
    "LocalDataset": "penstock.data.local",
    "MDSWriter": "penstock.write.writers",
    "MapBatchTransform": "penstock.sources.transforms",
    "MapField": "penstock.sources.fields",
    "MapTransform": "penstock.sources.transforms",
    "MaybeApplyChatTemplate": "penstock.sources.chat",
    "MemoryShardedSource": "penstock.sources.memory",
    "MixSchedule": "penstock.order.schedule",
    "MixStageConfig": "penstock.pipeline.config",
    "MixedShardedSource": "penstock.sources.mix.source",
    "ObservabilityConfig": "penstock.pipeline.config",
    "OpenShard": "penstock.reading.source",
    "PackStageConfig": "penstock.pipeline.config",
    "PackStats": "penstock.sources.pack.packer",
    "PackedSequence": "penstock.sources.pack.packers",
    "PackedShardedSource": "penstock.sources.pack.source",
    "PadCollator": "penstock.loaders.collate",
    "ParquetShardedSource": "penstock.sources.files.columnar_sources",
    "PenstockError": "penstock.errors",
    "Pipeline": "penstock.pipeline.pipeline",
    "PipelineConfig": "penstock.pipeline.config",
    "PipelineContext": "penstock.pipeline.stage",
    "PoolPacker": "penstock.sources.pack.packers",
    "RayConfig": "penstock.pipeline.config",
    "RenameFields": "penstock.sources.fields",
    "SaveStageConfig": "penstock.pipeline.config",
    "SelectFields": "penstock.sources.fields",
    "ShardInfo": "penstock.sources.shard_info",
    "ShardedSource": "penstock.sources.base",
    "Source": "penstock.reading.source",
    "SourceStageConfig": "penstock.pipeline.config",
    "Stats": "penstock.data.stats",
    "Stream": "penstock.data.stream",
    "StreamingDataLoader": "penstock.loaders.torch",
    "StreamingDataset": "penstock.data.dataset",
    "StreamingLeRobotDataset": "penstock.episodes.dataset",
    "StreamingLeRobotMix": "penstock.episodes.mixing.dataset",
    "TSVWriter": "penstock.write.writers",
    "TextShardedSource": "penstock.sources.files.text_sources",
    "TokenizeStageConfig": "penstock.pipeline.config",
    "TokenizeTransform": "penstock.sources.tokens.source",
    "TokenizedShardedSource": "penstock.sources.tokens.source",
    "TokenizerConfig": "penstock.sources.tokens.tokenizers",
    "TokenizerManager": "penstock.sources.tokens.tokenizers",
    "Transform": "penstock.sources.transforms",
    "TransformError": "penstock.errors",
    "TransformedShardedSource": "penstock.sources.base",
    "WeightSchedulePoint": "penstock.sources.mix.weights",
    "WeightScheduler": "penstock.sources.mix.weights",
    "WriteStats": "penstock.pipeline.saving.writer",
    "XSVWriter": "penstock.write.writers",
    "clear_cache": "penstock.cache.cleanup",
    "collate_batch": "penstock.loaders.collate",
    "convert_to_lerobot": "penstock.episodes.writing.convert",
    "create_pipeline": "penstock.pipeline.pipeline",
    "create_source": "penstock.pipeline.create_source",
    "create_writer": "penstock.pipeline.saving.writer",
    "encodings": "penstock.formats.encodings.table",
    "expand_data_files": "penstock.sources.files.found",
    "join_cu_seqlens": "penstock.sources.pack.rows",
    "list_cache": "penstock.cache.contents",
    "merge_index": "penstock.write.merge_index",
    "pretokenize": "penstock.pipeline.pretokenize",
    "prune_cache": "penstock.cache.cleanup",
    "save_dataset": "penstock.pipeline.saving.save",
    "save_iterator": "penstock.pipeline.saving.save",
    "tokenize_and_save": "penstock.pipeline.pretokenize",
    "tokenizer_hash": "penstock.sources.tokens.tokenizers",
    "warm_cache": "penstock.data.warm",
    "wrap_hf_dataset": "penstock.sources.hf",
}

__all__ = [
    "AddField",
    "ArrowShardedSource",
    "AsyncDataLoader",
    "BaseStage",
    "BatchTransform",
    "CSVWriter",
    "CacheStageConfig",
    "ChainedTransform",
    "ChatTemplate",
    "ChatTemplateTransform",
    "CombineFields",
    "CompositeShardedSource",
    "ConvertInputOutputToChatML",
    "ConvertToChatML",
    "CsvShardedSource",
    "DatasetConfig",
    "DropFields",
    "Encoding",
    "ExpandTransform",
    "ExtractField",
    "FilterByField",
    "FilterNonEmpty",
    "FilterTransform",
    "FirstFitPacker",
    "FlatMapTransform",
    "FunctionReader",
    "GreedyPacker",
    "HFDatasetShardedSource",
    "HuggingFaceShardedSource",
    "JSONWriter",
    "JsonShardedSource",
    "LeRobotStream",
    "LeRobotWriter",
    "LimitedShardedSource",
    "LoadStageConfig",
    "LocalDataset",
    "MDSWriter",
    "MapBatchTransform",
    "MapField",
    "MapTransform",
    "MaybeApplyChatTemplate",
    "MemoryShardedSource",
    "MixSchedule",
    "MixStageConfig",
    "MixedShardedSource",
    "ObservabilityConfig",
    "OpenShard",
    "PackStageConfig",
    "PackStats",
    "PackedSequence",
    "PackedShardedSource",
    "PadCollator",
    "ParquetShardedSource",
    "PenstockError",
    "Pipeline",
    "PipelineConfig",
    "PipelineContext",
    "PoolPacker",
    "RayConfig",
    "RenameFields",
    "SaveStageConfig",
    "SelectFields",
    "ShardInfo",
    "ShardedSource",
    "Source",
    "SourceStageConfig",
    "Stats",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "StreamingLeRobotDataset",
    "StreamingLeRobotMix",
    "TSVWriter",
    "TextShardedSource",
    "TokenizeStageConfig",
    "TokenizeTransform",
    "TokenizedShardedSource",
    "TokenizerConfig",
    "TokenizerManager",
    "Transform",
    "TransformError",
    "TransformedShardedSource",
    "WeightSchedulePoint",
    "WeightScheduler",
    "WriteStats",
    "XSVWriter",
    "__version__",
    "clear_cache",
    "collate_batch",
    "convert_to_lerobot",
    "create_pipeline",
    "create_source",
    "create_writer",
    "encodings",
    "expand_data_files",
    "join_cu_seqlens",
    "list_cache",
    "merge_index",
    "pretokenize",
    "prune_cache",
    "save_dataset",
    "save_iterator",
    "tokenize_and_save",
    "tokenizer_hash",
    "warm_cache",
    "wrap_hf_dataset",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
