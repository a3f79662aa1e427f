"""Mixing: exact shares, ends that come, epochs, schedules, and a state that is exact after any sample."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import MemoryShardedSource, MixedShardedSource, ShardedSource, WeightSchedulePoint, WeightScheduler
from penstock.errors import ConfigError, EmptyDatasetError, MissingColumnError, SampleIndexError, TransformError
from tests.sources.cutting import check_cut_anywhere


def numbered(name: str, count: int, num_shards: int = 1) -> MemoryShardedSource:
    samples = [{"id": f"{name}{x}", "input_ids": [0] * (10 if name == "a" else 30)} for x in range(count)]
    return MemoryShardedSource(samples, num_shards=num_shards, name=name)


def mixed(sizes: dict[str, int], **options: Any) -> MixedShardedSource:
    return MixedShardedSource({name: numbered(name, size, 2) for name, size in sizes.items()}, **options)


def ids(samples: Any) -> list[str]:
    return [sample["id"] for sample in samples]


@given(weights=st.lists(st.floats(0.001, 1), min_size=2, max_size=5), count=st.integers(1, 500))
def test_shares_are_exact_after_any_number_of_samples(weights: list[float], count: int) -> None:
    names = "abcde"[: len(weights)]
    source = mixed(dict.fromkeys(names, 7), weights=dict(zip(names, weights, strict=True)))
    given = Counter(sample["__source__"] for sample in iter(source).take(count))
    for name, weight in zip(names, weights, strict=True):
        assert abs(given[name] - count * weight / sum(weights)) < 1 + 1e-6


def test_the_samples_of_the_user_are_left_alone() -> None:
    samples = [{"id": "a"}]
    source = MixedShardedSource({"x": Shared(samples)})
    assert next(iter(source)) == {"id": "a", "__source__": "x"}
    assert samples == [{"id": "a"}]


class Shared(ShardedSource):
    """Gives the very dicts that it has."""

    shard_names = ("s",)

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self._samples = samples

    def read_shard(self, shard_name: str, row: int) -> Any:
        return iter(self._samples[row:])


def test_restart_goes_on_and_shards_change_places_from_the_second_epoch_on() -> None:
    source = MixedShardedSource({"a": numbered("a", 40, 8), "b": numbered("b", 3)}, weights={"a": 0.8, "b": 0.2})
    samples = ids(iter(source).take(400))
    of_a = [each for each in samples if each.startswith("a")]
    epochs = [of_a[begin : begin + 40] for begin in range(0, 320, 40)]
    assert epochs[0] == [f"a{x}" for x in range(40)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 6
    with pytest.raises(TypeError):
        len(source)


def test_the_first_end_is_the_end() -> None:
    source = mixed({"a": 10, "b": 100}, weights={"a": 0.25, "b": 0.75}, stop_strategy="first_exhausted")
    samples = ids(source)
    assert Counter(each[0] for each in samples)["a"] == 10
    assert 40 <= len(samples) < 44
    assert len(source) == len(samples)


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    stop=st.sampled_from(["first_exhausted", "all_exhausted"]),
    epochs=st.integers(1, 2),
    is_known=st.booleans(),
)
def test_ends_come_and_lengths_are_exact(
    sizes: list[int], weights: list[int], stop: Any, epochs: int, is_known: bool
) -> None:
    names = "abcd"[: len(sizes)]
    inner: dict[str, ShardedSource] = {name: numbered(name, size, 3) for name, size in zip(names, sizes, strict=True)}
    if not is_known:
        inner = {name: source.filter(lambda sample: True) for name, source in inner.items()}
    source = MixedShardedSource(
        inner,
        dict(zip(names, weights, strict=False)),
        stop_strategy=stop,
        epochs=epochs,
    )
    samples = ids(source)
    if stop == "all_exhausted":
        every = [f"{name}{x}" for name, size in zip(names, sizes, strict=True) for x in range(size)] * epochs
        assert sorted(samples) == sorted(every)
    if is_known:
        assert len(source) == len(samples)
    for row in range(0, len(samples) + 1, 3):
        assert ids(source.open_shard_at_row("mixed", row=row)) == samples[row:]
    assert ids(source.open_shard_at_row("mixed", row=len(samples))) == []
    with pytest.raises(SampleIndexError, match="does not exist"):
        source.open_shard_at_row("mixed", row=len(samples) + 1)


def test_any_sample_of_an_endless_mix_opens_at_once() -> None:
    source = mixed({"a": 7, "b": 5, "c": 3}, weights={"a": 5, "b": 3, "c": 1})
    whole = ids(iter(source).take(300))
    for row in (1, 7, 100, 255, 256, 257):
        assert ids(source.open_shard_at_row("mixed", row).take(40)) == whole[row : row + 40]
    far = source.open_shard_at_row("mixed", 10**14)
    assert len(far.take(10)) == 10


def test_sources_leave_after_their_epochs() -> None:
    source = mixed({"a": 4, "b": 4, "c": 4}, epochs={"a": 1, "b": 3, "c": 2})
    counted = Counter(sample["__source__"] for sample in source)
    assert counted == {"a": 4, "b": 12, "c": 8}
    assert len(source) == 24
    endless = mixed({"a": 4, "b": 4}, epochs={"a": 1})
    assert Counter(sample["__source__"] for sample in iter(endless).take(104)) == {"a": 4, "b": 100}


CHANGING = [{"step": 0, "weights": {"a": 1, "b": 0, "c": 1}}, {"step": 700, "weights": {"a": 1, "b": 2, "c": 0}}]


@pytest.mark.parametrize(
    "options",
    [
        {"weights": {"a": 5, "b": 3, "c": 1}},
        {"weights": {"a": 123457, "b": 99991, "c": 1234567}},  # repeats only after more samples than are computed
        {"stop_strategy": "first_exhausted"},
        {"stop_strategy": "all_exhausted", "weights": {"a": 5, "b": 3, "c": 1}},
        {"stop_strategy": "all_exhausted", "epochs": {"b": 4}},
        {"weight_scheduler": WeightScheduler(CHANGING, "linear"), "block_size": 7},
        {"weight_scheduler": WeightScheduler(CHANGING, "cosine", "tokens"), "block_size": 7},
        {"weight_scheduler": WeightScheduler(CHANGING, unit="tokens"), "stop_strategy": "all_exhausted"},
    ],
    ids=["restart", "long period", "first", "all", "epochs", "schedule", "tokens", "tokens, all"],
)
def test_cut_anywhere(options: dict[str, Any]) -> None:
    source = mixed({"a": 9, "b": 16, "c": 5}, **options)
    limit = None if "stop_strategy" in options else 90
    check_cut_anywhere(source.__iter__, places=None if limit is None else range(0, 91, 3), limit=limit)


def test_a_mix_in_a_mix_after_a_filter() -> None:
    inner = mixed({"a": 20, "b": 10}, stop_strategy="all_exhausted").filter(lambda sample: sample["id"][-1] != "3")
    source = MixedShardedSource({"inner": inner, "c": numbered("c", 9)}, stop_strategy="all_exhausted")
    samples = check_cut_anywhere(source.__iter__)
    assert len(samples) == 20 - 2 + 10 - 1 + 9


# --- Weights that change ------------------------------------------------------------------------------------


def points(*given: tuple[int, float]) -> list[WeightSchedulePoint]:
    return [WeightSchedulePoint(step, {"a": weight, "b": 1 - weight}) for step, weight in given]


def test_weights_between_points() -> None:
    given = points((10, 1.0), (20, 0.5))
    assert WeightScheduler(given).get_weights(19) == {"a": 1.0, "b": 0.0}
    linear, cosine = WeightScheduler(given, "linear"), WeightScheduler(given, "cosine")
    assert [linear.get_weights(step)["a"] for step in (0, 10, 15, 20, 99)] == [1.0, 1.0, 0.75, 0.5, 0.5]
    assert cosine.get_weights(15)["a"] == pytest.approx(0.75)
    assert 0.92 < cosine.get_weights(12)["a"] < 0.96
    assert all(sum(cosine.get_weights(step).values()) == pytest.approx(1, abs=1e-12) for step in range(9, 22))


def shares_of_a(source: MixedShardedSource, count: int, every: int) -> list[int]:
    samples = [sample["__source__"] for sample in iter(source).take(count)]
    return [samples[begin : begin + every].count("a") for begin in range(0, count, every)]


def test_a_schedule_in_samples_and_in_batches() -> None:
    in_samples = mixed({"a": 9, "b": 9}, weight_scheduler=WeightScheduler(points((0, 1.0), (100, 0.25))))
    assert shares_of_a(in_samples, 200, 100) == [100, 25]
    in_batches = mixed(
        {"a": 9, "b": 9}, weight_scheduler=WeightScheduler(points((0, 1), (10, 0.25)), unit="batches", batch_size=20)
    )
    assert shares_of_a(in_batches, 400, 200) == [200, 50]


def test_blocks_say_how_often_weights_change() -> None:
    scheduler = WeightScheduler(points((0, 1.0), (100, 0.0)), "linear")
    coarse = mixed({"a": 9, "b": 9}, weight_scheduler=scheduler, block_size=50)
    fine = mixed({"a": 9, "b": 9}, weight_scheduler=scheduler, block_size=1)
    assert shares_of_a(coarse, 100, 50) == [50, 25]
    assert shares_of_a(fine, 100, 50)[0] in (37, 38)


def test_a_schedule_in_tokens() -> None:
    # a has 10 tokens for each sample: after 100 samples of it there are 1000.
    scheduler = WeightScheduler(points((0, 1.0), (1000, 0.5)), unit="tokens")
    source = mixed({"a": 9, "b": 9}, weight_scheduler=scheduler, block_size=20)
    assert shares_of_a(source, 300, 100) == [100, 50, 50]
    untold = MixedShardedSource(
        {name: MemoryShardedSource([{"text": name}]) for name in "ab"}, weight_scheduler=scheduler
    )
    with pytest.raises(MissingColumnError, match="no list of them in 'input_ids': tokenize before mixing"):
        next(iter(untold))


# --- What is refused ----------------------------------------------------------------------------------------


def test_an_empty_source_is_an_error_and_does_not_spin() -> None:
    with pytest.raises(EmptyDatasetError, match="source 'b' of the mix has no samples"):
        list(mixed({"a": 3, "b": 0}))
    assert ids(mixed({"a": 0, "b": 0}, stop_strategy="all_exhausted")) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": {"a": 1}}, "b missing"),
        ({"weights": {"a": 1, "b": 1, "z": 1}}, "z unknown"),
        ({"weights": {"a": 0, "b": 0}}, "make no mix"),
        ({"weights": {"a": float("nan"), "b": 1}}, "must be finite numbers"),
        ({"weights": [1, 2]}, "is no dict"),
        ({"stop_strategy": "never"}, "stop_strategy='never' is unknown"),
        ({"epochs": 0}, "epochs of 'a'=0 is too small"),
        ({"epochs": {"z": 1}}, "z unknown"),
        ({"block_size": 0}, "block_size=0 is too small"),
        ({"weights": {"a": 1, "b": 1}, "weight_scheduler": WeightScheduler(points((0, 1)))}, "not both"),
        ({"weight_scheduler": WeightScheduler([{"step": 0, "weights": {"a": 1}}])}, "b missing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        mixed({"a": 3, "b": 3}, **options)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([],), "steps of a schedule must grow"),
        ((points((5, 1), (5, 0)),), "steps of a schedule must grow"),
        (([{"step": 0, "weights": {"a": 1}}, {"step": 1, "weights": {"b": 1}}],), "the same names"),
        (([{"step": 0, "weight": {"a": 1}}],), "needs a step and weights"),
        ((points((0, 1)), "square"), "interpolation='square'"),
        ((points((0, 1)), "step", "epochs"), "unit='epochs'"),
        ((points((0, 1)), "step", "batches"), "batch_size= is the number of samples"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        WeightScheduler(*arguments)


def test_sources_are_a_dict() -> None:
    with pytest.raises(ConfigError, match="a dict of names and sources"):
        MixedShardedSource([numbered("a", 1)])  # type: ignore[arg-type]


def test_an_error_of_a_source_comes_after_the_samples_before_it() -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["x"] == 70:
            raise ValueError("bad")
        return sample

    good, bad = ([{"x": x} for x in range(100)] for _ in range(2))
    mixed = MixedShardedSource({"a": MemoryShardedSource(good), "b": MemoryShardedSource(bad).map(fail)})
    samples = iter(mixed)
    taken = samples.take(1000)
    assert [sample["x"] for sample in taken if sample["__source__"] == "b"] == list(range(70))
    with pytest.raises(TransformError, match="row 70"):
        samples.take(1)
