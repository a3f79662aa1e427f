"""What a pipeline says of its work: bars, lines for people and machines, log records and counts."""

from __future__ import annotations

import json
import logging
import sys
import threading
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest

from penstock import BaseStage, ObservabilityConfig, Pipeline, PipelineContext
from penstock.errors import ConfigError, ResumeError, StageOrderError
from penstock.pipeline.observing import Observer
from tests.pipeline.texts import ids, settings

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: StringIO, **how: Any) -> str:
    observer = Observer(ObservabilityConfig(**how), stream)
    with observer.watch("save", "web", total=30) as work:
        for _ in range(3):
            work.add(10, 100)
    return stream.getvalue()


def test_bars_of_tqdm() -> None:
    before = threading.active_count()
    text = shown(Terminal())
    assert "save/web: 100%" in text
    assert "30/30" in text
    assert threading.active_count() == before  # no thread of tqdm's that a fork would lose


def test_a_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "save/web: 30 samples, 300.0 B" in shown(Terminal(), progress_type="plain").replace("300 B", "300.0 B")
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert "save/web: 30 samples" in shown(Terminal())  # and it does where tqdm is not installed


def test_lines_of_json() -> None:
    lines = [json.loads(line) for line in shown(StringIO(), progress_type="json", log_interval=2).splitlines()]
    assert [(line["done"], line["bytes"], line["state"]) for line in lines] == [
        (20, 200, "running"),
        (30, 300, "done"),
    ]
    assert {(line["work"], line["unit"], line["total"]) for line in lines} == {("save/web", "samples", 30)}
    stream = StringIO()
    with pytest.raises(ZeroDivisionError):
        with Observer(ObservabilityConfig(progress_type="json"), stream).watch("save", "x"):
            raise ZeroDivisionError
    assert json.loads(stream.getvalue())["state"] == "failed"


def test_silence() -> None:
    assert shown(Terminal(), progress_type="none") == ""
    assert shown(Terminal(), progress_enabled=False) == ""
    assert shown(StringIO()) == ""  # bars are for people


def test_rich_is_a_line_where_it_is_missing() -> None:
    assert "save/web" in shown(Terminal(), progress_type="rich")


def build(data: Path, **observability: Any) -> Pipeline:
    config = settings(data, observability=observability, cache={"cache_dir": f"{data}/cache"})
    config["save"] = {"enabled": True, "output_dir": f"{data}/out", "overwrite": True}
    return Pipeline.from_config(config).source().tokenize().cache().save().load({"batch_size": 1})


def test_counts_of_all_stages(data: Path) -> None:
    pipeline = build(data)
    assert sum(1 for _ in pipeline) == 400
    context = pipeline.get_context()
    assert isinstance(context, PipelineContext)
    assert (context.step, context.epoch) == (400, 0)
    metrics = context.metrics
    assert {name: counts["samples"] for name, counts in metrics.items() if "samples" in counts} == {
        "cache/web": 300,
        "cache/books": 100,
        "save/web": 300,
        "save/books": 100,
    }
    assert metrics["save/web"]["bytes"] > 0
    assert metrics["load/loader"]["batches"] == 400
    assert metrics["load/loader"]["seconds_waiting"] >= 0
    next(iter(pipeline))
    assert (context.step, context.epoch) == (1, 1)
    off = build(data, metrics_enabled=False)
    assert sum(1 for _ in off) == 400
    assert off.get_context().metrics == {}


def test_the_log(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    def records(**observability: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "penstock.pipeline"):
            list(build(data, **observability))
        return [record.getMessage() for record in caplog.records if record.name == "penstock.pipeline"]

    usual = records(log_interval=150)
    assert any(line.startswith("save/web done: 300 samples") for line in usual)
    assert sum(line.startswith("load/loader: ") for line in usual) == 2  # after 150 and 300 batches
    assert not any("begins" in line for line in usual)
    assert any(line == "save/web begins" for line in records(log_level="DEBUG"))
    assert records(log_level="ERROR") == []


# --- Stages of your own ---------------------------------------------------------------------------------------


class Shouting(BaseStage):
    name = "shouting"

    def process(self, data: Any, context: PipelineContext) -> Any:
        self.metrics["datasets"] = len(data)
        context.observer.count("shouting/all", datasets=len(data))
        return {name: source.map(self.shout) for name, source in data.items()}

    def shout(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "id": sample["id"].upper() + self.config}

    def validate_config(self, config: Any) -> list[str]:
        return [] if isinstance(self.config, str) else ["how loud?"]


def test_a_stage_of_your_own(data: Path) -> None:
    stage = Shouting("!")
    pipeline = Pipeline.from_config(settings(data)).source().add(stage).load({"batch_size": 100})
    assert pipeline.get_stages() == ["source", "shouting", "load"]
    assert ids(pipeline)[0] == "WEB0!"
    assert stage.get_metrics() == {"datasets": 2}
    assert pipeline.get_context().metrics["shouting/all"] == {"datasets": 2}
    other = Pipeline.from_config(settings(data)).source().load({"batch_size": 100})
    with pytest.raises(ResumeError, match="of the stages"):
        other.load_state_dict(pipeline.state_dict())
    with pytest.raises(ConfigError, match="how loud"):
        Pipeline.from_config(settings(data)).source().add(Shouting())
    with pytest.raises(StageOrderError, match="between source"):
        Pipeline.from_config(settings(data)).add(Shouting("!"))
    with pytest.raises(StageOrderError, match="between source"):
        Pipeline.from_config(settings(data)).source().load().add(Shouting("!"))
    with pytest.raises(ConfigError, match="inherits from BaseStage"):
        Pipeline.from_config(settings(data)).source().add("shouting")  # type: ignore[arg-type]


def test_what_was_built_can_be_looked_at(data: Path) -> None:
    pipeline = Pipeline.from_config(settings(data)).source()
    assert {name: source.num_shards for name, source in pipeline.get_data().items()} == {"web": 2, "books": 2}
    assert pipeline.get_context().config is pipeline.config
