"""The protocol of what makes blocks, one after the other, from a position that can be saved and gone back to."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import ConfigError, SampleIndexError
from penstock.order.state_fields import refuse

if TYPE_CHECKING:
    from penstock.blocks.block import Block
    from penstock.order.state_fields import Fields

State = dict[str, Any]


class Stage(Protocol):
    """Makes blocks: a file that is read in order, a transform, a mix, a shuffle buffer."""

    @property
    def state_fields(self) -> Fields:
        """The fields of its states, which are checked before it is given one."""
        ...

    def next(self) -> Block:
        """Return the next rows, as many as it is good to read at once; none where they end.

        How many these are may depend on how fast they come. So either a block always begins at the same places, or its
        positions (`Block.after`) do not tell where it began.
        """
        ...

    def get_state(self) -> State:
        """Return the position where the next block begins, as plain JSON values."""
        ...

    def set_state(self, state: State) -> None:
        """Go to where a block may begin."""
        ...

    def close(self) -> None:
        """Close what is open; it is of no use afterwards."""
        ...


def count_after(start: State, given: int) -> State:
    """Describe a position by where some rows begin that are read at once, and how many of them come before it."""
    return {**start, "given": given} if given else start


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
