"""The loader of a pipeline: it tells the pipeline's context how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.loaders.async_loader import AsyncDataLoader

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.pipeline.stage import PipelineContext


class ObservedLoader(AsyncDataLoader):
    """An `AsyncDataLoader` whose batches are counted and logged as `ObservabilityConfig` says."""

    _context: PipelineContext | None = None

    def observe(self, context: PipelineContext) -> None:
        """Notify a context of each batch from now on."""
        self._context = context

    def __iter__(self) -> Generator[Any]:
        """Begin the next pass, or go on where a loaded state says."""
        context = self._context
        if context is None:
            yield from super().__iter__()
            return
        batches = super().__iter__()
        context.step = 0
        with context.observer.watch("load", "loader", unit="batches", has_bar=False) as work:
            try:
                for batch in batches:
                    if context.step == 0:
                        context.epoch = int(self.state_dict().get("epoch", 0))
                    context.step += 1
                    work.add(1)
                    yield batch
            except GeneratorExit:
                return  # who stops early has not failed
            finally:
                batches.close()
                waited = self.stats().seconds_waiting
                context.observer.set("load/loader", seconds_waiting=waited)
