"""Sorting indices by real numbers, at the speed of sorting machine words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.order.mosaic.ids import PIECE


class WordSorter:
    """Tells the sequence of up to `capacity` places, equal ones as they came, faster than numpy's argsort.

    Each place is rounded down to the bits that are left beside its index in one machine word; words sort
    fast. The few that rounding made equal are then put right by their exact places.
    """

    def __init__(self, capacity: int) -> None:
        self._words = np.empty(capacity, np.int64)
        self._spare = np.empty(capacity, np.float64)

    def __call__(self, places: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the indices of the places in ascending order; valid until the next call."""
        count = len(places)
        if not count:
            return self._words[:0]
        words = self._words[:count]
        index_bits = (count - 1).bit_length()
        lowest = math.floor(places.min())
        _, integer_bits = math.frexp(float(places.max()) - lowest)
        scale = math.ldexp(1.0, 62 - index_bits - integer_bits)
        for begin in range(0, count, PIECE):
            piece = slice(begin, min(begin + PIECE, count))
            words[piece] = (places[piece] - lowest) * scale
            words[piece] <<= index_bits
            words[piece] |= np.arange(piece.start, piece.stop)
        words.sort()
        ties = _find_ties(words, index_bits)
        rounded = words[ties] >> index_bits
        words &= (1 << index_bits) - 1
        tied = words[ties]
        words[ties] = tied[np.lexsort((places[tied], rounded))]
        return words

    def pick(self, array: npt.NDArray[Any], indices: npt.NDArray[np.int64]) -> None:
        """Move the elements at these indices to the front of an array, in their order."""
        picked = self._spare.view(array.dtype)[: len(indices)]
        np.take(array, indices, out=picked, mode="clip")
        array[: len(indices)] = picked


def _find_ties(words: npt.NDArray[np.int64], index_bits: int) -> npt.NDArray[np.int64]:
    """Return where sorted words have a neighbour that differs from them in its index only."""
    is_tied = np.zeros(len(words), np.bool_)
    for begin in range(0, len(words) - 1, PIECE):
        rounded = words[begin : begin + PIECE + 1] >> index_bits
        is_same = rounded[1:] == rounded[:-1]
        is_tied[begin : begin + len(is_same)] |= is_same
        is_tied[begin + 1 : begin + 1 + len(is_same)] |= is_same
    return np.flatnonzero(is_tied)
