"""What a stage of a pipeline is, and what it is given: the way to add a stage of your own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.pipeline.observing import Observer

if TYPE_CHECKING:
    from penstock.loaders.async_loader import AsyncDataLoader
    from penstock.pipeline.config import PipelineConfig
    from penstock.sources.base import ShardedSource

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
        """Return what the stage has counted."""
        return dict(self.metrics)
