"""Samples that are written where others stopped: what is there is not read again."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.blocks.block import Block
    from penstock.types import Sample


class Samples(Protocol):
    """Samples in order, which can go on where others stood."""

    def take(self, count: int) -> list[Sample]:
        """Return so many of the next samples, or those that are left."""

    def take_block(self, count: int) -> Block:
        """Return the same in the form in which they come."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Describe where they stand."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where others stood."""

    def close(self) -> None:
        """Close what is open."""


class Sink(Protocol):
    """Takes samples a block at a time, and knows after which of them another process can go on."""

    @property
    def position(self) -> Any:
        """Where the samples stood that are written; None at the beginning."""

    @property
    def num_wanted(self) -> int:
        """How many samples to write next, at most."""

    def write_block(self, rows: Block, position: Callable[[], Any]) -> None:
        """Write samples; `position` tells where the source stands after them."""


def write_samples(open_samples: Callable[[], Samples], sink: Sink) -> None:
    """Write all samples that are not written yet."""
    with closing(open_samples()) as samples:
        if sink.position is not None:
            samples.load_state_dict(sink.position)
        while rows := samples.take_block(sink.num_wanted):
            sink.write_block(rows, samples.state_dict)
