"""What a stage of a pipeline is, and what it is given: the way to add a stage of your own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ResumeError
from penstock.order.state_fields import COUNT, check_fields, describe_kind
from penstock.pipeline.observing import Observer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.loaders.async_loader import AsyncDataLoader
    from penstock.pipeline.config import PipelineConfig
    from penstock.sources.base import ShardedSource
    from penstock.sources.iterators import SampleIterator

    Data = dict[str, ShardedSource | AsyncDataLoader]


@dataclass(slots=True)
class PipelineContext:
    """What all stages of a pipeline share.

    Args:
        config: The settings of the pipeline.
        seed: What order and mixing depend on.
        step: How many batches of the current pass have been delivered.
        epoch: The number of the current pass.
        metrics: Counts by stage and dataset, such as `metrics["cache/web"]["samples"]`.
        observer: Shows progress, writes the log, and fills `metrics`.
    """

    config: PipelineConfig
    seed: int | None = None
    step: int = 0
    epoch: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    observer: Observer = None  # type: ignore[assignment]  # made below

    def __post_init__(self) -> None:
        if self.observer is None:
            self.observer = Observer(self.config.observability)
        self.observer.metrics = self.metrics


class BaseStage(ABC):
    """One step of a pipeline, from sources to sources. Define `process`, and add it with `Pipeline.add`.

        class Shouting(BaseStage):
            name = "shouting"

            def process(self, data, context):
                return {name: source.map(shout) for name, source in data.items()}

    Args:
        config: Settings of the stage, whatever they are.
    """

    name: str

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.metrics: dict[str, float] = {}

    @abstractmethod
    def process(self, data: Data, context: PipelineContext) -> Data:
        """Make new sources, by name, of those that the stages before gave."""

    def validate_config(self, config: PipelineConfig) -> list[str]:  # noqa: ARG002
        """List what is wrong with the settings, before anything is read."""
        return []

    def get_metrics(self) -> dict[str, float]:
        """Give what the stage has counted."""
        return dict(self.metrics)


@dataclass(frozen=True, slots=True)
class ResumeState:
    """A position in a source, for loops that count shards and rows themselves; loaders have a state of their own.

    Args:
        shard_index: The shard.
        row_index: The next row of it.
        epoch: The pass.
        step: The batch.
        dataset_states: States of several datasets, by name.
    """

    shard_index: int = 0
    row_index: int = 0
    epoch: int = 0
    step: int = 0
    dataset_states: Mapping[str, Any] = field(default_factory=dict)

    def open(self, source: ShardedSource) -> SampleIterator:
        """Go on reading a source at this position."""
        return source.iter_shards(start_shard=self.shard_index, start_row=self.row_index)

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as plain values."""
        return {
            "shard_index": self.shard_index,
            "row_index": self.row_index,
            "epoch": self.epoch,
            "step": self.step,
            "dataset_states": dict(self.dataset_states),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ResumeState:
        """Make a state of what `to_dict` gave."""
        counts = {f"{name}?": COUNT for name in ("shard_index", "row_index", "epoch", "step")}
        check_fields(data, {**counts, "dataset_states?": dict}, "a ResumeState")
        if set(data) - set(cls().to_dict()):
            raise ResumeError(f"this is {describe_kind(data)}, and no ResumeState")
        return cls(**{name: value for name, value in data.items() if value is not None})
