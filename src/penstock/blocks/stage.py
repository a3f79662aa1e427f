"""The protocol of what makes blocks, one after the other, from a position that can be saved and gone back to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from penstock.blocks.block import Block
from penstock.errors import ConfigError, ResumeError, SampleIndexError
from penstock.order.state_fields import COUNT, check_fields, refuse, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

State = dict[str, Any]
Position = Callable[[], State]  # a state that is computed when it is asked for

_MOST_BLOCKS_GIVEN = 1024  # after a position: following a damaged state could take for ever


class Stage(Protocol):
    """Makes blocks: a file that is read in order, a transform, a mix, a shuffle buffer.

    Each block has positions (`Block.after`). They are exact: how many rows came together never shows in them.
    """

    def next(self) -> Block:
        """Return the next rows, as many as it is good to read at once; none where they end."""

    def get_state(self) -> State:
        """Return the position after the rows given last, as plain JSON values."""

    def set_state(self, state: State) -> None:
        """Go to a position, which may be damaged; one with `given` is for `resume`."""


class OpenStage(Stage, Protocol):
    """A stage that has something to close, as those of sources have."""

    def close(self) -> None:
        """Close what is open; it is of no use afterwards."""


def counted(block: Block, start: Position, end: Position) -> Block:
    """Return a block whose positions count its rows from where it begins; behind the last one is another position."""
    return block.at(partial(_count_after, start, end, len(block)))


def _count_after(start: Position, end: Position, num_rows: int, given: int) -> State:
    return end() if given == num_rows else {**start(), "given": given} if given else start()


def resume(stage: Stage, state: Mapping[str, Any]) -> Block:
    """Go to a position, also to one that counts from where a block begins, and return what is left of this block."""
    given = check_fields(state, {"given?": COUNT}, "an iterator over samples").get("given") or 0
    stage.set_state({name: value for name, value in state.items() if name != "given"})
    try:
        skipped, rest = skip_rows(stage, given, _MOST_BLOCKS_GIVEN)
    except SampleIndexError as error:
        raise unfit(error) from error.__cause__
    if skipped < given:
        raise refuse("given", given, f"a number of samples that there are after {shown(state)}")
    return rest


def unfit(error: SampleIndexError) -> ResumeError:
    """Make the error for a state whose row is not there."""
    return ResumeError(f"the state does not fit: {error}", **error.facts)


def skip_rows(stage: Stage, count: int, most_blocks: int = sys.maxsize) -> tuple[int, Block]:
    """Pass over so many rows, fewer where they end; return how many these were, and what is left of their block."""
    skipped, rest = 0, Block()
    for _ in range(most_blocks):
        if skipped == count or not len(block := stage.next()):
            break
        _, rest = block.split(count - skipped)
        skipped += len(block) - len(rest)
    return skipped, rest


class BegunStage:
    """Rows that were read of a stage already, and then all that comes after them."""

    def __init__(self, rest: Block, stage: OpenStage) -> None:
        self._rest, self._stage = rest, stage

    def next(self) -> Block:
        """Return the rest, or the next rows."""
        rest, self._rest = self._rest, Block()
        return rest if len(rest) else self._stage.next()

    def get_state(self) -> State:
        """Return the position after the rows given last."""
        return self._stage.get_state() if self._rest.after is None else self._rest.after(0)

    def set_state(self, state: State) -> None:
        """Go to a position."""
        self._rest = Block()
        self._stage.set_state(state)

    def close(self) -> None:
        """Close the stage."""
        self._stage.close()


def open_at_row(stage: OpenStage, name: str, row: int) -> OpenStage:
    """Return a stage from one of its rows on; to get there, all rows before it are read."""
    skipped, rest = skip_rows(stage, row)
    check_row(name, row, row if skipped == row else skipped)
    return BegunStage(rest, stage) if row else stage


def row_after(row: int, given: int) -> State:
    """Describe a position by the number of the row."""
    return {"row": row + given}


def saved_row(position: State, num_rows: int | None) -> int:
    """Return the row of a position; one past the end, if that is known, is refused."""
    row: int = position["row"]
    if num_rows is not None and row > num_rows:
        raise refuse("row", row, f"one of the {num_rows} rows")
    return row


def check_row(name: str, row: int, num_rows: int | None) -> int:
    """Refuse a row that a shard does not have; the one after the last is fine, and has nothing after it."""
    try:
        row = index(row)  # that of NumPy would not do in a state
    except TypeError:
        raise ConfigError(f"row={row!r} is not a whole number") from None
    if row < 0 or (num_rows is not None and row > num_rows):
        known = "" if num_rows is None else f": it has {num_rows} rows"
        raise SampleIndexError(f"row {row} of shard {name!r} does not exist{known}", shard=name, row=row)
    return row
