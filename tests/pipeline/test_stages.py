"""Sources of settings, and stages that pass their settings on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock import DatasetConfig, MemoryShardedSource, ObservabilityConfig, SourceStageConfig, create_source
from penstock.errors import ConfigError, ObjectNotFoundError
from penstock.pipeline.observing import Observer
from penstock.pipeline.stages import hold_in_memory, joined, retry_policy

if TYPE_CHECKING:
    from pathlib import Path


def test_sources_follow_one_another_and_are_held_in_memory() -> None:
    one, two = (MemoryShardedSource([{"n": n}], fingerprint=str(n)) for n in range(2))
    assert joined({"one": one}) is one
    assert [row["n"] for row in joined({"one": one, "two": two})] == [0, 1]
    observer = Observer(ObservabilityConfig())
    held = hold_in_memory(one, "one", observer)
    assert list(held) == [{"n": 0}]
    assert observer.metrics["memory/one"]["samples"] == 1


def test_retries_of_settings_that_are_not_the_usual_ones() -> None:
    assert retry_policy(SourceStageConfig()) is None
    policy = retry_policy(SourceStageConfig(cloud_max_retries=2, cloud_retry_delay=7))
    assert policy is not None
    assert (policy.attempts, policy.base_s, policy.max_s) == (3, 7, 28)


def test_a_source_of_settings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "b.csv").write_text("n\n3\n")
    (tmp_path / "c.txt").write_text("line\n")
    root = str(tmp_path)
    assert list(create_source(DatasetConfig(data_files=f"{root}/a.jsonl"))) == [{"n": 1}, {"n": 2}]
    assert list(create_source(DatasetConfig(data_files=f"{root}/a.jsonl", num_rows=1))) == [{"n": 1}]
    assert list(create_source(DatasetConfig(data_files=f"{root}/b.csv"))) == [{"n": "3"}]
    assert list(create_source(DatasetConfig(data_files=f"{root}/c.txt", content_field="t"))) == [{"t": "line"}]
    assert list(create_source(DatasetConfig(data_files=f"{root}/c.txt", type="csv"))) == []
    with pytest.raises(ConfigError, match="several types"):
        create_source(DatasetConfig(data_files=[f"{root}/a.jsonl", f"{root}/b.csv"]))
    with pytest.raises(ObjectNotFoundError, match="nope.parquet"):  # and no attempt to download it from anywhere
        create_source(DatasetConfig(data_files=f"{root}/nope.parquet"))
    with pytest.raises(ConfigError, match="set type='huggingface' too"):
        create_source(DatasetConfig(data_files=f"{root}/a.jsonl", dataset_split_name="x"))
