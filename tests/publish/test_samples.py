"""Samples go on after what is kept of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock import MemoryShardedSource
from penstock.publish.samples import write_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.blocks.block import Block


class Blocks:
    """Notes blocks of three samples, and where the source stood after every second one."""

    num_wanted = 3

    def __init__(self, position: Any = None) -> None:
        self.position = position
        self.blocks: list[list[int]] = []
        self.fails_at = -1

    def write_block(self, rows: Block, position: Callable[[], Any]) -> None:
        if len(self.blocks) == self.fails_at:
            raise ZeroDivisionError
        self.blocks.append([row["n"] for row in rows.samples()])
        if len(self.blocks) % 2 == 0:
            self.position = position()


def test_samples_go_on_after_what_is_kept() -> None:
    source = MemoryShardedSource([{"n": n} for n in range(11)], num_shards=2)
    sink = Blocks()
    sink.fails_at = 3
    with pytest.raises(ZeroDivisionError):
        write_samples(source.iter_shards, sink)
    assert sink.blocks == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    again = Blocks(sink.position)
    write_samples(source.iter_shards, again)
    assert again.blocks == [[6, 7, 8], [9, 10]]
