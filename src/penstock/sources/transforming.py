"""Applies transforms to the samples of an iterator, in this thread or, in order, in several at a time.

The position is that of the input where a chunk of it began, and how many of the results of this chunk were given.
Going back there reads and transforms this one chunk again, and nothing before it.
"""

from __future__ import annotations

import weakref
from collections import deque
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from penstock.blocks.block import Block
from penstock.blocks.worker_threads import WorkerThreads
from penstock.errors import TransformError
from penstock.sources.iterators import SampleIterator
from penstock.sources.transforms import BatchTransform, apply_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.blocks.stage import State
    from penstock.order.state_fields import Fields
    from penstock.sources.transforms import AnyTransform
    from penstock.types import Sample

    # Says where a sample is: so many samples after a position; or, with None, among so many after it.
    Describe = Callable[[State, int | None, int], str]

WorkerKind = Literal["thread", "process"]

# Samples that are transformed together: few enough that going back costs little, and so that a first sample comes soon.
_ROWS_AT_ONCE = 64


class _Outcome:
    """What became of some samples: the results, and the error that followed them, if there was one.

    `failed_at` is the number of the sample that failed, or None if it is not known which of `count` did.
    """

    __slots__ = ("count", "error", "failed_at", "made")

    def __init__(
        self, made: list[Sample], error: Exception | None = None, failed_at: int | None = 0, count: int = 1
    ) -> None:
        self.made, self.error, self.failed_at, self.count = made, error, failed_at, count


class TransformedIterator(SampleIterator):
    """What transforms make of the samples of an iterator.

    Args:
        samples: The input.
        transforms: Several that are not batched, or a single one that is.
        describe: Says where a sample is, for errors.
        num_workers: How many threads or processes transform samples; with 0, whoever asks for them does.
        worker_kind: Threads suffice where a transform leaves Python (tokenizers, NumPy, reading); processes are for
            work in Python itself, and need transforms that can be pickled.
    """

    state_fields: ClassVar[Fields] = {"input": dict}

    def __init__(
        self,
        samples: SampleIterator,
        transforms: Sequence[AnyTransform],
        describe: Describe,
        *,
        num_workers: int = 0,
        worker_kind: WorkerKind = "thread",
    ) -> None:
        super().__init__()
        self._samples, self._describe = samples, describe
        batched = transforms[0] if transforms and isinstance(transforms[0], BatchTransform) else None
        self._rows_at_once = _ROWS_AT_ONCE if batched is None else batched.batch_size
        self._work = (
            partial(_transform_rows, tuple(transforms)) if batched is None else partial(_transform_batch, batched)
        )
        self._pool = None if num_workers == 0 else _Pool(num_workers, worker_kind)
        # Work under way, in order: where its input began, and what will come of it.
        self._under_way: deque[tuple[State, Future[_Outcome] | _Outcome]] = deque()

    def close(self) -> None:
        """End the workers and close the input."""
        self._under_way.clear()
        if self._pool is not None:
            self._pool.close()
        self._samples.close()

    def next(self) -> Block:
        """Transform the next samples, or wait for those that are under way."""
        count, most = self._rows_at_once, 1 if self._pool is None else self._pool.most_under_way
        while True:
            while len(self._under_way) < most:
                start = self._samples.state_dict()
                samples = self._samples.read_block(count, count, as_samples=True).samples()
                if not samples:
                    break
                made = self._work(samples) if self._pool is None else self._pool.submit(self._work, samples)
                self._under_way.append((start, made))
            if not self._under_way:
                return Block()
            start, made = self._under_way.popleft()
            outcome = made.result() if isinstance(made, Future) else made
            if outcome.error is not None:
                failure = self._failure_at(start, outcome)
                if not outcome.made:
                    raise failure from outcome.error
                self._failure = failure  # raised after the results that came before it
                failure.__cause__ = outcome.error
            if outcome.made:
                return Block(outcome.made)

    def _failure_at(self, start: State, outcome: _Outcome) -> TransformError:
        where = self._describe(start, outcome.failed_at, outcome.count)
        error = outcome.error
        return TransformError(f"a transform failed on {where}: {type(error).__name__}: {error}", where=where)

    def get_state(self) -> State:
        """Return where the input of the next samples begins."""
        return {"input": self._under_way[0][0] if self._under_way else self._samples.state_dict()}

    def set_state(self, state: State) -> None:
        """Go to a position of the input, and forget the work under way."""
        for _, made in self._under_way:
            if isinstance(made, Future):
                made.cancel()
        self._under_way.clear()
        self._samples.load_state_dict(state["input"])


class _Pool:
    """Some workers that end when they are closed, or when nobody has this any more."""

    def __init__(self, num_workers: int, kind: WorkerKind) -> None:
        self.most_under_way = 2 * num_workers
        self._num_workers, self._kind = num_workers, kind
        self._executor: Executor | None = None

    def submit(self, work: Callable[[list[Sample]], _Outcome], samples: list[Sample]) -> Future[_Outcome]:
        if self._executor is None:
            self._executor = self._start()
            weakref.finalize(self, _end, self._executor)
        return self._executor.submit(work, samples)

    def close(self) -> None:
        if self._executor is not None:
            _end(self._executor)

    def _start(self) -> Executor:
        if self._kind == "process":  # started afresh: a forked child would have our locks, and none of our threads
            return ProcessPoolExecutor(self._num_workers, mp_context=get_context("spawn"))
        return WorkerThreads(self._num_workers, "penstock-transform")


def _end(executor: Executor) -> None:
    executor.shutdown(wait=False, cancel_futures=True)


def _transform_rows(transforms: Sequence[AnyTransform], samples: list[Sample]) -> _Outcome:
    made: list[Sample] = []
    for number, sample in enumerate(samples):
        try:
            made += apply_all(transforms, sample)
        except Exception as error:  # noqa: BLE001  raised where its sample would have been
            return _Outcome(made, error, number)
    return _Outcome(made)


def _transform_batch(transform: BatchTransform, samples: list[Sample]) -> _Outcome:
    made: list[Sample] = []
    try:
        made.extend(transform(samples))
    except Exception as error:  # noqa: BLE001
        return _Outcome(made, error, getattr(error, "facts", {}).get("number"), len(samples))
    return _Outcome(made)


def describe_row(
    name: str, find_row: Callable[[State, int], int | None], state: State, number: int | None, count: int
) -> str:
    """Describe where a sample is, by a state of the iterator that it came from.

    Args:
        name: The shard.
        find_row: Finds the stored row of a sample, so many samples after a state.
        state: The state.
        number: How many samples it came after it; None if it is one of several.
        count: Of how many.
    """
    first = find_row(state, number or 0)
    if first is not None:
        if number is not None or count == 1:
            return f"row {first} of {name}"
        return f"one of the rows {first} to {find_row(state, count - 1)} of {name}"
    inner: Any = state  # samples of a batch may come of any of its rows
    while isinstance(inner, dict) and "row" not in inner:
        inner = inner.get("input")
    return f"a sample of {name}" + (f" that was made of row {inner['row']} or a row soon after it" if inner else "")


def find_row(samples: SampleIterator, transforms: Sequence[AnyTransform], state: State, number: int) -> int | None:
    """Find the stored row that a sample was made of, so many samples after a state, by making them again.

    Args:
        samples: An iterator over the input of the transforms.
        transforms: They made the samples.
        state: Of the iterator over what they made.
        number: How many samples come before it, from the state on.
    """
    samples.load_state_dict(state["input"])
    left = number + state.get("given", 0)
    while True:
        here = samples.state_dict()
        taken = samples.take(1)
        if not taken or "row" not in here:
            return None
        left -= len(apply_all(transforms, taken[0]))
        if left < 0:
            return int(here["row"])
