"""Rows of many shards that are found at once: the same values as shard by shard, and nothing beyond a shard's end."""

from __future__ import annotations

import mmap
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptShardError
from penstock.formats.gather import copy_values
from penstock.formats.mds_reader import StoredRows
from tests.formats.making import attempt, build, make_layout, open_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.mds_reader import MDSReader

LAYOUT = make_layout({"a": "bytes", "n": "int", "s": "bytes", "x": "float64"})
VALUES = st.binary(max_size=6) | st.binary(min_size=90, max_size=110)
SAMPLES = st.fixed_dictionaries({"a": VALUES, "n": st.integers(-9, 9), "s": VALUES, "x": st.just(0.5)})


def open_rows(data: bytes, num_samples: int) -> MDSReader:
    return cast("MDSReader", open_parts(LAYOUT, [data], num_samples))


def stored(readers: Sequence[MDSReader], rows: Sequence[Sequence[int]], order: Any = None) -> dict[str, list[bytes]]:
    """Find rows of several shards at once, and copy the stored bytes of their values."""
    shards = [reader.memory() for reader in readers]
    numbers = np.array([row for each in rows for row in each], np.int64)
    found = StoredRows(readers[0].layout, shards, [len(each) for each in rows], numbers, order)
    pieces = {name: list(found.pieces(name)) for name in ("a", "s")}
    return {**pieces, **{name: [item.tobytes() for item in copy_values(found.begins(name), 8)] for name in ("n", "x")}}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SAMPLES, min_size=1, max_size=5), min_size=1, max_size=4), st.data())
def test_values_are_those_that_were_written(shards: list[list[dict[str, Any]]], data: st.DataObject) -> None:
    readers = [open_rows(build(LAYOUT, samples)[0], len(samples)) for samples in shards]
    rows = [data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=6)) for samples in shards]
    flat = [shards[shard][row] for shard, each in enumerate(rows) for row in each]
    order = data.draw(st.permutations(range(len(flat))))
    found = stored(readers, rows, np.array(order, np.int64))
    wanted = [flat[at] for at in order]
    assert found["a"] == [sample["a"] for sample in wanted]
    assert found["s"] == [sample["s"] for sample in wanted]
    assert found["n"] == [struct.pack("<q", sample["n"]) for sample in wanted]


@settings(max_examples=150, deadline=None)
@given(st.lists(SAMPLES, min_size=1, max_size=4), st.data())
def test_a_damaged_shard_is_read_as_if_whole_or_refused(samples: list[dict[str, Any]], data: st.DataObject) -> None:
    """Each row alone: what the check of the whole shard accepts is found alike; all else is an error, no crash."""
    (good,) = build(LAYOUT, samples)
    at = data.draw(st.integers(0, len(good) // 4 - 1))
    word = data.draw(st.integers(0, len(good) + 8) | st.integers(2**31 - 1, 2**32 - 1))
    spoiled = good[: 4 * at] + struct.pack("<I", word) + good[4 * at + 4 :]
    reader, _ = attempt(CorruptShardError, lambda: open_rows(spoiled, len(samples)))
    if reader is None:
        return
    whole, _ = attempt(CorruptShardError, lambda: open_parts(LAYOUT, [spoiled], len(samples), checked=True))
    for row in range(len(samples)):
        found, error = attempt(CorruptShardError, partial(stored, [reader], [[row]]))
        if found is None:
            assert whole is None
            assert str(error).startswith(f"shard.00000.mds, row {row}: ")
        elif whole is not None:
            [sample] = whole.read([row])
            assert (found["a"], found["s"]) == ([sample["a"]], [sample["s"]])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_offsets_that_lie_outside(number: int) -> None:
    (good,) = build(LAYOUT, [{"a": b"a", "n": 1, "s": b"s", "x": 0.5}] * 3)
    at = 4 + 4 * (number + 1)
    for value in (0, 19, len(good) + 1, 2**32 - 1):
        spoiled = good[:at] + struct.pack("<I", value) + good[at + 4 :]
        reader, _ = attempt(CorruptShardError, partial(open_rows, spoiled, 3))
        if reader is not None:
            with pytest.raises(CorruptShardError, match=rf"row {number}: its offsets, .*, decrease or lie outside"):
                stored([reader], [[number]])


def test_bytes_stay_while_they_are_looked_at() -> None:
    (good,) = build(LAYOUT, [{"a": b"a" * 50, "n": 7, "s": b"s", "x": 0.5}])
    memory = mmap.mmap(-1, len(good))
    memory[:] = good
    reader: Any = open_parts(LAYOUT, [memory], 1)  # type: ignore[list-item]
    found = StoredRows(reader.layout, [reader.memory()], [1], np.array([0]))
    reader.close()
    assert not memory.closed
    assert found.pieces("a")[0] == b"a" * 50
    assert len(reader) == 0
