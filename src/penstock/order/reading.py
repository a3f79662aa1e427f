"""Reading an order in large strides, however small the batches are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.order.memory import Recent

if TYPE_CHECKING:
    from penstock.order.layout import EpochOrder
    from penstock.types import Int64Array

_IDS_AT_ONCE = 1 << 16


class ReadAhead:
    """Reads more ids than asked for and hands them out piece by piece, so that small batches cost little."""

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._kept: Recent[list[tuple[range, Int64Array]]] = Recent(4)

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Give the ids at evenly spaced positions of an epoch; the caller may change the array."""
        if len(positions) == 0:
            return self._order.ids(epoch, positions)
        step = positions.step
        kept = self._kept((epoch, step, positions.start % step), list)
        for have, ids in kept:
            if have.start <= positions.start and positions[-1] <= have[-1]:
                first = (positions.start - have.start) // step
                return ids[first : first + len(positions)].copy()
        ahead = range(positions.start, positions.start + max(len(positions), _IDS_AT_ONCE) * step, step)
        ahead = range(ahead.start, min(ahead.stop, self._order.size(epoch)), step)
        ids = self._order.ids(epoch, ahead)
        kept.append((ahead, ids))
        del kept[:-2]
        return ids[: len(positions)].copy()
