"""Packers by hand: what goes in comes out, once, in rows of one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import FirstFitPacker, GreedyPacker, PoolPacker
from penstock.errors import ConfigError

EOS = 1
PACKERS: dict[str, Any] = {
    "greedy": lambda length: GreedyPacker(length, EOS),
    "pool": lambda length: PoolPacker(length, EOS, num_packers=3, buffer_rows=2),
    "first_fit": lambda length: FirstFitPacker(length, EOS, buffer_size=5),
}


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    seq_length=st.integers(2, 12),
    kind=st.sampled_from(sorted(PACKERS)),
)
def test_every_token_comes_out_once_with_its_source(lengths: list[int], seq_length: int, kind: str) -> None:
    packer, rows, begin, whose = PACKERS[kind](seq_length), [], 2, {}
    for number, length in enumerate(lengths):
        tokens = list(range(begin, begin + length))
        whose.update(dict.fromkeys(tokens, number))
        rows += packer.add(tokens, source_id=number)
        begin += length
    rows += packer.flush()
    assert packer.flush() == []
    seen = []
    for row in rows:
        assert row.input_ids.shape == (seq_length,)
        assert row.num_segments == row.segment_ids.max() + 1
        for segment, source_id in enumerate(row.source_ids):
            tokens = row.input_ids[row.segment_ids == segment].tolist()
            assert {whose[token] for token in tokens if token != EOS} <= {source_id}
            seen += tokens
        assert (row.attention_mask == (row.segment_ids >= 0)).all()
    assert sorted(token for token in seen if token != EOS) == list(range(2, begin))
    assert seen.count(EOS) == sum(length > 0 for length in lengths)
    if kind == "greedy":
        flat = [token for token in seen if token != EOS]
        assert flat == sorted(flat)


def test_a_long_document_gives_all_its_rows_at_once() -> None:
    packer = GreedyPacker(8, None)
    rows = packer.add(np.arange(80))
    assert [row.input_ids.tolist() for row in rows] == np.arange(80).reshape(10, 8).tolist()
    assert packer.flush() == []


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="seq_length=1 is too small"):
        GreedyPacker(1, None)
    with pytest.raises(ConfigError, match="num_packers=0 is too small"):
        PoolPacker(8, 1, num_packers=0)
    with pytest.raises(ConfigError, match="buffer_size=0 is too small"):
        FirstFitPacker(8, 1, buffer_size=0)
