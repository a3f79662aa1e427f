"""Settings of pipelines: checked before anything is read, the same from objects, dicts, JSON and YAML."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from penstock import (
    DatasetConfig,
    LoadStageConfig,
    MixStageConfig,
    PipelineConfig,
    SaveStageConfig,
    SourceStageConfig,
    TokenizerConfig,
    WeightSchedulePoint,
)
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NAMED = [
    DatasetConfig(data_files="web/*.parquet", name="web"),
    DatasetConfig(data_files=["a.jsonl"], type="json", name="code"),
]
FULL = PipelineConfig(
    datasets=NAMED,
    default_tokenizer=TokenizerConfig("tok", max_length=99),
    seed=0,
    mix=MixStageConfig(
        weight_schedule=[
            WeightSchedulePoint(0, {"web": 0.5, "code": 0.5}),
            WeightSchedulePoint(10, {"web": 0.9, "code": 0.1}),
        ]
    ),
    load=LoadStageConfig(batch_size=16, shuffle_buffer_size=1000),
)


def test_settings_of_the_guide() -> None:
    config = PipelineConfig(
        datasets=[DatasetConfig(data_files="data/*.parquet", type="parquet")],
        streaming=True,
        load=LoadStageConfig(batch_size=32, prefetch_enabled=True, prefetch_buffer_size=8, shuffle_buffer_size=10_000),
    )
    assert config.names == ["dataset_0"]
    assert config.get_dataset_by_name("dataset_0") is config.datasets[0]
    assert config.pack.seq_length == 2048
    with pytest.raises(ConfigError, match="no dataset 'x': there are dataset_0"):
        config.get_dataset_by_name("x")


def test_there_and_back_again(tmp_path: Path) -> None:
    values = json.loads(json.dumps(FULL.to_dict()))
    assert PipelineConfig.from_dict(values) == FULL
    assert {each.name for each in fields(PipelineConfig)} == set(values)
    for name in ("config.json", "config.yaml"):
        FULL.save_file(tmp_path / name)
        assert PipelineConfig.load_file(tmp_path / name) == FULL
    few = PipelineConfig.from_dict({"datasets": [{"data_files": "x.parquet"}], "load": {"batch_size": 4}})
    assert few.load.batch_size == 4
    assert few.load.prefetch_workers == 2
    with pytest.raises(ConfigError, match="neither .json nor .yaml"):
        FULL.save_file(tmp_path / "config.txt")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        PipelineConfig.load_file(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"datasets": [{"data_files": "a", "contnt_field": "x"}]},
            r"datasets\[0\] has no field 'contnt_field': do you mean 'content_field'",
        ),
        ({"datasets": [{"data_files": "a"}], "laod": {}}, "PipelineConfig has no field 'laod': do you mean 'load'"),
        (
            {"datasets": [{"data_files": "a"}], "load": {"batchsize": 3}},
            "load has no field 'batchsize': do you mean 'batch_size'",
        ),
        ({"datasets": [{"data_files": "a"}], "load": [3]}, "load is a list: give a dict of its fields"),
        ({}, "PipelineConfig needs datasets"),
        ({"datasets": [{"name": "x"}]}, r"datasets\[0\] needs data_files"),
        ({"datasets": []}, "names no dataset"),
        ({"datasets": [{"data_files": "a"}], "schema_version": 2}, "schema version 2"),
        ({"datasets": [{"data_files": "a", "name": "x"}] * 2}, "several datasets are called 'x'"),
        (
            {"datasets": [{"data_files": "a", "name": "x"}], "mix": {"weights": {"y": 1}}},
            "weights for y, and the datasets are x",
        ),
        (
            {"datasets": [{"data_files": "a"}, {"data_files": "b"}], "mix": {"weights": {"dataset_0": 1}}},
            "no weights for dataset_1",
        ),
    ],
)
def test_what_does_not_fit_is_an_error_before_anything_is_read(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PipelineConfig.from_dict(values)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DatasetConfig(data_files=""), "names no file"),
        (lambda: DatasetConfig(data_files="a", type="xml"), "type='xml'"),  # type: ignore[arg-type]
        (lambda: DatasetConfig(data_files="a", num_rows=-1), "num_rows=-1"),
        (lambda: LoadStageConfig(batch_size=0), "batch_size=0"),
        (lambda: SaveStageConfig(max_shard_size="500 elephants"), "unknown unit"),
        (lambda: SaveStageConfig(push_to_hub=True), "needs hub_repo_id="),
        (lambda: MixStageConfig(weights={"a": -1.0}), "make no mix"),
        (lambda: MixStageConfig(stop_strategy="never"), "stop_strategy='never'"),  # type: ignore[arg-type]
    ],
)
def test_each_field_is_checked(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


@pytest.mark.parametrize(
    ("section", "values", "text"),
    [
        ("load", {"drop_last": "no"}, "drop_last='no' must be True or False"),
        ("pack", {"pad_token_id": 0.5}, "pad_token_id=0.5 must be a whole number"),
        ("cache", {"cache_dir": 3}, "cache_dir=3 must be text"),
        ("tokenize", {"remove_columns": "text"}, "remove_columns='text' must be a Sequence or None"),
        ("save", {"hub_token": 12345}, "^hub_token must be text or None$"),
    ],
)
def test_values_of_another_type_are_refused(section: str, values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PipelineConfig.from_dict({"datasets": [{"data_files": "x"}], section: values})


def test_what_stands_alone_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="datasets='web.jsonl' must be a list"):
        PipelineConfig.from_dict({"datasets": "web.jsonl"})
    # A section of YAML with nothing in it is None.
    (tmp_path / "own.yaml").write_text("datasets: [{data_files: x}]\nload:\n")
    assert PipelineConfig.load_file(tmp_path / "own.yaml").load == LoadStageConfig()
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read: No such file"):
        PipelineConfig.load_file(tmp_path / "none.yaml")
    (tmp_path / "own.yaml").write_text("datasets: [{data_file: x}]")
    with pytest.raises(ConfigError, match=r"own\.yaml: datasets\[0\] has no field 'data_file'"):
        PipelineConfig.load_file(tmp_path / "own.yaml")


def test_functions_are_not_written() -> None:
    config = PipelineConfig(datasets=[DatasetConfig(data_files="a", format_callback=lambda sample: sample)])
    with pytest.raises(ConfigError, match="format_callback is .* set it in code only"):
        config.to_dict()


def test_secrets_are_not_shown() -> None:
    config = PipelineConfig(
        datasets=[
            DatasetConfig(data_files="a", storage_options={"key": "d_secret"}, tokenizer_kwargs={"token": "t_secret"})
        ],
        source=SourceStageConfig(dask_storage_options={"key": "o_secret"}),
        save=SaveStageConfig(hub_token="hf_secret"),
        storage_options={"secret": "s3_secret"},
    )
    assert "_secret" not in repr(config)
