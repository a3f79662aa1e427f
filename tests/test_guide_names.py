"""Names of EasyData's guides: each is here, with the arguments that they pass, or the docs say what to type instead."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import penstock

NAMES = {
    "HuggingFaceShardedSource": "dataset_name split subset streaming cache_dir",
    "ParquetShardedSource": "storage_options columns",
    "JsonShardedSource": "storage_options jsonl",
    "CsvShardedSource": "storage_options",
    "ArrowShardedSource": "storage_options",
    "TextShardedSource": "storage_options",
    "HFDatasetShardedSource": "dataset",
    "CompositeShardedSource": "sources",
    "LimitedShardedSource": "source",
    "TransformedShardedSource": "source transform",
    "ChatTemplateTransform": "tokenizer messages_field output_field",
    "MaybeApplyChatTemplate": "tokenizer",
    "ConvertToChatML": "input_field output_field role_mapping",
    "ConvertInputOutputToChatML": "input_field output_field user_role assistant_role",
    "Transform": "",
    "ChainedTransform": "transforms",
    "ExpandTransform": "",
    "MapTransform": "fn",
    "MapField": "field fn output_field",
    "FilterTransform": "predicate",
    "FilterByField": "field predicate",
    "FilterNonEmpty": "fields",
    "RenameFields": "mapping",
    "SelectFields": "fields",
    "DropFields": "fields",
    "ExtractField": "source_path target_field default",
    "CombineFields": "source_fields target_field separator",
    "AddField": "field",
    "TokenizerConfig": "name_or_path max_length truncation padding add_special_tokens return_attention_mask"
    " trust_remote_code",
    "TokenizerManager": "",
    "TokenizedShardedSource": "source tokenizer tokenizer_config content_field additional_fields format_callback"
    " format_fields",
    "MixedShardedSource": "sources weights block_size seed stop_strategy weight_scheduler",
    "WeightScheduler": "schedule interpolation",
    "WeightSchedulePoint": "step weights",
    "PackedShardedSource": "source seq_length eos_token_id pad_token_id strategy num_packers include_segment_ids"
    " input_field shuffle shuffle_buffer_factor seed",
    "GreedyPacker": "",
    "PoolPacker": "",
    "FirstFitPacker": "",
    "PackedSequence": "",
    "AsyncDataLoader": "source batch_size prefetch_enabled prefetch_workers prefetch_buffer_size shuffle_buffer_size"
    " drop_last sharding_map seed",
    "collate_batch": "examples",
    "save_dataset": "source output_path format max_shard_size num_shards compression",
    "save_iterator": "output_path format max_shard_size num_shards compression",
    "create_writer": "output_path format max_shard_size num_shards compression overwrite",
    "tokenize_and_save": "data_files tokenizer output_path output_format max_length",
    "pretokenize": "source transform output_path output_format num_proc show_progress",
    "WriteStats": "num_examples num_shards total_bytes output_paths",
    "create_source": "config",
    "create_pipeline": "datasets default_tokenizer",
    "expand_data_files": "data_files",
    "wrap_hf_dataset": "dataset",
    "Pipeline": "config",
    "BaseStage": "",
    "PipelineContext": "config seed step epoch metrics",
    "ShardInfo": "shard_id shard_name num_rows byte_size url checksum",
    "DatasetConfig": "data_files type",
    "PipelineConfig": "datasets default_tokenizer streaming seed source tokenize cache mix pack load save ray"
    " observability",
    "SourceStageConfig": "",
    "TokenizeStageConfig": "",
    "CacheStageConfig": "",
    "MixStageConfig": "",
    "PackStageConfig": "",
    "LoadStageConfig": "batch_size prefetch_enabled prefetch_buffer_size shuffle_buffer_size",
    "SaveStageConfig": "",
    "RayConfig": "",
    "ObservabilityConfig": "",
}
# The others: `docs/migrating.md` says what to type instead of each.
NOT_HERE = (
    "block_mixture_interleave PrefetchIterator TreeCacheManager MemoryCache"
    " DiskCache DatasetCache CacheMetadata ResumeState"
)
METHODS = {
    "Pipeline": "from_config source tokenize cache mix pack save load build get_data get_context get_stages",
    "ShardedSource": "shard_names num_shards open_shard open_shard_at_row get_shard_info iter_shards map filter"
    " transform rename_fields select_fields drop_fields apply_chat_template",
    "BaseStage": "process validate_config get_metrics",
    "PipelineConfig": "get_dataset_by_name validate",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_takes_its_arguments(name: str) -> None:
    thing = getattr(penstock, name)
    taken = set(inspect.signature(thing).parameters)
    missing = set(NAMES[name].split()) - taken
    assert not missing


@pytest.mark.parametrize("name", METHODS)
def test_a_class_has_its_methods(name: str) -> None:
    assert not [method for method in METHODS[name].split() if not hasattr(getattr(penstock, name), method)]


def test_the_docs_say_what_to_type_instead_of_a_name_that_is_not_here() -> None:
    page = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text().partition("## From EasyData")[2]
    for name in NOT_HERE.split():
        assert f"`{name}" in page
        assert not hasattr(penstock, name)
