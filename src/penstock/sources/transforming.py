"""Applies transforms to blocks, in this thread or, in order, in several at a time."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import deque
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Literal

from penstock.blocks.block import Block, join_blocks
from penstock.blocks.stage import resume
from penstock.errors import TransformError
from penstock.order.state_fields import check_fields
from penstock.sources.transforms import BatchTransform, apply_to_batch, apply_to_each
from penstock.threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import OpenStage, Position, State
    from penstock.sources.transforms import AnyTransform, Outcome
    from penstock.types import Sample

    # Says where a sample is: so many rows after where positions begin; or, with None, among so many of them.
    Describe = Callable[[PositionAfter, int | None, int], str]

WorkerKind = Literal["thread", "process"]

# Samples that are transformed together: few enough that a first sample comes soon.
_ROWS_AT_ONCE = 64


class TransformedStage:
    """What transforms make of the rows of a stage.

    The position is that after the input of the sample given last; where this input makes more samples, that before it,
    and how many were given. In a batch, it is that before the batch.

    Args:
        rows: The input.
        transforms: Several that are not batched, or a single one that is.
        describe: Says where a row is, for errors.
        num_workers: How many threads or processes transform samples; with 0, the caller does.
        worker_kind: Threads suffice where a transform leaves Python (tokenizers, NumPy, reading); processes are for
            work in Python itself, and need transforms that can be pickled.
    """

    def __init__(
        self,
        rows: OpenStage,
        transforms: Sequence[AnyTransform],
        describe: Describe,
        *,
        num_workers: int = 0,
        worker_kind: WorkerKind = "thread",
    ) -> None:
        self._input, self._describe = rows, describe
        batched = transforms[0] if transforms and isinstance(transforms[0], BatchTransform) else None
        self._at_least, self._at_most = (1, _ROWS_AT_ONCE) if batched is None else (batched.batch_size,) * 2
        self._work: Callable[[list[Sample]], Outcome] = (
            partial(apply_to_each, tuple(transforms)) if batched is None else partial(apply_to_batch, batched)
        )
        self._num_workers, self._kind = num_workers, worker_kind
        self._executor: Executor | None = None
        self._rest = Block()  # of the input
        self._here: Position = partial(dict, input=rows.get_state())  # after the rows given last
        # Work under way, in order: its input, and what will come of it.
        self._under_way: deque[tuple[Block, Future[Outcome] | Outcome]] = deque()
        self._failure: Exception | None = None  # it comes after what is under way

    def close(self) -> None:
        """End the workers and close the input."""
        self._under_way.clear()
        if self._executor is not None:
            _end(self._executor)
        self._input.close()

    def next(self) -> Block:
        """Transform the next rows, or wait for those that are under way."""
        while True:
            while self._failure is None and len(self._under_way) < max(1, 2 * self._num_workers):
                rows = self._take()
                if not len(rows):
                    break
                self._under_way.append((rows, self._begin(rows.samples())))
            if not self._under_way:
                if self._failure is not None:
                    raise self._failure
                return Block()
            rows, begun = self._under_way.popleft()
            outcome = begun.result() if isinstance(begun, Future) else begun
            if outcome.error is not None:
                self._failure = self._failure_of(rows, outcome, outcome.error)
                self._under_way.clear()
            if outcome.made:
                return self._positioned(rows, outcome)

    def _take(self) -> Block:
        """Take rows of the input that are transformed together; what fails comes after those before it."""
        parts: list[Block] = []
        count = 0
        while count < self._at_least:
            try:
                rows = self._rest if len(self._rest) else self._input.next()
            except Exception as error:  # noqa: BLE001  raised after what is under way
                self._failure = error
                break
            if not len(rows):
                break
            rows.samples()  # all of them at once, which is quicker
            part, self._rest = rows.split(self._at_most - count)
            parts.append(part)
            count += len(part)
        return join_blocks(parts)

    def _begin(self, samples: list[Sample]) -> Future[Outcome] | Outcome:
        if self._num_workers == 0:
            return self._work(samples)
        if self._executor is None:
            if self._kind == "process":  # started afresh: a forked child would have our locks, and none of our threads
                self._executor = ProcessPoolExecutor(self._num_workers, mp_context=get_context("spawn"))
            else:
                self._executor = WorkerThreads(self._num_workers, "penstock-transform")
            weakref.finalize(self, _end, self._executor)
        return self._executor.submit(self._work, samples)

    def _positioned(self, rows: Block, outcome: Outcome) -> Block:
        assert rows.after is not None  # noqa: S101
        block = Block(outcome.made)
        if outcome.ends is None:
            block = block.at(partial(_after_batch, rows.after, len(rows), len(block)))
        else:
            block = block.at(partial(_after_each, rows.after, outcome.ends))
        assert block.after is not None  # noqa: S101
        self._here = partial(block.after, len(block))
        return block

    def _failure_of(self, rows: Block, outcome: Outcome, error: Exception) -> TransformError:
        assert rows.after is not None  # noqa: S101
        where = self._describe(rows.after, outcome.failed_at, len(rows))
        failure = TransformError(f"a transform failed on {where}: {type(error).__name__}: {error}", where=where)
        failure.__cause__ = error
        return failure

    def get_state(self) -> State:
        """Return where the input of the next samples begins."""
        return self._here()

    def set_state(self, state: State) -> None:
        """Go to a position of the input, and forget the work under way."""
        check_fields(state, {"input": dict}, "an iterator over transformed samples")
        for _, made in self._under_way:
            if isinstance(made, Future):
                made.cancel()
        self._under_way.clear()
        self._failure, self._here = None, partial(dict, input=state["input"])
        self._rest = resume(self._input, state["input"])


def _end(executor: Executor) -> None:
    executor.shutdown(wait=False, cancel_futures=True)


def _after_batch(after: PositionAfter, num_rows: int, num_made: int, given: int) -> State:
    if given == num_made:
        return {"input": after(num_rows)}
    return {"input": after(0), "given": given} if given else {"input": after(0)}


def _after_each(after: PositionAfter, ends: list[int], given: int) -> State:
    """Describe the position after so many samples that were made of rows, by how many were made up to each row."""
    if not given:
        return {"input": after(0)}
    row = bisect_left(ends, given)
    if row < len(ends) and ends[row] == given:
        return {"input": after(row + 1)}
    return {"input": after(row), "given": given - (ends[row - 1] if row else 0)}


def describe_row(name: str, find_row: Callable[[int], int | None], state: State, number: int | None, count: int) -> str:
    """Describe where a row of a stage is.

    Args:
        name: The shard.
        find_row: Finds the stored row of one of the rows.
        state: The position before them.
        number: Which of them it is; None if it is one of several.
        count: Of how many.
    """
    first = find_row(number or 0)
    if first is not None:
        if number is not None or count == 1:
            return f"row {first} of {name}"
        return f"one of the rows {first} to {find_row(count - 1)} of {name}"
    inner: State | None = state  # samples of a batch may come of any of its rows
    while isinstance(inner, dict) and "row" not in inner:
        inner = inner.get("input")
    return f"a sample of {name}" + (f" that was made of row {inner['row']} or a row soon after it" if inner else "")
