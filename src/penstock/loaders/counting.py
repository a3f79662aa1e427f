"""Which batches were delivered to the training loop, and the state of the job that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.data.dataset import StreamingDataset
    from penstock.data.passes import Pass

T = TypeVar("T")


class DeliveredBatches:
    """Counts what a loader gives out, whatever its workers or threads have read ahead. For any kind of loader."""

    def __init__(self, dataset: StreamingDataset, *, drops_last: bool) -> None:
        self._dataset, self._drops_last = dataset, drops_last
        self._begun: Pass | None = None
        self._num_steps = 0
        self._is_over = False

    def count(self, begun: Pass, batches: Iterator[T]) -> Iterator[T]:
        """Return the batches of a pass that begins now, each counted as it is taken."""
        self.begin(begun)
        return self._count(begun, batches)

    def _count(self, begun: Pass, batches: Iterator[T]) -> Iterator[T]:
        for batch in batches:
            self.add(begun)
            yield batch
        self.finish(begun)

    def begin(self, begun: Pass) -> None:
        """Count the batches of a pass from now on."""
        self._begun, self._num_steps, self._is_over = begun, 0, False

    def add(self, begun: Pass) -> None:
        """Count a batch of a pass; one that was left for another no longer counts."""
        self._num_steps += self._begun is begun

    def finish(self, begun: Pass) -> None:
        """Note that a pass has no batch left."""
        self._is_over = self._is_over or self._begun is begun

    def num_batches(self) -> int:
        """Count the batches of an epoch."""
        return self._dataset.run.num_batches(0, drop_last=self._drops_last)

    def num_samples(self) -> int:
        """Count the samples of the batches that were delivered in this pass."""
        return 0 if self._begun is None else self._dataset.run.num_samples_after(self._begun, self._num_steps)

    def state_dict(self) -> dict[str, Any]:
        """Describe where the whole job stands after the batch delivered last, as plain JSON values."""
        run = self._dataset.run
        if self._begun is None or run.passes.read().is_between_passes:
            return self._dataset.state_dict()
        return run.state_after(self._begun, self._num_steps, is_over=self._is_over and self._drops_last)

    def forget(self) -> None:
        """A state was loaded: what was delivered before it no longer counts."""
        self._begun = None
