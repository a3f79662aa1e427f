"""Where ids live: shards end to end, of which empty ones hold none."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.order.id_spans import IdSpans


def test_ids_are_found_in_their_shards() -> None:
    spans = IdSpans([2, 0, 3, 0, 1])
    assert (len(spans), spans.num_samples) == (5, 6)
    shards, rows = spans.locate(np.arange(6))
    assert shards.tolist() == [0, 0, 2, 2, 2, 4]
    assert rows.tolist() == [0, 1, 0, 1, 2, 0]
    assert [spans.shard_of(number) for number in range(6)] == shards.tolist()


@pytest.mark.parametrize("lengths", [[1, -1], np.zeros((2, 2), np.int64)])
def test_lengths_that_make_no_sense(lengths: list[int]) -> None:
    with pytest.raises(ConfigError, match="a flat list of numbers, none of them negative"):
        IdSpans(lengths)
