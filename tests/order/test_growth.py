"""Histories of a run whose data grow: appended to, killed, resumed in other worlds; every row of an epoch once."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError, ResumeError
from penstock.order.cursor import Cursor
from penstock.order.make_plan import RunSettings, make_plan
from penstock.order.native import StreamPlan
from penstock.order.options import StreamShards
from penstock.order.weights import StreamWeight
from penstock.order.world import World, seats

WORLDS = [World(num_nodes=nodes, ranks_per_node=ranks) for nodes, ranks in ((1, 1), (1, 2), (3, 1), (2, 4))]


class Files:
    """Names of files, one for each shard, as an index of files knows them."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def content_of(self, shards: Any) -> str:
        return " ".join(self._names[shard] for shard in shards)

    def file_of(self, shard: int) -> str:
        return self._names[shard]


def stream(name: str, lengths: list[int], *, names: list[str] | None = None, repeat: float | None = None) -> Any:
    files = None if names is None else Files(names)
    return StreamShards(
        name=name,
        lengths=np.array(lengths, np.int64),
        sizes=None if names is None else np.full(len(lengths), 100),
        content="" if names is None else " ".join(names),
        files=files,
        weight=StreamWeight(repeat=repeat),
    )


class GrowingRun:
    """A run of which the samples of each epoch are known: as (stream, row), for an append moves the ids of others."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.has_files = draw.random() < 0.4
        self.shards = {name: self._new_shards(draw.randrange(1, 10)) for name in "ab"[: draw.randrange(1, 3)]}
        self.settings: dict[str, Any] = {"shuffle": draw.random() < 0.8, "grow": "epoch"}
        self.batch = draw.choice([1, 7, 16])
        self.repeats = {name: draw.choice([None, None, 2.0]) for name in self.shards}
        if not self.settings["shuffle"]:
            self.repeats = dict.fromkeys(self.shards)
        elif draw.random() < 0.2:
            self.batch = 8
            self.settings |= {"batching_method": "stratified", "num_canonical_nodes": 2}
        self.state: dict[str, Any] | None = None
        self.num_appends = self.num_kills = 0
        self._begin()

    def _new_shards(self, count: int) -> list[int]:
        return [
            self.draw.choice([0, 1, 3, 60]) if self.draw.random() < 0.3 else self.draw.randrange(1, 60)
            for _ in range(count)
        ] + [1]

    def _streams(self) -> list[StreamShards]:
        return [
            stream(
                name,
                lengths,
                names=[f"{number:04}.parquet" for number in range(len(lengths))] if self.has_files else None,
                repeat=self.repeats[name],
            )
            for name, lengths in self.shards.items()
        ]

    def _begin(self) -> None:
        """Note what an epoch has that begins now."""
        self.ledger = {name: sum(lengths) for name, lengths in self.shards.items()}
        self.seen: list[tuple[str, int]] = []

    def append(self) -> None:
        name = self.draw.choice(list(self.shards))
        self.shards[name] = [*self.shards[name], *self._new_shards(self.draw.randrange(1, 12))]
        self.num_appends += 1

    def run(self) -> None:
        """Go on in some world for some batches, all that is left of the epoch included, and be killed."""
        world = self.draw.choice(WORLDS)
        size = self.batch * (1 if "batching_method" in self.settings else world.num_ranks)
        streams = self._streams()
        plan, at = make_plan(
            streams, RunSettings(**self.settings), world=world, global_batch_size=size, state=self.state
        )
        assert isinstance(plan, StreamPlan)
        if at.position >= plan.epoch_size(at.epoch):
            at = Cursor(at.epoch + 1)
        if at.position == 0:
            self._begin()
        for _ in range(self.draw.choice([0, 1, 3, 10, 1000])):
            here = min(size, plan.epoch_size(at.epoch) - at.position)
            if here == 0:
                self._check()
                at = Cursor(at.epoch + 1)
                self._begin()
                break
            shared = [plan.batch(at, 0, seat, size) for seat in seats(world)]
            assert sorted(set(np.concatenate(shared).tolist())) == sorted(
                set(plan.global_batch(at, 0, world, size).tolist())
            )
            ids = plan.global_batch(at, 0, world, size)[:here]
            self._note(streams, ids)
            shards, _ = plan.expected_shards(at, 0, 1, seats(world)[0], size)
            assert set(shards.tolist()) <= set(range(sum(map(len, self.shards.values()))))
            at = Cursor(at.epoch, at.position + here)
        self.state = json.loads(json.dumps(plan.state_dict(at)))
        self.num_kills += 1

    def _note(self, streams: list[StreamShards], ids: Any) -> None:
        firsts = np.cumsum([0, *(each.num_samples for each in streams)])
        numbers = np.searchsorted(firsts, ids, side="right") - 1
        self.seen += [(streams[n].name, int(i - firsts[n])) for n, i in zip(numbers, ids, strict=True)]

    def _check(self) -> None:
        expected = [
            (name, row)
            for name, count in self.ledger.items()
            for row in list(range(count)) * int(self.repeats[name] or 1)
        ]
        assert sorted(self.seen) == sorted(expected)


def live(seed: int) -> GrowingRun:
    draw = random.Random(seed)
    run = GrowingRun(draw)
    for _ in range(draw.randrange(2, 16)):
        run.run()
        if draw.random() < 0.5:
            run.append()
    return run


def live_many(seeds: range) -> None:
    runs = [live(seed) for seed in seeds]
    assert sum(run.num_appends for run in runs) > len(seeds)
    assert sum(run.num_kills for run in runs) > 2 * len(seeds)


def test_histories_of_appends_and_kills() -> None:
    live_many(range(30))


@pytest.mark.soak
def test_a_thousand_histories() -> None:
    live_many(range(1000))


def test_without_grow_the_error_names_it_and_the_rows() -> None:
    plan, at = make_plan([stream("web", [10, 20])], RunSettings(), world=WORLDS[0], global_batch_size=4)
    state = plan.state_dict(Cursor(0, 8))
    grown = [stream("web", [10, 20, 1000, 234])]
    with pytest.raises(ResumeError, match=r"'web' has grown .* 1,234 rows in 2 shards .* grow=\"epoch\""):
        make_plan(grown, RunSettings(), world=WORLDS[0], global_batch_size=4, state=state)
    plan, at = make_plan(grown, RunSettings(grow="epoch"), world=WORLDS[0], global_batch_size=4, state=state)
    assert (at, plan.epoch_size(0), plan.epoch_size(1)) == (Cursor(0, 8), 30, 1264)


def test_an_epoch_that_has_not_begun_has_all() -> None:
    settings = RunSettings(grow="epoch", shuffle=True)
    plan, _ = make_plan([stream("web", [10, 20])], settings, world=WORLDS[0], global_batch_size=4)
    grown, state = [stream("web", [10, 20, 5])], plan.state_dict(Cursor(3))
    plan, at = make_plan(grown, settings, world=WORLDS[0], global_batch_size=4, state=state)
    assert (at, plan.epoch_size(3)) == (Cursor(3), 35)
    plan, at = make_plan(grown, settings, world=WORLDS[0], global_batch_size=4, state={**state, "is_begun": True})
    assert (plan.epoch_size(3), plan.epoch_size(4)) == (30, 35)


@pytest.mark.parametrize("lengths", [[10, 21, 5], [5, 10, 20], [10, 5, 20], [10], [20, 10, 5]])
def test_other_rows_than_appended_ones_are_refused(lengths: list[int]) -> None:
    plan, _ = make_plan([stream("web", [10, 20])], RunSettings(), world=WORLDS[0], global_batch_size=4)
    with pytest.raises(ResumeError, match="'web' have changed since"):
        make_plan(
            [stream("web", lengths)],
            RunSettings(grow="epoch"),
            world=WORLDS[0],
            global_batch_size=4,
            state=plan.state_dict(Cursor(0, 8)),
        )


def test_a_file_that_sorts_before_known_ones_is_named() -> None:
    settings = RunSettings(grow="epoch")
    plan, _ = make_plan([stream("web", [9, 9], names=["a", "c"])], settings, world=WORLDS[0], global_batch_size=4)
    state = plan.state_dict(Cursor(0, 8))
    with pytest.raises(ResumeError, match=r"file b of stream 'web' .* sorts before"):
        grown = [stream("web", [9, 9, 9], names=["a", "b", "c"])]
        make_plan(grown, settings, world=WORLDS[0], global_batch_size=4, state=state)


def test_windows_are_chosen_again_for_many_more_shards() -> None:
    settings = RunSettings(grow="epoch", shuffle=True)
    plan, _ = make_plan([stream("web", [2] * 8)], settings, world=WORLDS[0], global_batch_size=4)
    assert isinstance(plan, StreamPlan)
    for joined, is_new in ((4, False), (8, True)):
        grown = [stream("web", [2] * 8 + [10_000] * joined)]
        state = plan.state_dict(Cursor(0, 8))
        later, _ = make_plan(grown, settings, world=WORLDS[0], global_batch_size=4, state=state)
        assert isinstance(later, StreamPlan)
        assert (later.of(1).windows != plan.windows) == is_new
        assert later.of(1).num_lanes == plan.num_lanes


def test_settings_that_cannot_grow() -> None:
    with pytest.raises(ConfigError, match='use grow="epoch"'):
        RunSettings(grow="now")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="order='mosaic'"):
        RunSettings(grow="epoch", order="mosaic")
