"""Reading an order in large strides, however small the batches are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.order.lru import LRU

if TYPE_CHECKING:
    from penstock.order.epoch_order import EpochOrder
    from penstock.types import Int64Array

_FIRST_IDS_AT_ONCE = 1 << 11
_IDS_AT_ONCE = 1 << 16


class ReadAhead:
    """Reads more ids than asked for and hands them out piece by piece, so that small batches cost little.

    It begins with few and reads twice as many each time, so that the first batch comes soon.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._kept: LRU[list[tuple[range, Int64Array]]] = LRU(4)

    def ids(self, epoch: int, positions: range) -> Int64Array:
        """Return the ids at evenly spaced positions of an epoch; the caller may change the array."""
        if len(positions) == 0:
            return self._order.ids(epoch, positions)
        step = positions.step
        kept = self._kept((epoch, step, positions.start % step), list)
        for have, ids in kept:
            if have.start <= positions.start and positions[-1] <= have[-1]:
                first = (positions.start - have.start) // step
                return ids[first : first + len(positions)].copy()
        has_followed = bool(kept) and kept[-1][0].start < positions.start <= kept[-1][0][-1] + step
        num_ahead = min(2 * len(kept[-1][0]), _IDS_AT_ONCE) if has_followed else _FIRST_IDS_AT_ONCE
        ahead = range(positions.start, positions.start + max(len(positions), num_ahead) * step, step)
        ahead = range(ahead.start, min(ahead.stop, self._order.size(epoch)), step)
        ids = self._order.ids(epoch, ahead)
        kept.append((ahead, ids))
        del kept[:-2]
        return ids[: len(positions)].copy()
