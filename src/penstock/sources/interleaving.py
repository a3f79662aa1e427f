"""Shards side by side, some rows of each in turn, the next read while the last are used; lanes; the rows of a rank."""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.block import Block, join_blocks
from penstock.blocks.read_ahead import read_rows
from penstock.blocks.stage import counted, resume, saved_row
from penstock.errors import ResumeError
from penstock.order.keys import draw, hash_key
from penstock.order.state_fields import COUNT, check_fields, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    import numpy.typing as npt

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.read_ahead import ReadRows
    from penstock.blocks.stage import OpenStage, Position, State
    from penstock.types import Int64Array


_LONGEST_S = 0.05  # that rows are collected before they are handed on
AT_ROW = "at"  # the field of a position that is known by its row alone


@dataclass(frozen=True, slots=True)
class RowRange:
    """Some rows of a shard: from the first on, to the end or as many as are counted."""

    shard: str
    row: int = 0
    num_rows: int | None = None


def divide(names: Sequence[str], lengths: Sequence[int], lane: int, num_lanes: int, uneven: str) -> list[RowRange]:
    """Return the rows of a lane, where shards lie end to end: the same number in every lane.

    What is left over is not read; to `"pad"`, the last lanes begin again with the first rows; or they have fewer.
    """
    total = sum(lengths)
    share = total // num_lanes if uneven == "drop" else -(-total // num_lanes)
    ends = list(accumulate(lengths))
    ranges: list[RowRange] = []
    at = lane * share
    left = share if uneven != "allow" else max(0, min(share, total - at))
    while left and total:
        at %= total
        number = bisect_right(ends, at)
        row = at - (ends[number] - lengths[number])
        count = min(left, lengths[number] - row)
        ranges.append(RowRange(names[number], row, count))
        at, left = at + count, left - count
    return ranges


@dataclass(frozen=True, slots=True)
class RangeReading:
    """How ranges are read: `open_at` opens a shard at a row, and at least so many rows are read together.

    The next ones are read in the executor while the last ones are used; without one, when they are needed. If
    `makes_samples`, samples are made of columns there, too.
    """

    open_at: Callable[[str, int], OpenStage]
    at_least: int
    executor: Executor | None = None
    makes_samples: bool = False


class RangeStage:
    """The rows of a range. A position is that of the shard, and how many rows are left of the range."""

    def __init__(self, row_range: RowRange, reading: RangeReading, *, is_at_beginning: bool = True) -> None:
        self._range, self._reading = row_range, reading
        # Where a state will be loaded, there is no use in finding the first row.
        self._shard = reading.open_at(row_range.shard, row_range.row if is_at_beginning else 0)
        self._rest = Block()  # of the shard
        self._left = row_range.num_rows  # after those that were given
        self._ahead: Future[ReadRows] | None = None
        self._failure: Exception | None = None  # it comes after the rows that were given
        # What describes where the shard is after the rows given last, and how many are left.
        self.position: Position = partial(dict, rows=self._shard.get_state(), left=self._left)
        if is_at_beginning:
            self._start_reading()

    def close(self) -> None:
        """Close the shard, unless a thread is in it, which lets go of it when it has its rows."""
        if self._ahead is None or self._ahead.cancel() or self._ahead.done():
            self._shard.close()

    def next(self) -> Block:
        """Read the next rows, or wait for those that are being read."""
        if self._failure is not None:
            raise self._failure
        rows, self._rest, self._failure = self._read() if self._ahead is None else self._ahead.result()
        self._ahead = None
        if not len(rows):
            if self._failure is not None:
                raise self._failure
            return rows
        assert rows.after is not None  # noqa: S101
        left = self._left
        self.position = partial(_position_after, rows.after, left, len(rows))
        self._left = None if left is None else left - len(rows)
        self._start_reading()
        return rows.at(partial(_position_after, rows.after, left))

    def _start_reading(self) -> None:
        if self._reading.executor is not None and self._left != 0 and self._failure is None:
            self._ahead = self._reading.executor.submit(read_rows, *self._what_to_read())

    def _read(self) -> ReadRows:
        return read_rows(*self._what_to_read())

    def _what_to_read(self) -> tuple[OpenStage, Block, int, int, float, bool]:
        most = sys.maxsize if self._left is None else self._left
        return self._shard, self._rest, self._reading.at_least, most, _LONGEST_S, self._reading.makes_samples

    def get_state(self) -> State:
        """Return where the shard is, and how many rows are left."""
        return self.position()

    def set_state(self, state: State) -> None:
        """Go to a position in the shard."""
        check_fields(state, {"rows": dict, "left?": COUNT}, "an iterator over some rows")
        if self._ahead is not None and not self._ahead.cancel() and not self._ahead.done():
            self._shard = self._reading.open_at(self._range.shard, 0)  # a thread is in the other
        self._ahead = self._failure = None
        left, most = state.get("left"), self._range.num_rows
        if (left is None) != (most is None) or (left or 0) > (most or 0):
            raise refuse("left", left, f"a part of {most} rows")
        self.position, self._left = partial(dict, rows=state["rows"], left=left), left
        if [*state["rows"]] == [AT_ROW]:
            row = saved_row(check_fields({"row": state["rows"][AT_ROW]}, {"row": COUNT}, "some rows"), None)
            self._shard, self._rest = self._reading.open_at(self._range.shard, row), Block()
        else:
            self._rest = resume(self._shard, state["rows"])


def _position_after(after: PositionAfter, left: int | None, given: int) -> State:
    return {"rows": after(given), "left": None if left is None else left - given}


_GROUPS_AT_ONCE = 256
_ROWS_AT_ONCE = 16
_FIELDS = {"next": COUNT, "turn": COUNT, "open": [{"piece": COUNT}]}


class RowNumbers:
    """The rows of a shard without anything in them: what is between a shard and its order says where that would be."""

    _AT_ONCE = 1 << 16

    def __init__(self, row: int, num_rows: int) -> None:
        self._row, self._num_rows = row, num_rows

    def close(self) -> None:
        """Close nothing."""

    def next(self) -> Block:
        """Return the next rows."""
        row, count = self._row, min(self._AT_ONCE, self._num_rows - self._row)
        self._row += count
        return Block(None, {}, count, partial(_at_row, row))

    def get_state(self) -> State:
        """Return which row is next, as `RangeStage` reads it."""
        return {AT_ROW: self._row}

    def set_state(self, state: State) -> None:
        """Go to a row."""
        self._row = state[AT_ROW]


def _at_row(row: int, given: int) -> State:
    return {AT_ROW: row + given}


@dataclass(slots=True)
class _OpenRange:
    number: int
    stage: RangeStage
    rest: Block = field(default_factory=Block)

    @property
    def position(self) -> Position:
        after = self.rest.after
        return partial(_of_range, self.number, self.stage.position if after is None else partial(after, 0))


def _of_range(number: int, position: Position) -> State:
    return {"piece": number, **position()}


class InterleavedStage:
    """Reads some ranges side by side: so many rows of each in turn; where one ends, the next takes its place.

    Args:
        ranges: What to read.
        reading: How they are read; the order does not depend on it.
        num_open: How many are read side by side.
        rows_in_turn: Rows of each before it is the next one's turn; None where only one is open: any number.
    """

    def __init__(
        self, ranges: Sequence[RowRange], reading: RangeReading, *, num_open: int, rows_in_turn: int | None
    ) -> None:
        self._ranges, self._reading = ranges, reading
        self._num_open, self._rows_in_turn = num_open, rows_in_turn
        self._next = 0  # range to open
        self._turn = 0
        self._open: list[_OpenRange] = []
        self._here: Position | None = None  # where the next turn begins, once one is over
        self._failure: Exception | None = None  # it comes after the rows that were given

    def close(self) -> None:
        """Close all shards."""
        for each in self._open:
            each.stage.close()

    def next(self) -> Block:
        """Read the next rows of the range whose turn it is, or of several turns that are short."""
        if self._rows_in_turn is None:
            return self._next_turn()
        start = self._position() if self._here is None else self._here
        parts: list[Block] = []
        num_rows = 0
        while num_rows < _ROWS_AT_ONCE and self._failure is None:
            try:
                part = self._next_turn()
            except Exception as error:  # noqa: BLE001  raised after the rows before it
                self._failure = error
                break
            if not len(part):
                break
            parts.append(part)
            num_rows += len(part)
        if self._failure is not None and not parts:
            raise self._failure
        self._here = self._position()
        return counted(join_blocks(parts), start, self._here)

    def _next_turn(self) -> Block:
        while True:
            while len(self._open) < self._num_open and self._next < len(self._ranges):
                self._open.append(self._open_next())
            if not self._open:
                return Block()
            self._turn %= len(self._open)
            current = self._open[self._turn]
            rows = self._take(current)
            if len(rows) and self._rows_in_turn is None:
                assert rows.after is not None  # noqa: S101
                return rows.at(partial(_in_only_one, self._next, self._turn, current.number, rows.after))
            if len(rows):
                self._turn += 1
                return rows
            current.stage.close()
            if self._next < len(self._ranges):
                self._open[self._turn] = self._open_next()
            else:
                del self._open[self._turn]

    def _take(self, current: _OpenRange) -> Block:
        """Take the rows of a turn; fewer where the range ends, or before an error, which comes again."""
        parts: list[Block] = []
        left = self._rows_in_turn or sys.maxsize
        if len(current.rest) > left:
            part, current.rest = current.rest.split(left)
            return part
        while left and not (parts and self._rows_in_turn is None):
            try:
                rows = current.rest if len(current.rest) else current.stage.next()
            except Exception:
                if not parts:
                    raise
                break
            if not len(rows):
                break
            part, current.rest = rows.split(left)
            parts.append(part)
            left -= len(part)
        return join_blocks(parts)

    def _open_next(self) -> _OpenRange:
        number, self._next = self._next, self._next + 1
        return _OpenRange(number, RangeStage(self._ranges[number], self._reading))

    def get_state(self) -> State:
        """Return which ranges are open, and where they are."""
        return self._position()()

    def _position(self) -> Position:
        return partial(_side_by_side, self._next, self._turn, [each.position for each in self._open])

    def set_state(self, state: State) -> None:
        """Open the ranges of a state."""
        check_fields(state, _FIELDS, "an iterator over shards side by side")
        self.close()
        numbers = {each["piece"] for each in state["open"]}
        if max([state["next"], *(number + 1 for number in numbers)]) > len(self._ranges):
            raise ResumeError("the state belongs to a source with more shards than this one")
        if not len(numbers) == len(state["open"]) <= self._num_open:
            raise refuse("open", sorted(numbers), f"at most {self._num_open} different shards")
        self._next, self._turn = state["next"], state["turn"]
        self._open, self._here = [self._reopen(each["piece"], each) for each in state["open"]], None
        self._failure = None

    def _reopen(self, number: int, position: State) -> _OpenRange:
        stage = RangeStage(self._ranges[number], self._reading, is_at_beginning=False)
        return _OpenRange(number, stage, resume(stage, position))


def _side_by_side(following: int, turn: int, positions: Sequence[Position]) -> State:
    return {"next": following, "turn": turn, "open": [position() for position in positions]}


def _in_only_one(following: int, turn: int, number: int, after: PositionAfter, given: int) -> State:
    return {"next": following, "turn": turn, "open": [{"piece": number, **after(given)}]}


class SplitStage:
    """Every so many-th row, for one of several ranks that all read the same: each gets as many as the others.

    Which one of a group changes from group to group, so that no rank sees only one side of what alternates. The last
    group may have too few rows: it is dropped, or ranks get some of them twice, or some ranks one more than others.
    """

    def __init__(self, rows: OpenStage, *, rank: int, num_ranks: int, uneven: str, seed: int) -> None:
        self._input, self._rank, self._num_ranks, self._uneven = rows, rank, num_ranks, uneven
        self._key, self._group = hash_key("split", seed), 0
        self._rest = Block()  # of the input

    def close(self) -> None:
        """Close the input."""
        self._input.close()

    def next(self) -> Block:
        """Read a group or more, and keep one row of each."""
        rows = self._rest
        while len(rows) < self._num_ranks and len(more := self._input.next()):
            rows = join_blocks([rows, more]) if len(rows) else more
        group, num_groups = self._group, min(_GROUPS_AT_ONCE, len(rows) // self._num_ranks)
        num_left = 0 if num_groups else len(rows)  # at the end
        rows, self._rest = rows.split(num_groups * self._num_ranks + num_left)
        within = self._within(np.arange(group, group + num_groups + 1, dtype=np.uint64))
        mine = np.arange(num_groups) * self._num_ranks + within[:-1]
        if num_left and self._uneven != "drop":
            mine = within[-1:] % num_left if self._uneven == "pad" else within[-1:][within[-1:] < num_left]
        self._group += num_groups
        after = rows.after and partial(_after_groups, rows.after, len(rows), group, self._num_ranks)
        return rows.pick(mine).at(after)

    def within(self, group: int) -> int:
        """Return which row of a group is that of this rank."""
        return int(self._within(np.array([group], np.uint64))[0])

    def _within(self, groups: npt.NDArray[np.uint64]) -> Int64Array:
        drawn = draw(self._key, groups) + np.uint64(self._rank)
        return (drawn % np.uint64(self._num_ranks)).astype(np.int64)

    def get_state(self) -> State:
        """Return which group is next, and where the input is."""
        after = self._rest.after
        return {"group": self._group, "samples": self._input.get_state() if after is None else after(0)}

    def set_state(self, state: State) -> None:
        """Go to a group."""
        check_fields(state, {"group": COUNT, "samples": dict}, "an iterator over the samples of a rank")
        self._group = state["group"]
        self._rest = resume(self._input, state["samples"])


def _after_groups(after: PositionAfter, num_rows: int, group: int, num_ranks: int, given: int) -> State:
    """Describe the position after one row of so many groups; the last may be smaller."""
    return {"group": group + min(given, num_rows // num_ranks), "samples": after(min(given * num_ranks, num_rows))}


_LANE = {"lane": COUNT, "taken": COUNT, "at?": dict}
_LANES = {"lanes": [_LANE]}


@dataclass(slots=True)
class _Lane:
    number: int
    stage: OpenStage | None  # None: it has ended
    taken: int = 0
    rest: Block = field(default_factory=Block)

    @property
    def position(self) -> Position | None:
        if self.stage is None:
            return None
        after = self.rest.after
        return partial(dict, self.stage.get_state()) if after is None else partial(after, 0)


class TurnsStage:
    """Lanes in turn, a row of each: always of that one, the first of those, that has given the fewest."""

    def __init__(self, lanes: Sequence[int], open_lane: Callable[[int], OpenStage]) -> None:
        self._open_lane = open_lane
        self._lanes = [_Lane(number, open_lane(number)) for number in lanes]

    def close(self) -> None:
        """Close all lanes."""
        for lane in self._lanes:
            if lane.stage is not None:
                lane.stage.close()

    def next(self) -> Block:
        """Return the rows that are at hand, up to the one that has to be read first."""
        for lane in self._lanes:
            while lane.stage is not None and not len(lane.rest):
                lane.rest = lane.stage.next()
                if not len(lane.rest):
                    lane.stage.close()
                    lane.stage = None
        open_lanes = [lane for lane in self._lanes if lane.stage is not None]
        if not open_lanes:
            return Block()
        start = [(lane.number, lane.taken, lane.position) for lane in self._lanes]
        level, last = min((lane.taken + len(lane.rest), lane.number) for lane in open_lanes)
        parts, levels, numbers = [], [], []
        moving: list[tuple[int, PositionAfter]] = []
        for place, lane in enumerate(self._lanes):
            count = max(0, level + (lane.number < last) - lane.taken) if lane.stage is not None else 0
            if count:
                rows, lane.rest = lane.rest.split(count)
                assert rows.after is not None  # noqa: S101
                parts.append(rows)
                moving.append((place, rows.after))
                levels.append(np.arange(lane.taken, lane.taken + len(rows)))
                numbers.append(np.full(len(rows), place))
                lane.taken += len(rows)
        if len(parts) == 1:
            return parts[0].at(partial(_after_turns, start, moving, numbers[0]))
        places = np.concatenate(numbers)
        order = np.lexsort((places, np.concatenate(levels)))
        return join_blocks(parts).pick(order).at(partial(_after_turns, start, moving, places[order]))

    def get_state(self) -> State:
        """Return where each lane is, and how many rows it has given."""
        return _after_turns([(lane.number, lane.taken, lane.position) for lane in self._lanes], [], np.empty(0), 0)

    def set_state(self, state: State) -> None:
        """Go to a position in each lane; none where it has ended."""
        check_fields(state, _LANES, "an iterator over lanes")
        if [each["lane"] for each in state["lanes"]] != [lane.number for lane in self._lanes]:
            raise refuse("lanes", state["lanes"], f"{len(self._lanes)} lanes")
        for lane, each in zip(self._lanes, state["lanes"], strict=True):
            at, lane.taken = each.get("at"), each["taken"]
            if lane.stage is None:
                lane.stage = self._open_lane(lane.number)
            lane.rest = Block() if at is None else resume(lane.stage, at)
            if at is None:
                lane.stage.close()
                lane.stage = None


def _after_turns(
    start: Sequence[tuple[int, int, Position | None]],
    moving: Sequence[tuple[int, PositionAfter]],
    places: npt.NDArray[Any],
    given: int,
) -> State:
    """Describe the position after some rows, each of the lane at its place."""
    counts = np.bincount(places[:given].astype(np.int64), minlength=len(start)).tolist()
    after = {place: moved(counts[place]) for place, moved in moving if counts[place]}
    lanes = []
    for place, (number, taken, position) in enumerate(start):
        at = after.get(place, None if position is None else position())
        lanes.append({"lane": number, "taken": taken + counts[place], "at": at})
    return {"lanes": lanes}
