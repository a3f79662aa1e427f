"""Packing: every token in exactly one place, rows of one shape, and a state that is exact after any row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import MemoryShardedSource, PackedShardedSource, join_cu_seqlens
from penstock.errors import ConfigError, DataError, MissingColumnError, SampleIndexError
from penstock.sources.pack.rows import Placement, best_fit, cut_into_rows, pool
from tests.sources.cutting import check_cut_anywhere

EOS, PAD = 1, 0
STRATEGIES = ["greedy", "pool", "first_fit"]


def documents(lengths: list[int]) -> list[dict[str, Any]]:
    """Documents whose tokens are all different, over all documents."""
    bounds = np.cumsum([2, *lengths])
    return [{"input_ids": np.arange(low, high, dtype=np.int32)} for low, high in pairwise(bounds)]


def packed(lengths: list[int], seq_length: int = 8, **options: Any) -> PackedShardedSource:
    options = {"eos_token_id": EOS, "pad_token_id": PAD, **options}
    return PackedShardedSource(MemoryShardedSource(documents(lengths), num_shards=2), seq_length, **options)


def segments(row: dict[str, Any]) -> list[list[int]]:
    ids = row["segment_ids"]
    return [row["input_ids"][ids == number].tolist() for number in range(ids.max() + 1)]


def check_row_shape(row: dict[str, Any], seq_length: int) -> None:
    assert list(row) == ["input_ids", "segment_ids", "position_ids", "attention_mask", "labels"]
    assert {values.shape for values in row.values()} == {(seq_length,)}
    assert [str(row[name].dtype) for name in row] == ["int32"] * 4 + ["int64"]
    is_token = row["attention_mask"] == 1
    ids = row["segment_ids"]
    assert (np.diff(is_token.astype(int)) <= 0).all()  # padding is at the end
    assert (ids[~is_token] == -1).all()
    assert (row["input_ids"][~is_token] == PAD).all()
    assert (row["labels"][~is_token] == -100).all()
    assert set(np.diff(ids[is_token])) <= {0, 1}
    starts = np.flatnonzero(is_token & (np.diff(ids, prepend=-1) != 0))
    expected = np.arange(seq_length)
    for start in starts:
        expected[start:] = np.arange(seq_length - start)
    assert (row["position_ids"] == np.where(is_token, expected, 0)).all()
    labels = np.where(is_token, row["input_ids"], -100)
    labels[starts] = -100
    assert (row["labels"] == labels).all()


@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    seq_length=st.integers(2, 17),
    strategy=st.sampled_from(STRATEGIES),
    long_documents=st.sampled_from(["split", "truncate", "drop"]),
    shuffle=st.booleans(),
    eos=st.sampled_from([EOS, None]),
)
def test_every_token_is_accounted_for(
    lengths: list[int], seq_length: int, strategy: str, long_documents: str, shuffle: bool, eos: int | None
) -> None:
    source = packed(
        lengths, seq_length, strategy=strategy, long_documents=long_documents, shuffle=shuffle, eos_token_id=eos
    )
    rows = list(source)
    for row in rows:
        check_row_shape(row, seq_length)
    stats = source.stats()
    tokens = [token for row in rows for segment in segments(row) for token in segment]
    given = [token for document in documents(lengths) for token in document["input_ids"].tolist()]
    kept = sorted(token for token in tokens if token != EOS)
    assert len(kept) == len(set(kept)) == stats.tokens
    assert stats.tokens + stats.tokens_dropped == len(given)
    assert stats.rows == len(rows)
    assert stats.rows * seq_length == stats.tokens + stats.eos_added + stats.padding
    assert stats.eos_added == tokens.count(EOS)
    assert stats.documents + stats.documents_dropped == len(lengths)
    whole = [length for length in lengths if length and length + (eos is not None) <= seq_length]
    long = [length for length in lengths if length + (eos is not None) > seq_length and length]
    if long_documents == "split":
        assert kept == given
        assert stats.eos_added == (0 if eos is None else len(whole) + len(long))
    elif long_documents == "drop":
        assert stats.tokens_dropped == sum(long)
        assert stats.documents_dropped == len(long) + lengths.count(0)
    else:
        assert stats.tokens == sum(whole) + seq_length * len(long)


@given(lengths=st.lists(st.integers(0, 30), max_size=40), strategy=st.sampled_from(STRATEGIES), seq=st.integers(4, 16))
def test_documents_stay_in_order_within_themselves_and_are_cut_only_where_allowed(
    lengths: list[int], strategy: str, seq: int
) -> None:
    rows = list(packed(lengths, seq, strategy=strategy, shuffle=False))
    for row in rows:
        for segment in segments(row):
            body = [token for token in segment if token != EOS]
            assert body == list(range(body[0], body[0] + len(body))) if body else segment == [EOS]
    if strategy == "greedy":
        flat = [token for row in rows for segment in segments(row) for token in segment]
        expected = [
            token for each in documents(lengths) if len(each["input_ids"]) for token in [*each["input_ids"], EOS]
        ]
        assert flat == expected
        assert sum(int((row["attention_mask"] == 0).any()) for row in rows) <= 1
    if strategy == "pool":
        assert sum(int((row["attention_mask"] == 0).any()) for row in rows) <= 1
    if strategy == "first_fit":
        found = {tuple(segment) for row in rows for segment in segments(row)}
        for document in documents(lengths):
            tokens = document["input_ids"].tolist()
            if tokens and len(tokens) < seq:
                assert (*tokens, EOS) in found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("long_documents", ["split", "drop"])
def test_cut_anywhere(strategy: str, shuffle: bool, long_documents: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.pack.source._ROWS_PER_FACTOR", 5)  # so that there are many groups
    monkeypatch.setattr("penstock.sources.pack.source._ROWS_AT_ONCE", 3)
    monkeypatch.setattr("penstock.sources.pack.source._DOCUMENTS_AT_ONCE", 7)
    lengths = np.random.default_rng(5).integers(0, 20, 40).tolist()
    source = packed(lengths, strategy=strategy, shuffle=shuffle, shuffle_buffer_factor=1, long_documents=long_documents)
    rows = check_cut_anywhere(source.__iter__)
    whole = source.open_shard_at_row("packed")
    list(whole)
    stats = source.stats()
    for place in range(len(rows)):
        first, second = source.open_shard_at_row("packed"), source.open_shard_at_row("packed")
        first.take(place)
        second.load_state_dict(first.state_dict())
        list(second)
        assert source.stats() == stats  # of the one that was opened last


def test_the_state_is_small() -> None:
    samples = iter(packed([300] * 2000, 256))
    samples.take(1000)
    assert len(repr(samples.state_dict())) < 500


def test_rows_are_shuffled_within_groups_by_the_seed() -> None:
    lengths = [5, 9, 3, 11] * 100
    in_order, first, again, second = (
        [row["input_ids"].tolist() for row in packed(lengths, **options)]
        for options in ({"shuffle": False}, {"seed": 1}, {"seed": 1}, {"seed": 2})
    )
    assert first == again
    assert first != second
    assert first != in_order
    assert sorted(first) == sorted(second) == sorted(in_order)


def test_random_state_of_others_is_left_alone() -> None:
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    list(packed([5, 9, 3] * 50))
    assert np.random.random() == expected


@pytest.mark.parametrize("seed", range(3))
def test_first_fit_fills_rows_of_mixed_documents(seed: int) -> None:
    lengths = np.random.default_rng(seed).lognormal(5.5, 1.2, 8000).astype(int).clip(1, 20_000).tolist()
    source = packed(lengths, 2048, strategy="first_fit")
    for _ in source:
        pass
    assert source.stats().filled >= 0.99
    assert source.stats().documents_cut == sum(length >= 2048 for length in lengths)


def test_other_columns_are_packed_along() -> None:
    samples = [
        {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], "score": [0.5, 1.5, 2.5], "title": "kept out"},
        {"input_ids": [8, 9], "loss_mask": [1, 0], "score": [3.0, 4.0]},
    ]
    source = PackedShardedSource(
        MemoryShardedSource(samples), 9, EOS, token_columns={"loss_mask": 0, "score": -1.0}, shuffle=False
    )
    (row,) = source
    assert row["input_ids"].tolist() == [5, 6, 7, EOS, 8, 9, EOS, 0, 0]
    assert row["loss_mask"].tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 0]
    assert row["score"].tolist() == [0.5, 1.5, 2.5, 2.5, 3.0, 4.0, 4.0, -1.0, -1.0]


def test_labels_of_documents_take_the_place_of_their_tokens() -> None:
    samples = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [8, -100]}]
    (row,) = PackedShardedSource(MemoryShardedSource(samples), 8, EOS, shuffle=False)
    assert row["labels"].tolist() == [-100, 6, 7, EOS, -100, -100, EOS, -100]


def test_documents_without_tokens_do_not_change_the_type() -> None:
    source = MemoryShardedSource([{"input_ids": np.array([])}, {"input_ids": [5, 6]}])
    (row,) = PackedShardedSource(source, 4, 1)
    assert row["input_ids"].dtype == np.int32


def test_an_end_that_is_there_is_not_doubled() -> None:
    (row,) = PackedShardedSource(
        MemoryShardedSource([{"input_ids": [5, EOS]}, {"input_ids": [6]}]), 6, EOS, shuffle=False
    )
    assert row["input_ids"].tolist() == [5, EOS, 6, EOS, 0, 0]


def test_what_rows_consist_of_can_be_chosen() -> None:
    source = packed([3, 2, 9], 8, include_segment_ids=False, input_field="input_ids", shuffle=False)
    assert "segment_ids" not in next(iter(source))
    rows = list(packed([3, 2, 9], 8, include_cu_seqlens=True, shuffle=False, strategy="first_fit"))
    assert [row["cu_seqlens"].tolist() for row in rows] == [[0, 4, 7, 8], [0, 8], [0, 2, 8]]
    joined, longest = join_cu_seqlens([row["cu_seqlens"] for row in rows])
    assert joined.tolist() == [0, 4, 7, 8, 16, 18, 24]
    assert longest == 8
    assert max(len(segments(row)) for row in packed([1] * 50, 16, strategy="first_fit", max_segments=3)) == 3


def test_rows_can_be_opened_by_number() -> None:
    source = packed([5, 9, 3, 11] * 5)
    rows = [row["input_ids"].tolist() for row in source]
    for row in range(len(rows) + 1):
        assert [each["input_ids"].tolist() for each in source.open_shard_at_row("packed", row=row)] == rows[row:]
    with pytest.raises(SampleIndexError, match="does not exist"):
        source.open_shard_at_row("packed", row=len(rows) + 1)
    with pytest.raises(TypeError):
        len(source)


@pytest.mark.parametrize(
    ("samples", "kind", "text"),
    [
        ([{"input_ids": [1]}, {"text": "a"}], MissingColumnError, "row 1 of memory:0: .* no 'input_ids': it has text"),
        ([{"input_ids": [0.5]}], DataError, "must be whole numbers"),
        ([{"input_ids": "abc"}], DataError, "must be a list of numbers"),
        ([{"input_ids": [[1], [2]]}], DataError, "must be a list of numbers"),
        ([{"input_ids": [2**40]}], DataError, "do not fit in 32 bits"),
        ([{"input_ids": [1, 2], "labels": [1]}], DataError, "2 tokens but 1 values of 'labels'"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], MissingColumnError, "some documents have 'labels'"),
    ],
)
def test_documents_that_cannot_be_packed(samples: list[dict[str, Any]], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        list(PackedShardedSource(MemoryShardedSource(samples), 8, None))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seq_length": 1}, "seq_length=1 is too small"),
        ({"strategy": "best"}, "strategy='best' is unknown"),
        ({"long_documents": "keep"}, "long_documents='keep' is unknown"),
        ({"num_packers": 0}, "num_packers=0 is too small"),
        ({"max_segments": 2}, "max_segments= only works with strategy='first_fit'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        packed([1], **options)


# --- Where pieces go, from lengths alone --------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=50),
    seq_length=st.integers(1, 16),
    kind=st.sampled_from(["cut", "fit", "pool"]),
)
def test_pieces_cover_all_tokens_once(lengths: list[int], seq_length: int, kind: str) -> None:
    bounds = np.cumsum([0, *lengths])
    make: dict[str, Any] = {"cut": cut_into_rows, "fit": best_fit, "pool": lambda b, s: pool(b, s, 3)}
    pieces: Placement = make[kind](bounds, seq_length)
    covered = np.concatenate([np.arange(s, s + n) for s, n in zip(pieces.starts, pieces.lengths, strict=True)])
    assert sorted(covered) == list(range(bounds[-1]))
    assert (pieces.filled() <= seq_length).all()
    assert (pieces.filled() > 0).all()
    assert len(pieces.filled()) == pieces.num_rows
    ends = np.searchsorted(bounds, pieces.starts + pieces.lengths, side="left")
    assert (np.searchsorted(bounds, pieces.starts, side="right") == ends).all()  # each within one document
