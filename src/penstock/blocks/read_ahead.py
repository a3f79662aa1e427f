"""Rows that are read ahead, a few blocks at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.blocks.block import Block, join_blocks

if TYPE_CHECKING:
    from penstock.blocks.stage import Stage


class ReadRows(NamedTuple):
    """Rows that were read together, what is left of the last block, and the error that came after them."""

    rows: Block
    rest: Block
    error: Exception | None


def read_rows(
    stage: Stage, rest: Block, at_least: int, at_most: int, longest_s: float, makes_samples: bool
) -> ReadRows:
    """Read a few blocks; fewer if they take long, so that the first rows are handed on."""
    parts: list[Block] = []
    count, deadline = 0, time.perf_counter() + longest_s
    while count < min(at_most, at_least) and not (parts and time.perf_counter() > deadline):
        try:
            rest = rest if len(rest) else stage.next()
        except Exception as error:  # noqa: BLE001  raised after the rows
            return ReadRows(join_blocks(parts), Block(), error)
        if not len(rest):
            break
        part, rest = rest.split(at_most - count)
        if makes_samples:
            part.samples()
        parts.append(part)
        count += len(part)
    return ReadRows(join_blocks(parts), rest, None)
