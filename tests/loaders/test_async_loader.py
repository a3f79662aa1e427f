"""The loader of sources: order, shuffling, ranks, state, threads and their ends, errors."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import AsyncDataLoader, MemoryShardedSource, MixedShardedSource, PackedShardedSource, ShardedSource
from penstock import StreamingDataset as Dataset
from penstock.errors import ConfigError, ResumeError, TransformError
from tests.streaming import write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def numbers(count: int, num_shards: int = 4) -> MemoryShardedSource:
    return MemoryShardedSource([{"x": x} for x in range(count)], num_shards=num_shards)


def xs(loader: Any) -> list[int]:
    return [int(x) for batch in loader for x in batch["x"]]


class Slow(ShardedSource):
    """A source that takes its time, a random one."""

    shard_names = tuple(f"s{number}" for number in range(6))

    def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
        for x in range(row, 40):
            if x % 16 == 0:
                time.sleep(random.random() / 200)
            yield {"x": 100 * int(shard_name[1:]) + x}


def loader_threads() -> list[str]:
    return [
        each.name
        for each in threading.enumerate()
        if each.name in ("penstock-prefetch", "penstock-reader", "penstock-async")
    ]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 10
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loader_threads()


# --- Batches ------------------------------------------------------------------------------------------------


def test_batches_in_order() -> None:
    loader = AsyncDataLoader(source=numbers(20), batch_size=6)
    assert [batch["x"].tolist() for batch in loader] == [list(range(n, n + 6)) for n in (0, 6, 12)]
    assert len(loader) == 3
    whole = AsyncDataLoader(numbers(20), 6, drop_last=False)
    assert [len(batch["x"]) for batch in whole] == [6, 6, 6, 2]
    assert len(whole) == 4
    assert whole.is_exhausted
    assert whole.stats().batches == 4


@pytest.mark.parametrize("workers", [None, 1, 4])
@pytest.mark.parametrize("shuffle_buffer_size", [None, 50])
def test_the_order_does_not_depend_on_threads_or_timing(workers: int | None, shuffle_buffer_size: int | None) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle_buffer_size": shuffle_buffer_size, "seed": 3}
    expected = xs(AsyncDataLoader(Slow(), prefetch_enabled=False, **options))
    assert sorted(expected) == sorted(100 * shard + x for shard in range(6) for x in range(40))
    loader = AsyncDataLoader(
        Slow(), prefetch_enabled=workers is not None, prefetch_workers=workers or 1, prefetch_buffer_size=2, **options
    )
    assert xs(loader) == expected


def test_for_and_async_for_give_the_same() -> None:
    async def take() -> list[int]:
        return [int(x) async for batch in AsyncDataLoader(numbers(40), 4) for x in batch["x"]]

    assert asyncio.run(take()) == xs(AsyncDataLoader(numbers(40), 4))


def test_the_event_loop_goes_on_while_a_batch_is_awaited() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        async for _ in AsyncDataLoader(Slow(), 64, prefetch_enabled=False):
            pass
        ticking.cancel()

    asyncio.run(main())
    assert ticks > 3


def test_a_task_that_is_cancelled_waits_for_no_batch() -> None:
    released, has_waited = threading.Event(), []

    class Stalls(ShardedSource):
        shard_names = ("a",)

        def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
            yield from ({"x": x} for x in range(row, 300))
            has_waited.append(not released.wait(20))
            yield {"x": 300}

    async def main(loader: AsyncDataLoader) -> int:
        taken = 0

        async def take() -> None:
            nonlocal taken
            async for _ in loader:
                taken += 1

        task = asyncio.create_task(take())
        while taken < 32:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return taken

    for options in ({}, {"prefetch_enabled": False}):
        released.clear()
        assert asyncio.run(main(AsyncDataLoader(Stalls(), 8, **options))) >= 32  # type: ignore[arg-type]
        released.set()
    wait_for_no_threads()
    assert not any(has_waited)


def test_an_async_loop_that_is_left_ends_its_threads() -> None:
    async def take() -> None:
        async for _ in AsyncDataLoader(numbers(4000), 4):
            break

    asyncio.run(take())
    wait_for_no_threads()


# --- Shuffling ----------------------------------------------------------------------------------------------


def test_a_buffer_shuffles_each_epoch_in_another_way() -> None:
    loader = AsyncDataLoader(numbers(300, 6), 10, shuffle_buffer_size=100, seed=1)
    epochs = [xs(loader) for _ in range(3)]
    assert all(sorted(epoch) == list(range(300)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = AsyncDataLoader(numbers(300, 6), 10, shuffle_buffer_size=100, seed=1)
    again.set_epoch(2)
    assert xs(again) == epochs[2]
    # Seeds and epochs are hashed together: the second epoch of one seed is not the first of the next.
    assert xs(AsyncDataLoader(numbers(300, 6), 10, shuffle_buffer_size=100, seed=2)) not in epochs


def test_sorted_data_is_mixed_well() -> None:
    count = 20_000
    loader = AsyncDataLoader(numbers(count, 20), 100, shuffle_buffer_size=2000, seed=5)
    order = np.array(xs(loader))
    assert sorted(order) == list(range(count))
    assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.4  # shards in order through such a buffer: 0.99
    neighbours = np.abs(np.diff(order)) < 10
    assert neighbours.mean() < 0.05


def test_randomness_of_others_is_neither_used_nor_changed() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    first = xs(AsyncDataLoader(numbers(100), 10, shuffle_buffer_size=50))
    assert (random.random(), np.random.random()) == expected
    assert xs(AsyncDataLoader(numbers(100), 10, shuffle_buffer_size=50)) == first


def test_a_buffer_may_be_limited_by_bytes() -> None:
    most = 0
    alive: set[int] = set()

    class Large(ShardedSource):
        shard_names = ("a", "b")

        def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
            for x in range(row, 200):
                yield {"x": x, "data": Tracked(10_000)}

    class Tracked(bytes):
        def __init__(self, *_: Any) -> None:
            nonlocal most
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    loader = AsyncDataLoader(Large(), 1, shuffle_buffer_bytes="400kb", prefetch_enabled=False)
    values = [int(x) for batch in loader for x in batch["x"]]
    assert sorted(values) == sorted([*range(200)] * 2)
    assert most < 150  # 40 in the buffer, and what two shards read at once
    with pytest.raises(ConfigError, match="unknown unit"):
        AsyncDataLoader(numbers(1), shuffle_buffer_bytes="4 rows")


def test_an_index_makes_the_shuffle_global() -> None:
    loader = AsyncDataLoader(numbers(1000, 10), 50, shuffle=True, seed=4)
    first, second = xs(loader), xs(loader)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert first != second
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.5
    with pytest.raises(ConfigError, match="Slow has no fingerprint.* shuffle_buffer_size="):
        AsyncDataLoader(Slow(), shuffle=True)
    with pytest.raises(ConfigError, match="needs no buffer"):
        AsyncDataLoader(numbers(9), shuffle=True, shuffle_buffer_size=3)


def test_a_transform_of_a_global_shuffle_names_its_row() -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("missing")

    with pytest.raises(TransformError, match=r"row \d+ of memory:\d: KeyError"):
        xs(AsyncDataLoader(numbers(100).map(fail), 4, shuffle=True))


def test_datasets_are_read_in_their_own_order(tmp_path: Path) -> None:
    write_samples(tmp_path, 100)
    dataset = Dataset(local=tmp_path, shuffle=True, batch_size=4)
    loader = AsyncDataLoader(dataset, batch_size=10)
    batches = [batch["id"].tolist() for batch in loader]
    assert sorted(number for batch in batches for number in batch) == list(range(100))
    again = AsyncDataLoader(Dataset(local=tmp_path, shuffle=True), batch_size=10)
    taken = iter(again)
    before = [next(taken)["id"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(again.state_dict()))
    taken.close()
    resumed = AsyncDataLoader(Dataset(local=tmp_path, shuffle=True), batch_size=10)
    resumed.load_state_dict(state)
    assert before + [batch["id"].tolist() for batch in resumed] == batches


# --- State --------------------------------------------------------------------------------------------------

SOURCES: dict[str, Any] = {
    "plain": lambda: numbers(90, 3),
    "unknown lengths": Slow,
    "filter and expand": lambda: numbers(90, 3).filter(lambda s: s["x"] % 3).flat_map(lambda s: [s] * (s["x"] % 3)),
    "mixed": lambda: MixedShardedSource({"a": numbers(50), "b": numbers(70)}, stop_strategy="all_exhausted"),
    "packed": lambda: PackedShardedSource(
        numbers(120).map(lambda s: {"input_ids": [s["x"]] * (1 + s["x"] % 7)}), 8, None
    ).map(lambda row: {"x": int(row["input_ids"].sum())}),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.parametrize("shuffle_buffer_size", [None, 30])
def test_cut_after_any_batch(source: Any, shuffle_buffer_size: int | None) -> None:
    options: dict[str, Any] = {
        "batch_size": 4,
        "shuffle_buffer_size": shuffle_buffer_size,
        "drop_last": False,
        "seed": 2,
    }
    whole = AsyncDataLoader(source(), prefetch_enabled=False, **options)
    epochs = [[batch["x"].tolist() for batch in whole] for _ in range(2)]
    for place in range(0, len(epochs[0]) + 1, 3 if len(epochs[0]) < 30 else 11):
        loader = AsyncDataLoader(source(), prefetch_workers=2, **options)
        taken = iter(loader)
        before = [next(taken)["x"].tolist() for _ in range(place)]
        state = json.loads(json.dumps(loader.state_dict()))
        taken.close()
        resumed = AsyncDataLoader(source(), prefetch_workers=3, prefetch_buffer_size=1, **options)
        resumed.load_state_dict(state)
        after = [batch["x"].tolist() for batch in resumed]
        if place == len(epochs[0]):  # nothing was left: the next epoch begins
            assert after == epochs[1]
        else:
            assert before + after == epochs[0]
            assert [batch["x"].tolist() for batch in resumed] == epochs[1]


def test_the_state_after_an_epoch_is_the_beginning_of_the_next() -> None:
    loader = AsyncDataLoader(numbers(30), 5, shuffle_buffer_size=10)
    epochs = [xs(loader), xs(loader)]
    first = AsyncDataLoader(numbers(30), 5, shuffle_buffer_size=10)
    assert xs(first) == epochs[0]
    second = AsyncDataLoader(numbers(30), 5, shuffle_buffer_size=10)
    second.load_state_dict(first.state_dict())
    assert xs(second) == epochs[1]


def test_a_pass_that_was_left_is_followed_by_the_next_epoch() -> None:
    loader = AsyncDataLoader(numbers(60), 5, shuffle_buffer_size=20)
    next(iter(loader))
    left = xs(loader)
    other = AsyncDataLoader(numbers(60), 5, shuffle_buffer_size=20)
    other.set_epoch(1)
    assert left == xs(other)


def test_a_pass_that_was_left_no_longer_moves_the_state() -> None:
    loader = AsyncDataLoader(numbers(100), 10, shuffle_buffer_size=20)
    left, current = iter(loader), iter(loader)
    next(left)
    assert len(next(current)["x"]) == 10
    next(left)  # of epoch 0, which the other one has left behind
    resumed = AsyncDataLoader(numbers(100), 10, shuffle_buffer_size=20)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))["x"].tolist() == next(current)["x"].tolist()
    state = loader.state_dict()
    loader.load_state_dict(state)
    next(current)
    assert loader.state_dict() == state


def test_a_trainer_that_sets_each_epoch_does_not_lose_a_loaded_state() -> None:
    loader = AsyncDataLoader(numbers(60), 5, shuffle_buffer_size=20)
    whole = [batch["x"].tolist() for epoch in range(2) for batch in loader]
    cut = AsyncDataLoader(numbers(60), 5, shuffle_buffer_size=20)
    xs(cut)
    for _ in zip(range(3), cut, strict=False):
        state = cut.state_dict()
    resumed = AsyncDataLoader(numbers(60), 5, shuffle_buffer_size=20)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)  # as trainers do before each epoch
    assert [batch["x"].tolist() for batch in resumed] == whole[15:]
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert [batch["x"].tolist() for batch in resumed] == whole[:12]
    next(iter(resumed))
    resumed.set_epoch(1)  # from its beginning, if no state was loaded
    assert [batch["x"].tolist() for batch in resumed] == whole[12:]


def test_going_back_reads_no_more_than_the_buffer() -> None:
    read: list[int] = []

    class Counted(ShardedSource):
        shard_names = ("a",)

        def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
            for x in range(row, 100_000):
                read.append(x)
                yield {"x": x}

    loader = AsyncDataLoader(Counted(), 10, shuffle_buffer_size=100, prefetch_enabled=False)
    taken = iter(loader)
    for _ in range(9000):
        next(taken)
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1500
    read.clear()
    resumed = AsyncDataLoader(Counted(), 10, shuffle_buffer_size=100, prefetch_enabled=False)
    resumed.load_state_dict(state)
    assert next(iter(resumed))["x"].tolist() == next(taken)["x"].tolist()
    assert len(read) < 1000


def test_states_that_do_not_fit_are_refused() -> None:
    state = AsyncDataLoader(numbers(10), seed=1, shuffle_buffer_size=5).state_dict()
    with pytest.raises(ResumeError, match=r"other settings: buffer_rows=5, here None; seed=1, here 2"):
        AsyncDataLoader(numbers(10), seed=2).load_state_dict(state)
    with pytest.raises(ResumeError, match="an AsyncDataLoader over a source needs one with kind, version"):
        AsyncDataLoader(numbers(10)).load_state_dict({"epoch": 3})
    named = [MemoryShardedSource([{"x": 1}], fingerprint=word) for word in ("a", "b")]
    with pytest.raises(ResumeError, match="another source"):
        AsyncDataLoader(named[1]).load_state_dict(AsyncDataLoader(named[0]).state_dict())


# --- Ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("uneven", ["drop", "pad"])
@pytest.mark.parametrize("shuffle_buffer_size", [None, 12])
def test_ranks_divide_the_samples_evenly(is_known: bool, uneven: Any, shuffle_buffer_size: int | None) -> None:
    source: ShardedSource = numbers(50, 3)
    if not is_known:
        source = source.filter(lambda sample: True)
    ranks = [
        xs(
            AsyncDataLoader(
                source,
                2,
                rank=rank,
                world_size=4,
                uneven=uneven,
                drop_last=False,
                shuffle_buffer_size=shuffle_buffer_size,
            )
        )
        for rank in range(4)
    ]
    assert {len(each) for each in ranks} == {12 if uneven == "drop" else 13}
    everything = [x for each in ranks for x in each]
    if uneven == "drop":
        assert len(set(everything)) == 48
    else:
        assert set(everything) == set(range(50))


def test_no_rank_sees_only_one_side_of_what_alternates() -> None:
    source = numbers(2000).filter(lambda sample: True)
    of_first = xs(AsyncDataLoader(source, 10, rank=0, world_size=2))
    assert 0.4 < np.mean([x % 2 for x in of_first]) < 0.6


# --- Threads and errors -------------------------------------------------------------------------------------


def test_threads_end_with_the_pass_and_when_it_is_closed_or_dropped() -> None:
    loader = AsyncDataLoader(numbers(10_000), 4, prefetch_workers=3)
    for _ in loader:
        pass
    wait_for_no_threads()
    taken = iter(loader)
    next(taken)
    assert loader_threads()
    taken.close()
    wait_for_no_threads()
    taken = iter(loader)
    next(taken)
    del taken
    wait_for_no_threads()
    for _ in loader:
        break
    wait_for_no_threads()


def test_an_error_comes_where_its_batch_would_have_been() -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["x"] == 21:
            raise ValueError("bad")
        return sample

    loader = AsyncDataLoader(numbers(40, 1).map(fail), 5)
    taken = iter(loader)
    assert [next(taken)["x"][0] for _ in range(4)] == [0, 5, 10, 15]
    with pytest.raises(TransformError, match="row 21 of memory:0"):
        next(taken)
    wait_for_no_threads()


def test_a_collate_fn_that_fails_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        list(AsyncDataLoader(numbers(40), 5, collate_fn=lambda rows: 1 // 0))
    wait_for_no_threads()


def test_a_stall_is_a_stall_and_not_the_end() -> None:
    class Stalls(ShardedSource):
        shard_names = ("a",)

        def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
            for x in range(row, 16):
                if x == 8:
                    time.sleep(1.5)
                yield {"x": x}

    assert xs(AsyncDataLoader(Stalls(), 4)) == list(range(16))


def test_the_first_rows_of_a_slow_source_do_not_wait_for_many() -> None:
    read: list[int] = []

    class Slow(ShardedSource):
        shard_names = ("a",)

        def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
            for x in range(row, 300):
                time.sleep(0.01)
                read.append(x)
                yield {"x": x}

    taken = iter(AsyncDataLoader(Slow(), 2, prefetch_enabled=False))
    assert next(taken)["x"].tolist() == [0, 1]
    assert len(read) < 200


INTERRUPTED = """
import os, signal, threading, time
from penstock import AsyncDataLoader, ShardedSource
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it

class Stalls(ShardedSource):
    shard_names = ("a",)

    def read_shard(self, shard_name, row):
        yield from ({"x": x} for x in range(40))
        time.sleep(60)

taken = 0
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    for batch in AsyncDataLoader(Stalls(), 8):
        taken += 1
except KeyboardInterrupt as interrupt:
    print(taken, interrupt)
"""


def test_an_interrupt_says_what_was_waited_for_and_the_process_ends() -> None:
    # At once: nothing waits for a thread that waits for a store that is away.
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30)
    assert done.stdout.split(maxsplit=1)[1].strip() == "while waiting for the next batch", done.stderr
    assert done.returncode == 0


def test_memory_is_pinned_where_that_is_possible() -> None:
    import torch

    source = MemoryShardedSource([{"x": x} for x in range(8)])
    if torch.cuda.is_available():
        assert next(iter(AsyncDataLoader(source, 4, output="torch", pin_memory=True)))["x"].is_pinned()
    else:
        with pytest.warns(UserWarning, match="pin_memory=True has no effect"):
            loader = AsyncDataLoader(source, 4, output="torch", pin_memory=True)
        assert next(iter(loader))["x"].tolist() == [0, 1, 2, 3]


def test_torch_tensors() -> None:
    import torch

    source = MemoryShardedSource([{"x": x, "text": "t", "y": np.zeros(3, np.float32)} for x in range(8)])
    batch = next(iter(AsyncDataLoader(source, 4, output="torch")))
    assert batch["x"].tolist() == [0, 1, 2, 3]
    assert batch["y"].shape == (4, 3)
    assert batch["y"].dtype is torch.float32
    assert batch["text"] == ["t"] * 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"prefetch_workers": 0}, "prefetch_workers=0"),
        ({"uneven": "split"}, "uneven='split'"),
        ({"output": "tf"}, "output='tf'"),
        ({"pin_memory": True}, "pin_memory=True only works with output='torch'"),
        ({"source": [1, 2]}, "source is a list"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        AsyncDataLoader(**{"source": numbers(4), **options})
