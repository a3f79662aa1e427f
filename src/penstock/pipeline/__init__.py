"""Whole pipelines, their settings, and what saves their samples. See `docs/pipeline.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pipeline.config import CacheStageConfig as CacheStageConfig
    from penstock.pipeline.config import DatasetConfig as DatasetConfig
    from penstock.pipeline.config import LoadStageConfig as LoadStageConfig
    from penstock.pipeline.config import MixStageConfig as MixStageConfig
    from penstock.pipeline.config import ObservabilityConfig as ObservabilityConfig
    from penstock.pipeline.config import PackStageConfig as PackStageConfig
    from penstock.pipeline.config import PipelineConfig as PipelineConfig
    from penstock.pipeline.config import RayConfig as RayConfig
    from penstock.pipeline.config import SaveStageConfig as SaveStageConfig
    from penstock.pipeline.config import SourceStageConfig as SourceStageConfig
    from penstock.pipeline.config import TokenizeStageConfig as TokenizeStageConfig
    from penstock.pipeline.pipeline import Pipeline as Pipeline
    from penstock.pipeline.pipeline import create_pipeline as create_pipeline
    from penstock.pipeline.save import pretokenize as pretokenize
    from penstock.pipeline.save import save_dataset as save_dataset
    from penstock.pipeline.save import save_iterator as save_iterator
    from penstock.pipeline.save import tokenize_and_save as tokenize_and_save
    from penstock.pipeline.stages import BaseStage as BaseStage
    from penstock.pipeline.stages import PipelineContext as PipelineContext
    from penstock.pipeline.stages import create_source as create_source
    from penstock.publish.dataset_writer import WriteStats as WriteStats
    from penstock.publish.dataset_writer import create_writer as create_writer
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
