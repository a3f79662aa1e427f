"""Pipelines: stages in their order, nothing dropped, every setting followed or refused, cut anywhere and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from penstock import (
    AsyncDataLoader,
    DatasetConfig,
    LoadStageConfig,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    TokenizerConfig,
    create_pipeline,
)
from penstock.errors import ConfigError, OutputExistsError, ResumeError, StageOrderError

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [f"w{number}" for number in range(60)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two datasets of text, and a tokenizer for them."""
    for name, count in (("web", 300), ("books", 100)):
        lines = [json.dumps({"id": f"{name}{n}", "text": " ".join(WORDS[: n % 50 + 1])}) for n in range(count)]
        half = count // 2
        (tmp_path / f"{name}-0.jsonl").write_text("\n".join(lines[:half]))
        (tmp_path / f"{name}-1.jsonl").write_text("\n".join(lines[half:]))
    vocab = {word: number for number, word in enumerate(["<unk>", "<pad>", "<eos>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def settings(data: Path, **further: Any) -> dict[str, Any]:
    return {
        "datasets": [
            {"name": "web", "data_files": f"{data}/web-*.jsonl"},
            {"name": "books", "data_files": f"{data}/books-*.jsonl"},
        ],
        "default_tokenizer": f"{data}/tokenizer.json",
        "load": {"batch_size": 10},
        **further,
    }


def ids(batches: Any) -> list[str]:
    return [name for batch in batches for name in batch["id"]]


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


@pytest.mark.parametrize(
    "values",
    [
        {"source": {"cloud_max_retries": 7}},
        {"cache": {"hash_fn": "path"}},
        {"cache": {"disk_cache_expiry": 1}},
        {"ray": {"enabled": True}},
        {"observability": {"progress_type": "json"}},
        {"observability": {"log_level": "DEBUG"}},
        {"observability": {"metrics_enabled": False}},
        {"save": {"push_to_hub": True, "hub_repo_id": "a/b"}},
    ],
)
def test_what_is_not_followed_is_refused(data: Path, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        Pipeline.from_config(settings(data, **values))


def test_settings_of_a_stage_are_checked_where_they_are_given(data: Path) -> None:
    pipeline = Pipeline.from_config(settings(data)).source()
    with pytest.raises(ConfigError, match="cache.hash_fn='path' is not supported"):
        pipeline.cache({"hash_fn": "path"})
    with pytest.raises(ConfigError, match="mix has weights for other"):
        pipeline.mix({"weights": {"web": 0.5, "other": 0.5}})
    with pytest.raises(ConfigError, match="save.push_to_hub=True is not supported"):
        pipeline.save({"enabled": True, "push_to_hub": True, "hub_repo_id": "a/b"})
    with pytest.raises(ConfigError, match="the settings are a int: give a LoadStageConfig"):
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


def same(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(
        set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("kind", ["plain", "shuffled", "packed", "cached"])
def test_cut_anywhere_and_gone_on(data: Path, kind: str) -> None:
    whole = make(data, kind)
    first, second = list(whole), list(whole)
    assert len(first) > 5
    assert same(first, second) == (kind != "shuffled")  # each pass is the next epoch
    for cut in (0, 1, 5, len(first)):
        begun = make(data, kind)
        batches = iter(begun)
        for _ in range(cut):
            next(batches)
        state = json.loads(json.dumps(begun.state_dict()))
        resumed = make(data, kind)
        resumed.load_state_dict(state)
        rest = list(resumed)
        assert same(rest, first[cut:]) or (cut == len(first) and same(rest, second))


def test_a_state_of_other_stages_is_refused(data: Path) -> None:
    state = make(data, "plain").state_dict()
    with pytest.raises(ResumeError, match="the state is of the stages"):
        make(data, "packed").load_state_dict(state)
    with pytest.raises(ResumeError, match="not the state of a pipeline"):
        make(data, "plain").load_state_dict({})


# --- The cache ----------------------------------------------------------------------------------------------


def cached(data: Path, **further: Any) -> Pipeline:
    cache = {"cache_dir": f"{data}/cache"}
    return Pipeline.from_config(settings(data, cache=cache, **further)).source().tokenize().cache()


def folders(data: Path) -> set[str]:
    return {path.name for path in (data / "cache").iterdir()}


def test_cached_samples_are_the_same_and_made_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = list(Pipeline.from_config(settings(data)).source().tokenize().build())
    assert same(list(cached(data).build()), plain)
    keys = folders(data)
    assert len(keys) == 2
    from penstock.sources.tokens.source import TokenizeTransform

    def never(*_: Any) -> None:
        raise AssertionError("tokenized again")

    with monkeypatch.context() as patch:
        patch.setattr(TokenizeTransform, "__call__", never)
        assert same(list(cached(data).build()), plain)
    # Other settings, another tokenizer or other files are other keys.
    cached(data, tokenize={"max_length": 9}).build()
    assert len(folders(data)) == 4
    text = (data / "tokenizer.json").read_text()
    (data / "tokenizer.json").write_text(text.replace('"w1"', '"w1x"'))
    assert not same(list(cached(data).build()), plain)
    assert len(folders(data)) == 6
    with (data / "web-0.jsonl").open("a") as file:
        file.write('\n{"id": "new", "text": "w1"}')
    assert sum(1 for _ in cached(data).build()) == 401
    assert len(folders(data)) == 7


def test_cached_samples_are_shuffled_as_a_whole(data: Path) -> None:
    source = cached(data).build()
    dataset = StreamingDataset(streams=[Stream(source=source)], shuffle=True, batch_size=8)  # type: ignore[arg-type]
    lengths = Counter(len(sample["input_ids"]) for sample in dataset)
    assert lengths == Counter(len(sample["input_ids"]) for sample in source)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=2, collate_fn=len)
    assert sum(loader) == 400


def test_caching_as_settings_say(data: Path) -> None:
    config = settings(data, cache={"cache_dir": f"{data}/cache", "compression": "zstd"})
    config["datasets"][0]["cache_enabled"] = False
    config["datasets"][1]["cache_path"] = f"{data}/own"
    Pipeline.from_config(config).source().cache().build()
    assert not (data / "cache").exists()
    (folder,) = (data / "own").iterdir()
    assert list(folder.glob("*.zstd"))
    off = settings(data, tokenize={"cache_tokenized": False}, cache={"cache_dir": f"{data}/cache"})
    Pipeline.from_config(off).source().tokenize().cache().build()
    assert not (data / "cache").exists()
    memory = Pipeline.from_config(settings(data)).source().cache({"cache_type": "memory"}).build()
    for path in data.glob("*.jsonl"):
        path.unlink()
    assert sum(1 for _ in memory) == 400


def test_what_has_no_fingerprint_is_not_cached(data: Path) -> None:
    config = settings(data, cache={"cache_dir": f"{data}/cache"})
    config["datasets"][0]["format_callback"] = lambda sample: sample
    with pytest.raises(ConfigError, match="no fingerprint"):
        Pipeline.from_config(config).source().cache().build()
    with pytest.raises(ConfigError, match="folder of this machine"):
        Pipeline.from_config(settings(data)).source().cache({"cache_dir": "s3://bucket/cache"}).build()


BUILD = """
import sys, time
from penstock import Pipeline
from penstock.pipeline import cached
from penstock.sources.tokens.source import TokenizeTransform
cached._SHARD_SIZE = 2000
quick = TokenizeTransform._finish
if len(sys.argv) > 2:
    TokenizeTransform._finish = lambda *given: [time.sleep(0.01), quick(*given)][1]
Pipeline.from_config(sys.argv[1]).source().tokenize().cache().build()
"""


def test_a_cache_that_was_killed_or_is_built_by_others_goes_on(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(data, cache={"cache_dir": f"{data}/cache"}, tokenize={"batch_size": 1})
    PipelineConfig.from_dict(config).save_file(data / "pipeline.json")
    command = [sys.executable, "-c", BUILD, str(data / "pipeline.json")]
    process = subprocess.Popen([*command, "slowly"])
    deadline = time.monotonic() + 60
    while not list(data.glob("cache/.*.saving/_unfinished.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(folders(data)) == 2
    monkeypatch.setattr("penstock.pipeline.cached._SHARD_SIZE", 2000)
    plain = list(Pipeline.from_config(settings(data)).source().tokenize().build())
    assert same(list(cached(data).build()), plain)
    assert len(folders(data)) == 2
