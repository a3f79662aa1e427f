"""penstock carries training samples from storage to the training step.

Its names are those that are typed first. All names of a subject are in a module of their own, from which the lines with
`*` come: they can be imported from here as well, but are not listed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock._version import __version__ as __version__
    from penstock.caching import *
    from penstock.caching import clear_cache as clear_cache
    from penstock.caching import list_cache as list_cache
    from penstock.caching import prune_cache as prune_cache
    from penstock.caching import warm_cache as warm_cache
    from penstock.conversion import *
    from penstock.conversion import convert as convert
    from penstock.counters import Stats as Stats
    from penstock.data.dataset import StreamingDataset as StreamingDataset
    from penstock.data.local import LocalDataset as LocalDataset
    from penstock.data.stream import Stream as Stream
    from penstock.errors import *
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import TransformError as TransformError
    from penstock.formats.encodings.base import Encoding as Encoding
    from penstock.formats.encodings.table import encodings as encodings
    from penstock.loaders.async_loader import AsyncDataLoader as AsyncDataLoader
    from penstock.loaders.collate import PadCollator as PadCollator
    from penstock.loaders.collate import collate_batch as collate_batch
    from penstock.loaders.torch import StreamingDataLoader as StreamingDataLoader  # needs torch
    from penstock.order.schedule import MixSchedule as MixSchedule
    from penstock.packing import *
    from penstock.packing import PackedShardedSource as PackedShardedSource
    from penstock.pipeline import *
    from penstock.pipeline import DatasetConfig as DatasetConfig
    from penstock.pipeline import Pipeline as Pipeline
    from penstock.pipeline import PipelineConfig as PipelineConfig
    from penstock.pipeline import create_pipeline as create_pipeline
    from penstock.pipeline import create_source as create_source
    from penstock.pipeline import save_dataset as save_dataset
    from penstock.pipeline import tokenize_and_save as tokenize_and_save
    from penstock.publish.merge_index import merge_index as merge_index
    from penstock.publish.writer import CSVWriter as CSVWriter
    from penstock.publish.writer import JSONWriter as JSONWriter
    from penstock.publish.writer import MDSWriter as MDSWriter
    from penstock.publish.writer import TSVWriter as TSVWriter
    from penstock.publish.writer import XSVWriter as XSVWriter
    from penstock.robots import *
    from penstock.robots import LeRobotWriter as LeRobotWriter
    from penstock.robots import StreamingLeRobotDataset as StreamingLeRobotDataset
    from penstock.sources import *
    from penstock.sources import ArrowShardedSource as ArrowShardedSource
    from penstock.sources import CsvShardedSource as CsvShardedSource
    from penstock.sources import HuggingFaceShardedSource as HuggingFaceShardedSource
    from penstock.sources import JsonShardedSource as JsonShardedSource
    from penstock.sources import MemoryShardedSource as MemoryShardedSource
    from penstock.sources import MixedShardedSource as MixedShardedSource
    from penstock.sources import ParquetShardedSource as ParquetShardedSource
    from penstock.sources import ShardedSource as ShardedSource
    from penstock.sources import TextShardedSource as TextShardedSource
    from penstock.sources import TokenizedShardedSource as TokenizedShardedSource
    from penstock.sources import TokenizerConfig as TokenizerConfig
    from penstock.sources import wrap_hf_dataset as wrap_hf_dataset
    from penstock.transforms import *
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
