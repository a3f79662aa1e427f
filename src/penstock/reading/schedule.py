"""The batches of one worker in one pass: read in blocks of several, while the shards of later ones are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.formats.gather import SAMPLES_AT_ONCE
from penstock.order.plan import batch_positions, worker_batches, worker_first
from penstock.reading.sample_rng import keys_of_positions
from penstock.reading.source import PORTION_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.order.cursor import Cursor
    from penstock.order.id_spans import IdSpans
    from penstock.order.keys import UInt64Array
    from penstock.order.plan import Plan
    from penstock.order.world import Seat
    from penstock.reading.source import FetchesShards, FollowsSamples
    from penstock.types import Int64Array

# Rows of one shard are decoded together, so a block should have some of each: as many as make the steps per shard cheap
# beside those per row. More would be slower: samples that are still in the processor's cache are collated, and freed,
# in half the time. Where rows lie in too many shards for that, the blocks end here, before they fill the memory; and
# sooner where tables of very many shards fill it already. Of few shards, so many rows make the steps per block cheap.
_ENOUGH_ROWS, _ENOUGH_ROWS_PER_SHARD = 2048, 256
_ENOUGH_ROWS_BY_COLUMN, _ENOUGH_ROWS_PER_SHARD_BY_COLUMN = 4096, 512  # which cost less each
_ENOUGH_BYTES, _ENOUGH_BYTES_PER_SHARD = 1 << 20, 256 << 10
_MAX_BLOCK_SAMPLES = 3 << 12
_MAX_BLOCK_SAMPLES_OF_MANY_SHARDS = 1 << 13
_MANY_SHARDS = 1 << 15
_MAX_BLOCK_BYTES = 16 << 20
# Large samples are often images, which grow tenfold when they are decoded: only few wait to be handed out at a time, or
# a batch of them is far more than the processor's cache, and memory that the system has to find first.
_LARGE_SAMPLE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSchedule:
    """Which batches one worker of one rank reads in one pass: everything here is arithmetic."""

    plan: Plan
    at: Cursor
    seat: Seat
    global_batch_size: int
    seed: int

    def ids(self, turns: range) -> list[Int64Array]:
        """Return the ids of some of the worker's batches, by their numbers; empty past the end."""
        return worker_batches(self.plan, self.at, turns, self.seat, self.global_batch_size)

    def first_id(self, turn: int) -> Int64Array:
        """Return the first id of one of the worker's batches alone, if there is one."""
        return worker_first(self.plan, self.at, turn, self.seat, self.global_batch_size)

    def keys(self, first_turn: int, batches: list[Int64Array]) -> UInt64Array:
        """Return the keys of the samples of some of the worker's batches, from which transforms draw."""
        positions = [
            batch_positions(self.plan, self.at, self.seat.step_of(turn), self.seat, self.global_batch_size, len(ids))
            for turn, ids in enumerate(batches, first_turn)
        ]
        return keys_of_positions(self.seed, self.at.epoch, np.concatenate(positions))

    def num_turns(self) -> int:
        """Count the batches of this worker."""
        num_steps = self.plan.num_batches(self.at, self.seat, self.global_batch_size)
        workers = self.seat.world.workers_per_rank
        return max(0, -(-(num_steps - self.seat.worker) // workers))

    @property
    def batch_size(self) -> int:
        """Samples of this rank in a whole batch."""
        return max(1, self.global_batch_size // self.seat.world.num_ranks)

    def blocks(
        self, first_turn: int, sample_bytes: float, spans: IdSpans, *, by_column: bool
    ) -> Iterator[list[Int64Array]]:
        """Cut the turns into blocks: one batch first, so that it comes soon, then more and more at a time."""
        num_turns = self.num_turns()
        by_memory = _MAX_BLOCK_SAMPLES if len(spans) < _MANY_SHARDS else _MAX_BLOCK_SAMPLES_OF_MANY_SHARDS
        most = max(1, min(by_memory, int(_MAX_BLOCK_BYTES / max(1.0, sample_bytes))) // self.batch_size)
        turn, size, grows = first_turn, 1, True
        while turn < num_turns:
            block = self.ids(range(turn, min(turn + size, num_turns)))
            turn += len(block)
            grows = grows and size < most and not _is_enough(block, spans, sample_bytes, by_column=by_column)
            if grows:
                size = min(2 * size, most)
            yield block


def _is_enough(block: list[Int64Array], spans: IdSpans, sample_bytes: float, *, by_column: bool) -> bool:
    """Return whether a block has enough rows of each shard; or enough bytes, unless these are copied batch by batch."""
    ids = np.concatenate(block)
    shards, _ = spans.locate(ids)
    rows_per_shard = len(ids) / max(1, len(set(shards.tolist())))
    if not by_column and rows_per_shard * sample_bytes >= _ENOUGH_BYTES_PER_SHARD:
        return True
    rows, per_shard = (
        (_ENOUGH_ROWS_BY_COLUMN, _ENOUGH_ROWS_PER_SHARD_BY_COLUMN)
        if by_column
        else (_ENOUGH_ROWS, _ENOUGH_ROWS_PER_SHARD)
    )
    return rows_per_shard >= per_shard and (len(ids) >= rows or len(ids) * sample_bytes >= _ENOUGH_BYTES)


# Samples that were read are decoded so many bytes at a time, and freed before the next ones: these then get memory that
# is still in the processor's cache, and that the system has not taken back.
_DECODED_BYTES = 2 << 20


def decoded_at_once(num_samples: int, sample_bytes: float) -> int:
    """Return how many of the samples of a block to decode at a time, about as many each time."""
    by_bytes, by_count = num_samples * sample_bytes / _DECODED_BYTES, -(-num_samples // SAMPLES_AT_ONCE)
    return max(1, -(-num_samples // max(1, round(by_bytes), by_count)))


def portion_size(sample_bytes: float, portion_bytes: int = PORTION_BYTES) -> int | None:
    """Return how many samples to read at a time out of a block, if they are large: `None` means all of them."""
    return None if sample_bytes < _LARGE_SAMPLE_BYTES else max(1, int(portion_bytes / sample_bytes))


# Samples of the first batch that are read alone come again with their shards: so small a part of all may come twice.
_MOST_TWICE = 1 / 12


def may_read_first_alone(*, global_batch_size: int, num_samples: int) -> bool:
    """Return whether the first batch of all ranks is little enough of the dataset to be fetched without its shards."""
    return global_batch_size <= _MOST_TWICE * num_samples


# Shards that are fetched before they are needed, by default.
_AHEAD_BYTES = 512 << 20
_MIN_BATCHES_AHEAD = 8


def ask_for_shards(source: FetchesShards, spans: IdSpans, ids: Int64Array, batches_ahead: int) -> None:
    """Ask for the shards of these samples alone: others would take the network, or the processor, from them."""
    shards = np.sort(spans.locate(ids)[0])
    shards = shards[np.diff(shards, prepend=-1) > 0]
    source.expect(shards, np.full(len(shards), batches_ahead))


class Prefetcher:
    """Tells the source, every now and then, which shards the rank's next steps need."""

    def __init__(self, schedule: BatchSchedule, source: FetchesShards, batches_ahead: int) -> None:
        self._schedule = schedule
        self._source = source
        self._batches_ahead = max(1, batches_ahead)
        self._next_step: int | None = None

    def look_ahead(self, step: int) -> None:
        """Look ahead from a step of the rank, if the last look is not recent.

        The first batch waits for the first look, so that one goes less far, and the next comes soon.
        """
        if self._next_step is None:
            self._next_step = step + 1
            self._expect(step, min(self._batches_ahead, max(_MIN_BATCHES_AHEAD, self._batches_ahead // 4)))
        elif step >= self._next_step:
            self._next_step = step + max(1, self._batches_ahead // 4)
            self._expect(step, self._batches_ahead)

    def _expect(self, step: int, num_batches: int) -> None:
        schedule = self._schedule
        shards, first_steps = schedule.plan.expected_shards(
            schedule.at, step, num_batches, schedule.seat, schedule.global_batch_size
        )
        self._source.expect(shards, first_steps)


_ANNOUNCED_AT_ONCE = 1 << 10


class Announcer:
    """Tells the source which samples this worker will read, as far ahead as it wants to know."""

    def __init__(self, schedule: BatchSchedule, source: FollowsSamples) -> None:
        self._schedule, self._source = schedule, source
        self._turns_ahead = -(-source.samples_ahead // schedule.batch_size)
        self._at_once = max(1, min(_ANNOUNCED_AT_ONCE // schedule.batch_size, self._turns_ahead // 8))
        self._next_turn: int | None = None

    def look_ahead(self, turn: int) -> None:
        """Look ahead from a batch of the worker."""
        is_first = self._next_turn is None
        begin = turn if self._next_turn is None else max(turn, self._next_turn)
        end = min(turn + max(1, self._turns_ahead), self._schedule.num_turns())
        if end - begin >= self._at_once or begin <= turn or end == self._schedule.num_turns():
            self._next_turn = max(begin, end)
            ids = self._schedule.ids(range(begin, end)) if begin < end else []
            if ids:
                self._source.announce(np.concatenate(ids), is_first=is_first)


def max_open_shards(*, limit_bytes: int | None, shard_bytes: float, num_readers: int) -> int | None:
    """Return how many shards each of the readers of a node may hold open: together, half of what the cache may hold.

    Closing one does not remove it: it stays for as long as the plan needs it, and opening it again is quick.
    """
    return None if limit_bytes is None else max(1, int(limit_bytes / (2 * num_readers * max(1.0, shard_bytes))))


def batches_ahead(
    *, predownload: int | None, batch_size: int, sample_bytes: float, limit_bytes: int | None, ranks_per_node: int
) -> int:
    """Choose how far to look ahead: as the user says in samples, else by bytes, and within the limit of the cache."""
    if predownload is not None:
        return max(1, -(-predownload // batch_size))
    num_bytes = _AHEAD_BYTES if limit_bytes is None else min(_AHEAD_BYTES, limit_bytes // (4 * ranks_per_node))
    return max(_MIN_BATCHES_AHEAD, int(num_bytes / max(1.0, sample_bytes * batch_size)))


_ROWS_IN_ORDER = 256
_BYTES_IN_ORDER = 32 << 20


def rows_at_once(sample_bytes: float) -> int:
    """Return how many samples to read at a time in a pass over a dataset; images take more than they are stored in."""
    return max(1, min(_ROWS_IN_ORDER, int(_BYTES_IN_ORDER / max(1.0, sample_bytes))))
