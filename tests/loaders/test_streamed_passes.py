"""One state for the whole job: equal on all ranks, and good on any number of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pytest
from torch import distributed

from penstock import (
    AsyncDataLoader,
    CompositeShardedSource,
    JsonShardedSource,
    LimitedShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ShardedSource,
)
from penstock.data.ranks import _TorchStore
from penstock.loaders import lane_places, streamed_passes
from penstock.loaders.lane_places import LaneNotes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GLOBAL_BATCH = 12


def numbers(count: int, num_shards: int, first: int = 0) -> ShardedSource:
    rows = [{"x": first + n, "input_ids": [first + n] * (n % 5 + 1)} for n in range(count)]
    return MemoryShardedSource(rows, num_shards=num_shards, fingerprint=f"{count}-{num_shards}-{first}")


def ids(batch: Any) -> list[int]:
    if "x" in batch:
        return [int(x) for x in batch["x"]]
    return [int(token) for row in batch["input_ids"] for token in row if token]


class World:
    """Loaders of all ranks of a job, which take batches side by side."""

    num_ranks = 1  # of the world that was made last

    def __init__(self, make: Callable[..., ShardedSource], num_ranks: int, state: Any = None, **options: Any) -> None:
        World.num_ranks = num_ranks
        given = {"batch_size": GLOBAL_BATCH // num_ranks, "drop_last": False, "prefetch_enabled": False, **options}
        self.loaders = [AsyncDataLoader(make(), **given, rank=rank, world_size=num_ranks) for rank in range(num_ranks)]
        for loader in self.loaders if state is not None else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        self.passes = [iter(loader) for loader in self.loaders]
        self.is_over = False  # for one of the ranks, at least
        self.num_rows = 0

    def take(self, count: int) -> list[list[int]]:
        """Take global batches, each sorted, up to one that is not whole."""
        taken: list[list[int]] = []
        while len(taken) < count and not self.is_over:
            batches = [next(each, None) for each in self.passes]
            sizes = [0 if batch is None else len(next(iter(batch.values()))) for batch in batches]
            self.is_over = sum(sizes) < GLOBAL_BATCH
            self.num_rows += sum(sizes)
            taken.append(sorted(x for batch in batches for x in ids(batch or {"x": []})))
        return taken

    def rest(self) -> list[list[int]]:
        batches = list(zip_longest(*self.passes, fillvalue={"x": []}))
        self.num_rows += sum(len(next(iter(each.values()))) for batch in batches for each in batch)
        return [sorted(x for each in batch for x in ids(each)) for batch in batches]

    def states(self) -> list[Any]:
        return [loader.state_dict() for loader in self.loaders]


def flat(batches: list[list[int]]) -> list[int]:
    return [x for batch in batches for x in batch]


def test_lines_with_a_filter_go_on_in_any_world(tmp_path: Path) -> None:
    for part in range(4):
        lines = [json.dumps({"x": 100 * part + n}) for n in range(100)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")

    def make() -> ShardedSource:
        return JsonShardedSource(str(tmp_path)).filter(lambda row: row["x"] % 3)

    expected = World(make, 1).rest()
    assert flat(expected) == [x for x in range(400) if x % 3]
    two = World(make, 2)
    assert two.take(5) == expected[:5]
    state, other = two.states()
    assert state == other
    for num_ranks in (1, 2, 3):
        assert World(make, num_ranks, state).rest()[: len(expected) - 6] == expected[5:-1]


# --- Chains of stages -----------------------------------------------------------------------------------------


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("x", "input_ids")}


def keep(row: dict[str, Any]) -> bool:
    return bool(row["x"] % 4)


STAGES: dict[str, Callable[[ShardedSource], ShardedSource]] = {
    "map": lambda source: source.map(dict),
    "filter": lambda source: source.filter(keep),
    "flat map": lambda source: source.flat_map(lambda row: [row] * (row["x"] % 3)),
    "batches": lambda source: source.map_batches(lambda rows: rows[::-1], batch_size=7),
    "limited": lambda source: LimitedShardedSource(source, 100),
    "mixed": lambda source: MixedShardedSource(
        {"a": source, "b": numbers(60, 5, 5000)}, {"a": 2, "b": 1}, stop_strategy="all_exhausted"
    ),
    "with others": lambda source: CompositeShardedSource([source, numbers(30, 2, 7000)]).map(_plain),
    "packed": lambda source: PackedShardedSource(source, 8, None, shuffle_buffer_factor=1),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"shuffle_buffer_size": 20},
    {"shuffle_buffer_size": 7, "interleave": 2},
    {"shuffle_buffer_bytes": 4000},
]


def chain_of(draw: random.Random) -> Callable[[], ShardedSource]:
    names = draw.sample(sorted(set(STAGES) - {"packed"}), draw.randint(0, 3)) + ["packed"] * draw.randint(0, 1)
    num_rows, num_shards = draw.randint(50, 250), draw.randint(1, 9)

    def make() -> ShardedSource:
        source = numbers(num_rows, num_shards)
        for name in names:
            source = STAGES[name](source)
        return source

    make.__name__ = f"{num_rows} rows in {num_shards} shards, {', '.join(names)}"
    return make


def check_equal(state: Any, other: Any, about: str) -> None:
    """States are the same, up to where a rank knows the lanes of others."""
    left, right = ({**each, "position": {**(each["position"] or {}), "cursors": None}} for each in (state, other))
    assert left == right, about


def check_chain(seed: int, num_cuts: int = 5) -> None:
    """Take some batches in one world after the other; compare with all samples, and with the first world uncut."""
    draw = random.Random(seed)
    make, options = chain_of(draw), {**draw.choice(OPTIONS), "uneven": draw.choice(["drop", "pad", "allow"])}
    worlds = [draw.choice([1, 2, 3, 4, 6]) for _ in range(num_cuts + 1)]
    about = f"seed {seed}: {make.__name__}, {options}, worlds {worlds}"
    uncut = World(make, worlds[0], **options).rest()
    alone = World(make, 1)
    everything = Counter(flat(alone.rest()))
    got: list[list[int]] = []
    state, num_left = None, alone.num_rows
    for number, num_ranks in enumerate(worlds):
        world = World(make, num_ranks, state, **options)
        if number == num_cuts:
            got += world.rest()
            break
        got += world.take(draw.randint(number == 0, 3))
        num_left -= world.num_rows
        if world.is_over or num_left < GLOBAL_BATCH:
            got += world.rest()
            break
        state = draw.choice(world.loaders).state_dict()
        for each in world.states():
            check_equal(each, state, about)
    counts = Counter(flat(got))
    if options["uneven"] == "allow":
        assert counts == everything, about
    elif options["uneven"] == "drop":
        assert not counts - everything, about
    else:
        assert not everything - counts, about
    num_full = alone.num_rows // GLOBAL_BATCH
    if options["uneven"] != "allow":
        assert got[:num_full] == uncut[:num_full], about


@pytest.mark.filterwarnings("ignore:.*rows are read again")
@pytest.mark.parametrize("seed", range(30))
def test_chains_give_every_sample_once(seed: int) -> None:
    check_chain(seed)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.*rows are read again")
@pytest.mark.parametrize("first", range(1000, 1100, 10))
def test_a_hundred_chains_in_three_worlds(first: int) -> None:
    for seed in range(first, first + 10):
        for num_worlds in range(3):
            check_chain(3 * seed + num_worlds)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of the job, which the ranks of this process share."""
    kept = distributed.HashStore()  # type: ignore[attr-defined]

    class Store(_TorchStore):
        def __init__(self) -> None:
            self._store = kept

        num_ranks = property(lambda _: World.num_ranks)

    for module in (lane_places, streamed_passes):
        monkeypatch.setattr(module, "find_job_store", Store)


@pytest.mark.parametrize("seed", range(100, 115))
def test_ranks_that_leave_notes_now_and_then(seed: int, store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one rank is asked for a state; of others, some have left notes before, and some never have."""
    monkeypatch.setattr(LaneNotes, "is_due", lambda _: random.random() < 0.5)
    check_chain(seed)


def test_with_notes_of_all_nothing_is_read_again(
    store: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> ShardedSource:
        return numbers(200, 8).filter(keep)

    caplog.set_level("INFO", "penstock.loaders")
    options = {"uneven": "allow", "shuffle_buffer_size": 9}
    world = World(make, 4, **options)
    got = world.take(3)
    alone = world.loaders[2].state_dict()  # others have left a note at their first batch
    assert len(alone["position"]["cursors"]) == 4
    last = [loader.state_dict() for loader in world.loaders][-1]
    for state, num_again in ((last, 0), (alone, 18)):
        resumed = World(make, 2, state, **options)
        assert sorted(flat(got + resumed.rest())) == [x for x in range(200) if x % 4]
        told = [record.message for record in caplog.records if "read again" in record.message]
        assert sum(int(each.split()[0]) for each in told) == num_again
        caplog.clear()


def test_without_notes_a_warning_says_how_much_is_read_again() -> None:
    def make() -> ShardedSource:
        return numbers(200, 8).filter(keep)

    state = World(make, 4, None, uneven="allow").states()[0]
    assert state["position"] is None
    world = World(make, 4, uneven="allow")
    world.take(3)
    resumed = World(make, 1, world.loaders[0].state_dict(), uneven="allow")
    with pytest.warns(UserWarning, match="27 rows are read again and dropped"):
        resumed.take(1)


@pytest.mark.parametrize("uneven", ["drop", "pad", "allow"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_length_after_a_resume_is_what_will_come(uneven: str, num_ranks: int, drop_last: bool) -> None:
    options = {"uneven": uneven, "drop_last": drop_last, "batch_size": 4}
    world = World(lambda: numbers(101, 3), 3, **options)
    assert {len(loader) for loader in world.loaders} == {8 if drop_last else 9}
    for each in world.passes:
        assert [next(each), next(each)]
    state = world.loaders[1].state_dict()
    resumed = World(lambda: numbers(101, 3), num_ranks, state, **options)
    expected = [len(loader) for loader in resumed.loaders]
    assert [len(list(each)) for each in resumed.passes] == expected
    assert len(resumed.loaders[0]) > expected[0]  # the next epoch is a whole one


def test_a_source_that_never_ends_gives_each_rank_shards_of_its_own(tmp_path: Path) -> None:
    def make() -> ShardedSource:
        sources = {"a": numbers(40, 4).filter(keep), "b": numbers(40, 4, 1000).filter(keep)}
        return MixedShardedSource(sources, stop_strategy="restart")

    world = World(make, 2)
    batches = [[ids(next(each)) for _ in range(9)] for each in world.passes]
    first, second = ({x for batch in taken for x in batch} for taken in batches)
    assert not first & second
    assert first | second == {x for base in (0, 1000) for x in range(base, base + 40) if x % 4}
