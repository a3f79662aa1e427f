"""Pipelines: stages in their order, nothing dropped, every setting followed or refused, cut anywhere and resumed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from penstock import (
    AsyncDataLoader,
    DatasetConfig,
    LoadStageConfig,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    TokenizerConfig,
    create_pipeline,
)
from penstock.errors import ConfigError, OutputExistsError, ResumeError, StageOrderError
from tests.pipeline.texts import ids, settings

if TYPE_CHECKING:
    from pathlib import Path


def test_the_shortest_way(data: Path) -> None:
    config = PipelineConfig(
        datasets=[DatasetConfig(data_files=f"{data}/web-*.jsonl", type="json")],
        streaming=True,
        load=LoadStageConfig(batch_size=8, prefetch_enabled=True, prefetch_buffer_size=4, shuffle_buffer_size=50),
    )
    loader = Pipeline.from_config(config).source().load().build()
    assert isinstance(loader, AsyncDataLoader)
    assert len(ids(loader)) == 296


def test_several_datasets_without_a_mix_all_come(data: Path) -> None:
    pipeline = Pipeline.from_config(settings(data)).source().load({"batch_size": 10, "drop_last": False})
    expected = Counter([f"web{n}" for n in range(300)] + [f"books{n}" for n in range(100)])
    assert Counter(ids(pipeline)) == expected
    assert Counter(sample["id"] for sample in Pipeline.from_config(settings(data)).source().build()) == expected


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        (["tokenize"], r"tokenize\(\) is in the wrong place: write \.source\(\)\.tokenize\(\)$"),
        (["source", "mix", "tokenize"], r"write \.source\(\)\.tokenize\(\)\.mix\(\)$"),
        (["source", "load", "mix"], r"write \.source\(\)\.mix\(\)\.load\(\)$"),
        (["source", "mix", "cache"], r"write \.source\(\)\.cache\(\)\.mix\(\)$"),
        (["source", "source"], "each stage comes once"),
        (["build"], r"begins with source\(\)"),
        (["source", "build", "load"], "built already"),
        (["source", "state_dict"], r"after load\(\)"),
    ],
)
def test_a_wrong_order_says_the_right_one(data: Path, stages: list[str], text: str) -> None:
    pipeline = Pipeline.from_config(settings(data))
    with pytest.raises(StageOrderError, match=text) as raised:
        for stage in stages:
            getattr(pipeline, stage)()
    assert isinstance(raised.value, RuntimeError)


def test_nothing_is_read_before_it_is_built() -> None:
    pipeline = create_pipeline("/nowhere/*.jsonl").source().load()
    assert pipeline.get_stages() == ["source", "load"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pipeline.build()


def test_mixing_by_weights(data: Path) -> None:
    mix = {"weights": {"web": 0.75, "books": 0.25}, "stop_strategy": "first_exhausted"}
    batches = list(Pipeline.from_config(settings(data, mix=mix)).source().mix().load())
    assert Counter(name for batch in batches[:8] for name in batch["__source__"]) == {"web": 60, "books": 20}
    point = {"step": 0, "weights": {"web": 0.0, "books": 1.0}}
    scheduled = Pipeline.from_config(settings(data)).source().mix({"weight_schedule": [point]}).build()
    assert {next(iter(scheduled))["__source__"]} == {"books"}
    only = settings(data)
    del only["datasets"][1]
    assert "__source__" not in next(iter(Pipeline.from_config(only).source().mix().build()))


def test_tokens_and_rows(data: Path) -> None:
    pack = {"enabled": True, "seq_length": 64, "eos_token_id": 2, "pad_token_id": 1, "strategy": "first_fit"}
    mix = {"stop_strategy": "all_exhausted"}
    config = settings(data, pack=pack, mix=mix, tokenize={"max_length": 40}, seed=5)
    batch = next(iter(Pipeline.from_config(config).source().tokenize().mix().pack().load()))
    assert batch["input_ids"].shape == batch["labels"].shape == (10, 64)
    one = (
        Pipeline.from_config(config).source().tokenize({"max_length": 7, "remove_columns": ["attention_mask"]}).build()
    )
    assert max(len(sample["input_ids"]) for sample in one) == 7
    assert set(next(iter(one))) == {"input_ids"}


def test_each_dataset_has_its_tokenizer_fields_and_functions(data: Path) -> None:
    config = settings(data)
    own = TokenizerConfig(f"{data}/tokenizer.json", max_length=3)
    config["datasets"][0] |= {"tokenizer": own, "additional_fields": ["id"], "num_rows": 60}
    config["datasets"][1] |= {"content_field": "body", "format_fields": {"text": "body"}, "num_rows": 60}
    samples = list(Pipeline.from_config(config).source().tokenize().build())
    assert max(len(sample["input_ids"]) for sample in samples if "id" in sample) == 3
    assert max(len(sample["input_ids"]) for sample in samples if "id" not in sample) == 50
    config["datasets"][1]["format_callback"] = lambda sample: {"text": "w1", "id": sample["id"]}
    assert len(list(Pipeline.from_config(config).source().tokenize().build())[-1]["input_ids"]) == 1
    del config["default_tokenizer"]
    with pytest.raises(ConfigError, match="'books' has no tokenizer"):
        Pipeline.from_config(config).source().tokenize()


def test_saving(data: Path) -> None:
    config = settings(data, save={"enabled": True, "output_dir": f"{data}/out", "num_shards": 3})
    config["datasets"][1] |= {"save_path": f"{data}/elsewhere", "save_format": "jsonl", "num_shards": 2}
    pipeline = Pipeline.from_config(config).source().save()
    source = pipeline.build()
    assert {name: (stats.num_examples, stats.num_shards) for name, stats in pipeline.saved.items()} == {
        "web": (300, 3),
        "books": (100, 2),
    }
    assert len(ParquetShardedSource(f"{data}/out/web")) == 300
    assert sorted(path.name for path in (data / "elsewhere").glob("*.jsonl")) == [
        "shard-00000.jsonl",
        "shard-00001.jsonl",
    ]
    assert sum(1 for _ in source) == 400
    with pytest.raises(OutputExistsError):
        Pipeline.from_config(config).source().save().build()
    config["save"]["resume"] = True
    again = Pipeline.from_config(config).source().save()
    again.build()
    assert again.saved == pipeline.saved
    restart = Pipeline.from_config(settings(data)).source().mix().save({"enabled": True, "output_dir": f"{data}/mixed"})
    with pytest.raises(ConfigError, match="never ends"):
        restart.build()


def test_stages_that_are_off_say_so(data: Path) -> None:
    with pytest.warns(UserWarning, match=r"pack\(\) does nothing, .* PackStageConfig\(enabled=True"):
        Pipeline.from_config(settings(data)).source().pack()


def test_settings_of_a_stage_are_checked_where_they_are_given(data: Path) -> None:
    pipeline = Pipeline.from_config(settings(data)).source()
    with pytest.raises(ConfigError, match="compression='lz4' is not there for cached samples"):
        pipeline.cache({"compression": "lz4"})
    with pytest.raises(ConfigError, match="mix has weights for other"):
        pipeline.mix({"weights": {"web": 0.5, "other": 0.5}})
    with pytest.raises(ConfigError, match="hub_repo_id='b' is not the name of a repository"):
        pipeline.save({"enabled": True, "push_to_hub": True, "hub_repo_id": "b"})
    with pytest.raises(ConfigError, match="set output_dir= to a folder"):
        pipeline.save({"enabled": True, "push_to_hub": True, "hub_repo_id": "a/b", "output_dir": "s3://bucket/x"})
    with pytest.raises(ConfigError, match="LoadStageConfig is a int: give a dict of its fields"):
        pipeline.load(8)  # type: ignore[arg-type]
    assert pipeline.get_stages() == ["source"]


FOR_JAX = """
import sys, jax
from penstock import Pipeline
pipeline = Pipeline.from_config(sys.argv[1]).source().tokenize().pack().load()
print(isinstance(next(iter(pipeline))["input_ids"], jax.Array))
"""


def test_batches_for_jax(data: Path) -> None:
    load = {"batch_size": 4, "prefetch_to_device": True}
    config = PipelineConfig.from_dict(settings(data, pack={"enabled": True, "seq_length": 64}, load=load))
    config.save_file(data / "pipeline.json")
    command = [sys.executable, "-c", FOR_JAX, str(data / "pipeline.json")]  # jax and forks do not go together
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "True"


def test_data_that_do_not_stream_are_read_once(data: Path) -> None:
    pipeline = Pipeline.from_config(settings(data, streaming=False)).source().load()
    pipeline.build()
    (data / "web-0.jsonl").unlink()
    assert len(ids(pipeline)) == len(ids(pipeline)) == 400


def test_from_a_file_and_from_names(data: Path) -> None:
    PipelineConfig.from_dict(settings(data)).save_file(data / "pipeline.json")
    assert len(ids(Pipeline.from_config(data / "pipeline.json").source().load())) == 400
    made = create_pipeline([f"{data}/web-0.jsonl", {"data_files": f"{data}/books-0.jsonl"}], load={"batch_size": 25})
    assert len(ids(made.source().load())) == 200
    with pytest.raises(ConfigError, match="do you mean 'batch_size'"):
        create_pipeline(f"{data}/web-0.jsonl").source().load({"batchsize": 3})


# --- Epochs and states --------------------------------------------------------------------------------------


def make(data: Path, kind: str) -> Pipeline:
    load = {"batch_size": 10, "shuffle_buffer_size": 60 if kind == "shuffled" else None}
    pack = {"enabled": True, "seq_length": 64}
    mix = {"stop_strategy": "all_exhausted"}
    pipeline = Pipeline.from_config(settings(data, seed=3, load=load, pack=pack, mix=mix)).source()
    if kind in ("plain", "shuffled"):
        return pipeline.load()
    if kind == "cached":
        return pipeline.tokenize().cache({"cache_dir": f"{data}/cache"}).mix().pack().load()
    return pipeline.tokenize().mix().pack().load()


def test_a_state_of_other_stages_is_refused(data: Path) -> None:
    state = make(data, "plain").state_dict()
    with pytest.raises(ResumeError, match="the state is of the stages"):
        make(data, "packed").load_state_dict(state)
    with pytest.raises(ResumeError, match="a Pipeline needs one with stages, loader"):
        make(data, "plain").load_state_dict({})
