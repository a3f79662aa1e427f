"""Arrays of sample numbers: as narrow as they can be, looked up in place."""

from __future__ import annotations

import numpy as np

from penstock.order.mosaic.ids import EMPTY, PIECE, dtype_for, look_up


def test_the_narrowest_type_holds_all_numbers() -> None:
    assert dtype_for(2**31 - 1) is np.int32
    assert dtype_for(2**31) is np.int64


def test_tables_one_after_the_other_leave_empty_slots_alone() -> None:
    positions = np.array([[0, EMPTY, 2], [1, 0, EMPTY]], np.int32)
    found = look_up(positions, np.array([2, 0, 1]), None, np.array([10, 20, 30]))
    assert found is positions
    assert found.tolist() == [[30, EMPTY, 20], [10, 30, EMPTY]]


def test_arrays_longer_than_a_piece() -> None:
    count = PIECE + 10
    assert (look_up(np.arange(count), np.arange(count)[::-1]) == np.arange(count)[::-1]).all()
