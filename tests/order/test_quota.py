"""Exact shares at every position: for any weights, any number of sources, and weights that change."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.order.quota import QuotaMix, exact_shares

WEIGHTS = st.lists(st.integers(0, 50), min_size=1, max_size=7).filter(any)


def check_shares(labels: np.ndarray, segments: list[tuple[int, tuple[Fraction, ...]]]) -> None:
    """Of every prefix, each source has given its share rounded down or up; in exact arithmetic."""
    num_sources = len(segments[0][1])
    given, due = [0] * num_sources, [Fraction(0)] * num_sources
    starts = [start for start, _ in segments]
    for position, label in enumerate(labels.tolist()):
        shares = segments[int(np.searchsorted(starts, position, side="right")) - 1][1]
        given[label] += 1
        for source in range(num_sources):
            due[source] += shares[source]
            assert abs(given[source] - due[source]) < 1, position


@given(weights=WEIGHTS, key=st.integers(0, 99))
def test_each_source_has_its_share_of_every_prefix(weights: list[int], key: int) -> None:
    shares = exact_shares(weights)
    check_shares(QuotaMix([(0, shares)], key=key).labels(0, 300), [(0, shares)])


@given(
    parts=st.lists(st.tuples(st.integers(1, 60), st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any))),
    last=st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any),
)
def test_also_when_weights_change(parts: list[tuple[int, list[int]]], last: list[int]) -> None:
    segments, start = [], 0
    for length, weights in parts:
        segments.append((start, exact_shares(weights)))
        start += length
    segments.append((start, exact_shares(last)))
    check_shares(QuotaMix(segments, key=1).labels(0, start + 100), segments)


@given(
    weights=st.one_of(WEIGHTS, st.lists(st.integers(1, 10**12), min_size=2, max_size=4)),
    position=st.integers(0, 3_000),
    count=st.integers(0, 50),
)
def test_any_position_without_those_before_it(weights: list[int], position: int, count: int) -> None:
    shares = exact_shares(weights)
    whole = QuotaMix([(0, shares)], key=2).labels(0, 3_100)
    mix = QuotaMix([(0, shares)], key=2)
    assert mix.labels(position, count).tolist() == whole[position : position + count].tolist()
    counts = np.bincount(whole[:position], minlength=len(weights)).tolist()
    assert mix.taken(position) == counts
    resumed = QuotaMix([(0, shares)], key=2)
    resumed.know(position, counts)
    assert resumed.labels(position, count).tolist() == whole[position : position + count].tolist()


def test_far_positions_of_a_mix_that_repeats() -> None:
    mix = QuotaMix([(0, exact_shares([0.7, 0.2, 0.1]))])
    far = 10**15 + 7
    assert [abs(count - share * far) < 1 for count, share in zip(mix.taken(far), (0.7, 0.2, 0.1), strict=True)] == [
        True
    ] * 3
    before, after = mix.taken(far), mix.taken(far + 1)
    assert before[int(mix.labels(far, 1)[0])] + 1 == after[int(mix.labels(far, 1)[0])]


def test_a_tiny_weight_does_not_starve() -> None:
    labels = QuotaMix([(0, exact_shares([0.0005, 0.9995]))]).labels(0, 20_000)
    assert int((labels == 0).sum()) == 10


def test_equal_sources_do_not_take_turns_in_a_fixed_pattern() -> None:
    labels = QuotaMix([(0, exact_shares([1, 1]))], key=4).labels(0, 4000)
    first_of_pair = labels[::2]
    assert 0.45 < first_of_pair.mean() < 0.55  # who takes every other sample still sees both
    other = QuotaMix([(0, exact_shares([1, 1]))], key=5).labels(0, 4000)
    assert (labels != other).any()


def test_weights_that_make_no_mix() -> None:
    for weights in ([], [0, 0], [-1, 2]):
        with pytest.raises(ConfigError, match="make no mix"):
            exact_shares(weights)
    assert exact_shares([0.1, 0.2]) == (Fraction(1, 3), Fraction(2, 3))
