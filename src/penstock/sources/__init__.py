"""Sources of samples in named shards, and what is done to samples: transforms, mixing, packing.

As a public module it has the names of sources; see `docs/sources.md`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.reading.source import FunctionReader as FunctionReader
    from penstock.reading.source import OpenShard as OpenShard
    from penstock.reading.source import Source as Source
    from penstock.sources.base import ShardedSource as ShardedSource
    from penstock.sources.base import TransformedShardedSource as TransformedShardedSource
    from penstock.sources.base import ViewShardedSource as ViewShardedSource
    from penstock.sources.composite import CompositeShardedSource as CompositeShardedSource
    from penstock.sources.composite import LimitedShardedSource as LimitedShardedSource
    from penstock.sources.files.columnar_sources import ArrowShardedSource as ArrowShardedSource
    from penstock.sources.files.columnar_sources import ParquetShardedSource as ParquetShardedSource
    from penstock.sources.files.found import expand_data_files as expand_data_files
    from penstock.sources.files.hub import HuggingFaceShardedSource as HuggingFaceShardedSource
    from penstock.sources.files.text_sources import CsvShardedSource as CsvShardedSource
    from penstock.sources.files.text_sources import JsonShardedSource as JsonShardedSource
    from penstock.sources.files.text_sources import TextShardedSource as TextShardedSource
    from penstock.sources.memory import HFDatasetShardedSource as HFDatasetShardedSource
    from penstock.sources.memory import MemoryShardedSource as MemoryShardedSource
    from penstock.sources.memory import wrap_hf_dataset as wrap_hf_dataset
    from penstock.sources.mix.source import MixedShardedSource as MixedShardedSource
    from penstock.sources.mix.weights import WeightSchedulePoint as WeightSchedulePoint
    from penstock.sources.mix.weights import WeightScheduler as WeightScheduler
    from penstock.sources.shard_info import ShardInfo as ShardInfo
    from penstock.sources.tokens.source import TokenizedShardedSource as TokenizedShardedSource
    from penstock.sources.tokens.tokenizers import TokenizerConfig as TokenizerConfig
    from penstock.sources.tokens.tokenizers import TokenizerManager as TokenizerManager
    from penstock.sources.tokens.tokenizers import tokenizer_hash as tokenizer_hash
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
