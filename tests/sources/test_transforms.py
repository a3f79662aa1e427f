"""Transforms: what each does, how they compose, their errors, and that a cut anywhere changes nothing."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from penstock import (
    AddField,
    ChainedTransform,
    CombineFields,
    DropFields,
    ExpandTransform,
    ExtractField,
    FilterByField,
    FilterNonEmpty,
    FilterTransform,
    FlatMapTransform,
    MapField,
    MapTransform,
    MemoryShardedSource,
    RenameFields,
    SelectFields,
    TokenizedShardedSource,
    TransformedShardedSource,
    TransformError,
)
from penstock.errors import ConfigError, MissingColumnError
from penstock.sources.transforms import MapBatchTransform
from tests.sources.cutting import check_cut_anywhere
from tests.sources.test_base import numbers, xs

if TYPE_CHECKING:
    from collections.abc import Iterator


class Repeat(ExpandTransform):
    """Gives a sample as often as its number says."""

    def __call__(self, sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for copy in range(sample["x"] % 4):
            yield {**sample, "copy": copy}


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": 2 * sample["x"]}


def is_even(sample: dict[str, Any]) -> bool:
    return bool(sample["x"] % 2 == 0)


@pytest.mark.parametrize(
    ("transform", "sample", "expected"),
    [
        (MapField("a", str.upper), {"a": "x", "b": 1}, {"a": "X", "b": 1}),
        (MapField("a", len, output_field="n"), {"a": "xy"}, {"a": "xy", "n": 2}),
        (MapField("a", len), {"b": 1}, {"b": 1}),
        (FilterByField("a", bool), {"a": 1}, {"a": 1}),
        (FilterByField("a", bool), {"a": 0}, None),
        (FilterByField("a", bool), {}, None),
        (FilterNonEmpty(["a"]), {"a": []}, None),
        (FilterNonEmpty(["a"]), {"a": ""}, None),
        (FilterNonEmpty(["a"]), {"a": None}, None),
        (FilterNonEmpty(["a", "b"]), {"a": 0, "b": np.array([0, 0])}, {"a": 0, "b": np.array([0, 0])}),
        (RenameFields({"a": "b", "z": "y"}), {"a": 1}, {"b": 1}),
        (SelectFields(["b"]), {"a": 1, "b": 2}, {"b": 2}),
        (DropFields(["b", "c"]), {"a": 1, "b": 2}, {"a": 1}),
        (ExtractField("m.l[1].n", "n"), {"m": {"l": [0, {"n": 7}]}}, {"m": {"l": [0, {"n": 7}]}, "n": 7}),
        (ExtractField("m[-1]", "n"), {"m": [1, 2]}, {"m": [1, 2], "n": 2}),
        (ExtractField("m.x", "n", default="-"), {"m": [1]}, {"m": [1], "n": "-"}),
        (CombineFields(["a", "b"], "c"), {"a": "x", "b": 1}, {"a": "x", "b": 1, "c": "x 1"}),
        (CombineFields(["a", "b"], "c", combiner=sum, drop_sources=True), {"a": 1, "b": 2}, {"c": 3}),
        (CombineFields(fields=["a", "b"], output_field="c", separator="-"), {"a": 1}, {"a": 1, "c": "1"}),
        (AddField("a", 3), {}, {"a": 3}),
        (AddField("a", lambda sample: sample["b"] + 1), {"b": 1}, {"a": 2, "b": 1}),
        (ChainedTransform([MapTransform(double), FilterTransform(is_even)]), {"x": 1}, {"x": 2}),
        (ChainedTransform([FilterTransform(is_even), MapTransform(double)]), {"x": 1}, None),
    ],
)
def test_each_transform(transform: Any, sample: dict[str, Any], expected: dict[str, Any] | None) -> None:
    before = dict(sample)
    made = transform(sample)
    assert (
        repr(made) == repr(expected)
        if expected is None
        else {k: repr(v) for k, v in made.items()} == {k: repr(v) for k, v in expected.items()}
    )
    assert sample.keys() == before.keys()  # the sample of the caller is left alone


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="is a string: pass a list of names"):
        SelectFields("abc")
    with pytest.raises(ConfigError, match="does not name a field"):
        ExtractField("", "a")
    with pytest.raises(ConfigError, match="needs source_fields and target_field"):
        CombineFields(["a"])
    with pytest.raises(ConfigError, match="is not callable"):
        MapTransform(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch_size=0"):
        MapBatchTransform(list, 0)
    with pytest.raises(ConfigError, match="worker_kind='fiber'"):
        numbers(1).map(double, worker_kind="fiber")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gives two fields the same name"):
        RenameFields({"a": "b"})({"a": 1, "b": 2})
    with pytest.raises(MissingColumnError, match="no field 'b': it has a"):
        SelectFields(["b"])({"a": 1})


def test_functions_compose_with_transforms() -> None:
    chain = double >> FilterTransform(is_even) >> double
    assert len(chain) == 3
    assert chain({"x": 3}) == {"x": 12}


def test_transforms_compose_whatever_kinds_they_are() -> None:
    chain = MapTransform(double) >> Repeat() >> FilterTransform(lambda sample: sample["copy"] == 1) >> double
    assert len(chain) == 4
    assert [type(each).__name__ for each in chain] == ["MapTransform", "Repeat", "FilterTransform", "MapTransform"]
    assert chain({"x": 1}) == [{"x": 4}]
    assert chain.is_expand
    assert chain.is_filter
    batched = MapTransform(double) >> MapBatchTransform(lambda rows: [{"x": sum(xs(rows))}], 2) >> double
    assert xs(numbers(5).transform(batched)) == [2 * (0 + 2), 2 * (4 + 6), 2 * 8]
    with pytest.raises(ConfigError, match="apply it to a source"):
        batched({"x": 1})


def test_the_methods_of_a_source() -> None:
    source = MemoryShardedSource([{"x": x, "y": -x, "z": 0} for x in range(6)])
    assert xs(source.map(double)) == [0, 2, 4, 6, 8, 10]
    assert xs(source.filter(is_even)) == [0, 2, 4]
    assert xs(source.flat_map(lambda sample: [sample] * sample["x"])) == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5]
    assert xs(source.map_batches(lambda rows: reversed(rows), 4)) == [3, 2, 1, 0, 5, 4]
    assert next(iter(source.select_fields(["y"]))) == {"y": 0}
    assert next(iter(source.drop_fields(["y", "z"]))) == {"x": 0}
    assert next(iter(source.rename_fields({"y": "w"}).drop_fields(["x"]))) == {"w": 0, "z": 0}
    assert xs(TransformedShardedSource(source, transform=FlatMapTransform(lambda sample: ()))) == []
    assert list(source.map(double).shard_names) == ["memory:0"]


def test_a_length_only_where_it_is_exact() -> None:
    assert len(numbers(6).map(double).drop_fields(["y"])) == 6
    for source in (numbers(6).filter(is_even), numbers(6).flat_map(lambda s: [s]), numbers(6).map_batches(list)):
        with pytest.raises(TypeError):
            len(source)
        assert source.get_shard_info("memory:0").num_rows is None  # type: ignore[union-attr]


def test_rows_are_rows_of_the_stored_data() -> None:
    source = numbers(10).filter(is_even).map(double)
    assert xs(source.open_shard_at_row("memory:0", row=3)) == [8, 12, 16]
    assert not xs(source.open_shard_at_row("memory:0", row=10))


def test_a_function_that_forgets_to_return_is_an_error() -> None:
    with pytest.raises(
        TransformError, match="row 0 of memory:0: TypeError: the function returned None instead of a dict"
    ):
        list(numbers(3).map(lambda sample: None))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("num_workers", [0, 3])
def test_an_error_names_its_row_and_comes_after_the_samples_before_it(num_workers: int) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["x"] == 190:
            raise KeyError("missing")
        return sample

    source = numbers(300, num_shards=2, name="part").transform(MapTransform(double), num_workers=0)
    failing = source.transform(fail, num_workers=num_workers)
    samples = iter(failing)
    assert xs(samples.take(95)) == list(range(0, 190, 2))
    for _ in range(2):
        with pytest.raises(TransformError, match="row 95 of part:0: KeyError: 'missing'") as caught:
            next(samples)
    assert isinstance(caught.value.__cause__, KeyError)
    samples.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_batch_names_its_rows_whatever_was_filtered_before(num_workers: int) -> None:
    def invert(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"x": 1 // (sample["x"] - 501)} for sample in samples]

    stored = numbers(3000, name="part")
    with pytest.raises(TransformError, match=r"one of the rows 500 to 509 of part:0: ZeroDivisionError"):
        list(stored.map_batches(invert, 10, num_workers=num_workers))
    odd = stored.filter(lambda sample: sample["x"] % 2)
    with pytest.raises(TransformError, match=r"one of the rows 501 to 519 of part:0: ZeroDivisionError"):
        list(odd.map_batches(invert, 10, num_workers=num_workers))
    odd_text = odd.map(lambda sample: {"text": None if sample["x"] == 999 else "a"})
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(TransformError, match=r"row 999 of part:0: DataError: 'text' is a NoneType"):
        list(TokenizedShardedSource(odd_text, tokenizer, "words", num_workers=num_workers))


def test_what_is_no_sample_is_refused() -> None:
    stored = numbers(30, name="part")
    with pytest.raises(TransformError, match="returned a dict instead of a list of samples"):
        list(stored.map_batches(lambda samples: {"x": [sample["x"] for sample in samples]}))
    with pytest.raises(TransformError, match="returned a str instead of a list of samples"):
        list(stored.flat_map(lambda sample: "text"))
    with pytest.raises(TransformError, match=r"row 0 of part:0: TypeError: the function returned a list with 3"):
        list(stored.flat_map(lambda sample: [3]))
    with pytest.raises(ConfigError, match=r"FilterNonEmpty is a class: make a transform of it, FilterNonEmpty\("):
        stored.transform(FilterNonEmpty)  # type: ignore[arg-type]


def test_an_error_after_a_batch_says_about_where() -> None:
    source = numbers(3000, name="part").map_batches(list, 1000).map(lambda sample: {"x": 1 // (sample["x"] - 2500)})
    with pytest.raises(TransformError, match="a sample of part:0 that was made of row 2000 or a row soon after it"):
        list(source)


CHAINS: dict[str, Any] = {
    "map": MapTransform(double),
    "filter": FilterTransform(is_even),
    "expand": Repeat(),
    "all": Repeat() >> FilterTransform(lambda sample: sample["copy"] != 1) >> double,
    "batch": MapBatchTransform(lambda rows: [{"x": sum(xs(rows))}, *rows], 7),
    "batch in the middle": Repeat() >> MapBatchTransform(lambda rows: rows[::-1], 5) >> FilterTransform(is_even),
    "nothing": FilterTransform(lambda sample: False),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
@pytest.mark.parametrize("num_workers", [0, 2])
def test_cut_anywhere(chain: Any, num_workers: int) -> None:
    plain = numbers(150, 2).transform(chain)
    source = numbers(150, 2).transform(chain, num_workers=num_workers)
    places = None if num_workers == 0 else [0, 1, 63, 64, 65]
    whole = list(plain)
    check_cut_anywhere(source.__iter__, None if places is None else [place for place in places if place <= len(whole)])
    assert list(source) == whole


@given(order=st.permutations(sorted(CHAINS)), count=st.integers(0, 100))
def test_chains_of_chains_are_the_chain(order: list[str], count: int) -> None:
    chosen = [CHAINS[name] for name in order if name not in ("all", "nothing", "filter")]
    source: Any = numbers(count)
    for chain in chosen:
        source = source.transform(chain)
    assert list(source) == list(numbers(count).transform(ChainedTransform(chosen)))


def test_workers_keep_the_order_and_a_bounded_amount_of_work() -> None:
    most_ahead, given, lock = 0, 0, threading.Lock()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        nonlocal most_ahead
        with lock:
            most_ahead = max(most_ahead, sample["x"] - given)
        if sample["x"] % 64 == 0:
            time.sleep(0.002 if sample["x"] % 128 else 0.006)
        return sample

    samples = iter(numbers(2000).map(slow, num_workers=3))
    for expected in range(2000):
        assert next(samples)["x"] == expected
        given = expected
    assert most_ahead <= 64 * 8  # six chunks under way, and the one that is given


def worker_names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-transform")]


def wait_for_no_workers() -> None:
    deadline = time.monotonic() + 10
    while worker_names() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not worker_names()


def test_workers_end_when_their_iterator_is_closed_or_dropped() -> None:
    gc.collect()  # errors of other tests have their iterators, in cycles
    wait_for_no_workers()
    source = numbers(1000).map(double, num_workers=2)
    samples = iter(source)
    samples.take(10)
    assert worker_names()
    samples.close()
    wait_for_no_workers()
    samples = iter(source)
    samples.take(10)
    del samples
    wait_for_no_workers()


def with_pid(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "pid": os.getpid()}


def test_processes_do_the_same() -> None:
    samples = iter(numbers(300).map(with_pid, num_workers=2, worker_kind="process"))
    made = list(samples)
    samples.close()
    assert xs(made) == list(range(300))
    assert os.getpid() not in {sample["pid"] for sample in made}


def test_fingerprints() -> None:
    source = MemoryShardedSource([{"x": 1}], fingerprint="v1")
    assert source.fingerprint
    chosen = source.select_fields(["x"])
    assert chosen.fingerprint
    assert chosen.fingerprint != source.fingerprint
    assert chosen.fingerprint == source.select_fields(["x"]).fingerprint != source.select_fields(["y"]).fingerprint
    mapped = source.map(double).fingerprint
    assert mapped
    assert mapped == source.map(double).fingerprint != source.map(lambda sample: {"x": 3 * sample["x"]}).fingerprint
    assert mapped != source.flat_map(double).fingerprint
    assert numbers(3).select_fields(["x"]).fingerprint is None
