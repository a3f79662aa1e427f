"""Every field of every setting has an effect, and a test that would notice if it had none: the table names it."""

from __future__ import annotations

import threading
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock
from penstock import Pipeline, create_source
from penstock.errors import ConfigError, StoreError
from penstock.pipeline import caching
from penstock.pipeline.stages import retry_policy
from penstock.publish import engines
from penstock.publish.materialise import materialise
from penstock.sources.tokens import tokenizers
from penstock.sources.tokens.source import TokenizeTransform
from tests.pipeline.texts import ids, same, settings
from tests.servers.hub import Repo, running_hub

if TYPE_CHECKING:
    from pathlib import Path

HERE, PIPELINE, CONFIG = "test_every_field", "test_pipeline", "test_config"
CACHING, HUB, OBSERVING = "test_caching", "test_hub", "test_observing"
RAY = "tests.engines.test_ray"
SETTINGS = f"{CACHING}:test_caching_as_settings_say"
OWN = f"{PIPELINE}:test_each_dataset_has_its_tokenizer_fields_and_functions"
SAVING = f"{PIPELINE}:test_saving"
MIXING = f"{PIPELINE}:test_mixing_by_weights"
ROWS = f"{HERE}:test_rows_change_with_each_setting_of_packing"
MIXES = f"{HERE}:test_samples_change_with_each_setting_of_mixing"
PUSH = f"{HUB}:test_one_commit_with_a_card"

TESTS = {
    "DatasetConfig": {
        "data_files": f"{PIPELINE}:test_the_shortest_way",
        "name": SAVING,
        "type": "test_stages:test_a_source_of_settings",
        "split": f"{HERE}:test_a_dataset_of_the_hub",
        "num_rows": "test_stages:test_a_source_of_settings",
        "dataset_split_name": f"{HERE}:test_a_dataset_of_the_hub",
        "tokenizer": OWN,
        "tokenizer_kwargs": f"{HERE}:test_options_of_a_tokenizer",
        "cache_path": SETTINGS,
        "cache_enabled": SETTINGS,
        "save_path": SAVING,
        "save_format": SAVING,
        "content_field": OWN,
        "additional_fields": OWN,
        "format_callback": OWN,
        "format_fields": OWN,
        "shard_column": f"{HERE}:test_rows_with_one_value_are_saved_together",
        "num_shards": SAVING,
        "storage_options": f"{HERE}:test_options_of_stores",
    },
    "PipelineConfig": {
        "datasets": f"{PIPELINE}:test_several_datasets_without_a_mix_all_come",
        "default_tokenizer": OWN,
        "streaming": f"{PIPELINE}:test_data_that_do_not_stream_are_read_once",
        "seed": f"{HERE}:test_the_seed",
        "source": f"{HERE}:test_options_of_stores",
        "tokenize": f"{HERE}:test_texts_are_tokenized_together",
        "cache": SETTINGS,
        "mix": MIXING,
        "pack": f"{PIPELINE}:test_tokens_and_rows",
        "load": f"{PIPELINE}:test_the_shortest_way",
        "save": SAVING,
        "ray": f"{RAY}:test_the_same_files_as_without_it",
        "observability": f"{OBSERVING}:test_counts_of_all_stages",
        "storage_options": f"{HERE}:test_options_of_stores",
        "schema_version": f"{CONFIG}:test_what_does_not_fit_is_an_error_before_anything_is_read",
    },
    "SourceStageConfig": {
        "streaming": f"{HERE}:test_a_source_that_does_not_stream",
        "cloud_max_retries": f"{HERE}:test_so_many_further_tries",
        "cloud_retry_delay": f"{HERE}:test_so_many_further_tries",
        "dask_storage_options": f"{HERE}:test_options_of_stores",
    },
    "TokenizeStageConfig": {
        "default_tokenizer": f"{HERE}:test_texts_are_tokenized_together",
        "max_length": f"{PIPELINE}:test_tokens_and_rows",
        "batch_size": f"{HERE}:test_texts_are_tokenized_together",
        "num_workers": f"{HERE}:test_texts_are_tokenized_together",
        "cache_tokenized": SETTINGS,
        "remove_columns": f"{PIPELINE}:test_tokens_and_rows",
    },
    "CacheStageConfig": {
        "enabled": SETTINGS,
        "cache_type": f"{CACHING}:test_small_caches_are_held_in_memory",
        "cache_dir": f"{CACHING}:test_a_cache_in_a_bucket",
        "memory_cache_size": f"{CACHING}:test_small_caches_are_held_in_memory",
        "disk_cache_expiry": f"{CACHING}:test_what_expires_is_made_anew",
        "compression": SETTINGS,
        "hash_fn": f"{CACHING}:test_files_are_told_apart_as_asked_for",
        "num_workers": f"{HERE}:test_so_many_processes_build_a_cache",
        "max_shard_size": SETTINGS,
        "part_size": f"{CACHING}:test_a_manifest_says_what_is_cached",
        "wait": f"{HERE}:test_a_cache_is_waited_for_or_not",
        "engine": f"{CACHING}:test_any_number_of_processes_of_any_engine_make_the_same_files",
    },
    "MixStageConfig": {
        "weights": MIXING,
        "weight_schedule": MIXING,
        "weight_schedule_type": MIXES,
        "weight_schedule_unit": MIXES,
        "weight_schedule_batch_size": MIXES,
        "block_size": MIXES,
        "stop_strategy": MIXING,
        "epochs": MIXES,
        "seed": MIXES,
    },
    "PackStageConfig": {
        "enabled": f"{PIPELINE}:test_stages_that_are_off_say_so",
        **dict.fromkeys(
            ("seq_length", "eos_token_id", "pad_token_id", "strategy", "num_packers", "include_segment_ids"), ROWS
        ),
        **dict.fromkeys(("shuffle_packed", "shuffle_buffer_factor", "long_documents", "include_cu_seqlens"), ROWS),
    },
    "LoadStageConfig": {
        "batch_size": f"{HERE}:test_the_loader_follows_its_settings",
        "prefetch_enabled": f"{HERE}:test_the_loader_follows_its_settings",
        "prefetch_workers": f"{HERE}:test_the_loader_follows_its_settings",
        "prefetch_buffer_size": f"{HERE}:test_batches_are_made_ahead",
        "shuffle_buffer_size": f"{HERE}:test_the_seed",
        "drop_last": f"{PIPELINE}:test_several_datasets_without_a_mix_all_come",
        "prefetch_to_device": f"{PIPELINE}:test_batches_for_jax",
        "shuffle": f"{HERE}:test_the_global_shuffle",
        "uneven": f"{HERE}:test_ranks_share_samples_as_settings_say",
    },
    "SaveStageConfig": {
        "enabled": SAVING,
        "output_dir": SAVING,
        "format": f"{HUB}:test_a_card_written_by_hand_stays",
        "num_shards": SAVING,
        "compression": f"{HERE}:test_files_are_saved_as_settings_say",
        "max_shard_size": f"{HERE}:test_files_are_saved_as_settings_say",
        "overwrite": f"{HUB}:test_again_it_replaces_what_it_wrote_and_nothing_else",
        "resume": SAVING,
        "push_to_hub": PUSH,
        "hub_repo_id": PUSH,
        "hub_private": PUSH,
        "hub_token": f"{HUB}:test_what_goes_wrong_is_raised_and_shows_no_secret",
    },
    "RayConfig": {
        "enabled": f"{RAY}:test_the_same_files_as_without_it",
        "num_workers": f"{RAY}:test_no_more_tasks_than_workers",
        "resources_per_worker": f"{RAY}:test_what_tasks_need",
        "use_gpu": f"{RAY}:test_what_tasks_need",
        "object_store_memory": f"{RAY}:test_ray_is_started_as_settings_say",
    },
    "ObservabilityConfig": {
        "progress_enabled": f"{OBSERVING}:test_silence",
        "progress_type": f"{OBSERVING}:test_lines_of_json",
        "metrics_enabled": f"{OBSERVING}:test_counts_of_all_stages",
        "log_level": f"{OBSERVING}:test_the_log",
        "log_interval": f"{OBSERVING}:test_the_log",
    },
}


@pytest.mark.parametrize("name", TESTS)
def test_each_field_has_its_test(name: str) -> None:
    assert {each.name for each in fields(getattr(penstock, name))} == set(TESTS[name])
    for place in TESTS[name].values():
        module, _, test = place.partition(":")
        home = module if "." in module else f"tests.pipeline.{module}"
        assert callable(getattr(import_module(home), test))


def test_every_setting_is_in_the_table() -> None:
    assert {name for name in dir(penstock.pipeline) if name.endswith("Config")} == set(TESTS)


# --- Sources --------------------------------------------------------------------------------------------------


def test_a_dataset_of_the_hub() -> None:
    with running_hub() as hub:
        files = {
            f"{subset}/{split}-00000.jsonl": f'{{"from": "{subset} {split}"}}\n'.encode()
            for subset in ("en", "de")
            for split in ("train", "test")
        }
        hub.repos["datasets/org/name"] = Repo()
        hub.repos["datasets/org/name"].commit("main", files)
        config = penstock.DatasetConfig(data_files="org/name", type="hf", split="test", dataset_split_name="de")
        assert list(create_source(config, hub.options())) == [{"from": "de test"}]


def test_options_of_stores(data: Path) -> None:
    odd = {"no_such_option": 1}
    ways: list[dict[str, Any]] = [{"storage_options": odd}, {"source": {"dask_storage_options": odd}}]
    for further in ways:
        with pytest.raises(ConfigError, match="no_such_option"):
            Pipeline.from_config(settings(data, **further)).source().build()
    config = settings(data, storage_options={})
    config["datasets"][1]["storage_options"] = odd
    with pytest.raises(ConfigError, match="no_such_option"):
        Pipeline.from_config(config).source().build()


class Failing(BaseHTTPRequestHandler):
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        self.send_error(503)

    do_HEAD = do_GET

    def log_message(self, *args: Any) -> None:
        pass


@pytest.mark.parametrize("retries", [0, 2])
def test_so_many_further_tries(retries: int) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        Failing.requests = 0
        config = {
            "datasets": [{"data_files": f"http://127.0.0.1:{server.server_port}/a.jsonl"}],
            "source": {"cloud_max_retries": retries, "cloud_retry_delay": 0.01},
        }
        try:
            with pytest.raises(StoreError):
                Pipeline.from_config(config).source().build()
        finally:
            server.shutdown()
            thread.join()
    assert Failing.requests == retries + 1
    policy = retry_policy(penstock.SourceStageConfig(cloud_retry_delay=7))
    assert policy is not None
    assert policy.base_s == 7
    assert retry_policy(penstock.SourceStageConfig()) is None


def test_a_source_that_does_not_stream(data: Path) -> None:
    pipeline = Pipeline.from_config(settings(data)).source({"streaming": False}).load()
    pipeline.build()
    (data / "web-0.jsonl").unlink()
    assert len(ids(pipeline)) == 400


# --- Tokenizing -----------------------------------------------------------------------------------------------


def test_options_of_a_tokenizer(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def load(config: Any, **options: Any) -> Any:
        given.append(options)
        return real(config)

    real = tokenizers.load_tokenizer
    monkeypatch.setattr(tokenizers, "load_tokenizer", load)
    config = settings(data)
    config["datasets"][1]["tokenizer_kwargs"] = {"use_fast": True}
    Pipeline.from_config(config).source().tokenize().build()
    assert given == [{}, {"use_fast": True}]


def test_texts_are_tokenized_together(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, str]] = set()
    real = TokenizeTransform.__call__

    def note(self: Any, samples: Any) -> Any:
        seen.add((len(samples), threading.current_thread().name))
        return real(self, samples)

    monkeypatch.setattr(TokenizeTransform, "__call__", note)
    config = settings(data)
    tokenizer = config.pop("default_tokenizer")
    stage = {"default_tokenizer": tokenizer, "batch_size": 30, "num_workers": 0}
    samples = list(Pipeline.from_config(config).source().tokenize(stage).build())
    assert {count for count, _ in seen} == {30, 20}
    assert {name for _, name in seen} == {threading.current_thread().name}
    seen.clear()
    assert same(list(Pipeline.from_config(config).source().tokenize({**stage, "num_workers": 2}).build()), samples)
    assert {name for _, name in seen} == {"penstock-transform"}


# --- Caching --------------------------------------------------------------------------------------------------


def test_so_many_processes_build_a_cache(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Noting(engines.ProcessPool):
        def __init__(self, num_workers: int) -> None:
            asked.append(num_workers)
            engines.ProcessPool.__init__(self, 1)

    monkeypatch.setattr(caching, "ProcessPool", Noting)
    one = settings(data)
    del one["datasets"][0]
    for number in (0, 3):
        cache = {"num_workers": number, "cache_dir": f"{data}/cache-{number}"}
        Pipeline.from_config(one).source().cache(cache).build()
    assert asked == [3]


def test_a_cache_is_waited_for_or_not(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def later(*given: Any) -> None:
        assert gate.wait(30)
        materialise(*given)

    monkeypatch.setattr(caching, "materialise", later)
    config = settings(data, cache={"cache_dir": f"{data}/cache", "wait": False})
    source = Pipeline.from_config(config).source().cache().build()  # it does not wait for the gate
    gate.set()
    assert len(list(source)) == 400
    config["cache"]["wait"] = True
    config["cache"]["cache_dir"] = f"{data}/other"
    assert len(Pipeline.from_config(config).source().cache().build()) == 400
    assert len(list((data / "other").glob("*/_manifest.json"))) == 2


# --- Mixing, packing, loading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ({}, {"weight_schedule_type": "linear"}),
        ({"weight_schedule_type": "linear"}, {"block_size": 90}),
        ({}, {"seed": 9}),
        ({}, {"weight_schedule_unit": "tokens"}),
        ({}, {"weight_schedule_unit": "batches", "weight_schedule_batch_size": 2}),
        ({"weight_schedule_unit": "batches", "weight_schedule_batch_size": 2}, {"weight_schedule_batch_size": 3}),
        ({}, {"epochs": {"books": 1}}),
    ],
)
def test_samples_change_with_each_setting_of_mixing(data: Path, base: Any, change: Any) -> None:
    points = [{"step": 0, "weights": {"web": 0.5, "books": 0.5}}, {"step": 100, "weights": {"web": 0.9, "books": 0.1}}]
    usual = {"weight_schedule": points, "block_size": 10, **base}
    config = settings(data)
    config["datasets"] = [{**each, "additional_fields": ["id"]} for each in config["datasets"]]

    def mixed(chosen: Any) -> list[str]:
        samples = iter(Pipeline.from_config(config).source().tokenize().mix(chosen).build())
        return [sample["id"] for sample in samples.take(1500)]  # type: ignore[attr-defined]

    assert mixed(usual) == mixed(usual) != mixed({**usual, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"seq_length": 32},
        {"eos_token_id": 5},
        {"pad_token_id": 7},
        {"strategy": "first_fit"},
        {"num_packers": 1},
        {"include_segment_ids": False},
        {"shuffle_packed": False},
        {"shuffle_buffer_factor": 2},
        {"long_documents": "drop"},
        {"include_cu_seqlens": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_rows_change_with_each_setting_of_packing(data: Path, change: dict[str, Any]) -> None:
    usual = {"enabled": True, "seq_length": 16, "strategy": "pool", "shuffle_buffer_factor": 1}

    def packed(config: Any) -> list[Any]:
        return list(Pipeline.from_config(settings(data, seed=1)).source().tokenize().pack(config).build())

    rows = packed(usual)
    assert same(packed(usual), rows)
    assert not same(packed({**usual, **change}), rows)


def test_the_seed(data: Path) -> None:
    def order(seed: int | None, buffer: int | None = 50) -> list[str]:
        config = settings(data, seed=seed)
        return ids(Pipeline.from_config(config).source().load({"batch_size": 10, "shuffle_buffer_size": buffer}))

    assert order(1) == order(1) != order(2)
    assert order(1, None) == order(2, None) == [*(f"web{n}" for n in range(300)), *(f"books{n}" for n in range(100))]


def test_the_global_shuffle(data: Path) -> None:
    config = settings(data, seed=1)
    config["datasets"] = config["datasets"][:1]
    order = ids(Pipeline.from_config(config).source().load({"batch_size": 10, "shuffle": True}))
    assert sorted(order) == sorted(f"web{n}" for n in range(300))
    assert sum(abs(int(name[3:]) - place) > 50 for place, name in enumerate(order)) > 150
    with pytest.raises(ConfigError, match="needs no buffer"):
        Pipeline.from_config(config).source().load({"shuffle": True, "shuffle_buffer_size": 5})


@pytest.mark.parametrize(("is_on", "workers"), [(True, 1), (True, 3), (False, 3)])
def test_the_loader_follows_its_settings(data: Path, is_on: bool, workers: int) -> None:
    load = {"batch_size": 7, "prefetch_enabled": is_on, "prefetch_workers": workers}
    before = set(threading.enumerate())
    batches = iter(Pipeline.from_config(settings(data)).source().load(load))
    assert len(next(batches)["id"]) == 7
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert names.count("penstock-prefetch") in (range(1, workers + 1) if is_on else [0])  # as they are needed
    batches.close()  # type: ignore[attr-defined]


def test_ranks_share_samples_as_settings_say(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "7")
    lengths = {}
    for uneven in ("drop", "pad", "allow"):
        counts = []
        for rank in range(7):
            monkeypatch.setenv("RANK", str(rank))
            config = settings(data)
            config["datasets"] = config["datasets"][:1]  # 300 samples
            counts.append(len(ids(Pipeline.from_config(config).source().load({"batch_size": 1, "uneven": uneven}))))
        lengths[uneven] = sorted(set(counts)), sum(counts)
    assert lengths == {"drop": ([42], 294), "pad": ([43], 301), "allow": ([42, 43], 300)}


def test_batches_are_made_ahead(data: Path) -> None:
    for ahead in (1, 9):
        loader = Pipeline.from_config(settings(data)).source().load({"prefetch_buffer_size": ahead}).build()
        assert isinstance(loader, penstock.AsyncDataLoader)
        assert loader._num_ahead == ahead  # what it does then, its own tests tell


# --- Saving ---------------------------------------------------------------------------------------------------


def test_files_are_saved_as_settings_say(data: Path) -> None:
    save = {"enabled": True, "output_dir": f"{data}/out", "format": "jsonl", "compression": "gzip"}
    Pipeline.from_config(settings(data)).source().save(save).build()
    assert [path.name for path in (data / "out" / "web").glob("shard*")] == ["shard-00000.jsonl.gz"]
    small = {**save, "output_dir": f"{data}/small", "max_shard_size": 200}
    Pipeline.from_config(settings(data)).source().save(small).build()
    assert len(list((data / "small" / "web").glob("shard*"))) > 3


@pytest.mark.parametrize("form", ["parquet", "mds"])
def test_rows_with_one_value_are_saved_together(data: Path, form: str) -> None:
    config = settings(data, save={"enabled": True, "output_dir": f"{data}/out", "format": form})
    del config["datasets"][1]
    config["datasets"][0] |= {"shard_column": "text", "num_shards": 4}
    pipeline = Pipeline.from_config(config).source().save()
    pipeline.build()
    stats = pipeline.saved["web"]
    assert stats.num_examples == 300
    assert 2 <= stats.num_shards <= 4
    shards = []
    for path in stats.output_paths:
        if form == "parquet":
            shards.append([row["text"] for row in penstock.ParquetShardedSource(path)])
    if form == "mds":
        dataset = penstock.LocalDataset(data / "out" / "web")
        ends = np.cumsum(dataset.index.lengths).tolist()
        texts = [sample["text"] for sample in dataset]
        shards = [texts[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    homes = {text: number for number, shard in enumerate(shards) for text in shard}
    assert sum(map(len, shards)) == 300
    assert all(homes[text] == number for number, shard in enumerate(shards) for text in shard)
    del config["datasets"][0]["num_shards"]
    with pytest.raises(ConfigError, match="needs num_shards="):
        Pipeline.from_config(config).source().save()
    config["datasets"][0] |= {"shard_column": "nope", "num_shards": 4, "save_path": f"{data}/elsewhere"}
    with pytest.raises(KeyError, match="no column 'nope'"):
        Pipeline.from_config(config).source().save().build()
