"""What a plan is told about its world and its cache: values that fit when they are followed, and no contradictions."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import CacheTooSmallError
from penstock.order.advice import CacheRoom, check_cache, check_world, measure_footprint
from penstock.order.native import StreamPlan
from penstock.order.options import OrderOptions, StreamShards
from penstock.order.world import World
from penstock.units import parse_bytes

LARGE = 10**12


def plan_of(num_shards: int, length: int, *, num_streams: int = 1, **options: object) -> StreamPlan:
    streams = [StreamShards(name=f"s{number}", lengths=np.full(num_shards, length)) for number in range(num_streams)]
    return StreamPlan.make(streams, OrderOptions(**options))  # type: ignore[arg-type]


def told(plan: StreamPlan, world: World, room: CacheRoom | None = None, num_bytes: int = LARGE) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_world(plan, world, num_bytes, room)
    return [str(warning.message) for warning in caught]


def test_advice_comes_with_numbers() -> None:
    plan = plan_of(400, 50, num_canonical_nodes=8, shuffle_block_size=500)
    world = World(num_nodes=4, ranks_per_node=8)
    footprint = measure_footprint(plan, world)
    assert (footprint.lanes_per_node, footprint.shards_per_node) == (2, 22)
    assert not told(plan, world)
    (text,) = told(plan, World(num_nodes=3))
    assert "3 nodes do not divide 8 lanes" in text
    (text,) = told(plan_of(400, 50, num_canonical_nodes=1, shuffle_block_size=1), World())
    assert "among only 2 of 400 shards" in text
    sizes = np.full(400, 10**6)
    check_cache(plan, world, CacheRoom(limit_bytes=22 * 10**6, shard_bytes=sizes))
    with pytest.raises(CacheTooSmallError, match="22 shards"):
        check_cache(plan, world, CacheRoom(limit_bytes=10**7, shard_bytes=sizes))


def test_a_small_dataset_is_never_worth_a_warning() -> None:
    few_shards = plan_of(30, 1333, shuffle_block_size=1)
    assert not told(few_shards, World(num_nodes=3), num_bytes=30 << 20)
    assert told(few_shards, World(), num_bytes=30 << 30)  # few samples, but large ones


def test_the_block_that_a_warning_names_is_large_enough() -> None:
    (text,) = told(plan_of(4000, 700, shuffle_block_size=1000, num_canonical_nodes=1), World())
    block_size = int(re.findall(r"shuffle_block_size=(\d+)", text)[0])
    assert not told(plan_of(4000, 700, shuffle_block_size=block_size, num_canonical_nodes=1), World())


@given(
    num_shards=st.integers(1, 3000),
    length=st.integers(1, 5000),
    num_streams=st.integers(1, 3),
    lanes=st.sampled_from([None, 1, 2, 8, 64]),
    block_size=st.one_of(st.none(), st.integers(1, 1 << 20)),
    num_nodes=st.sampled_from([1, 2, 3, 8]),
    held=st.integers(1, 300),
)
def test_who_does_what_an_error_says_has_no_further_error_and_is_not_told_the_contrary(
    num_shards: int,
    length: int,
    num_streams: int,
    lanes: int | None,
    block_size: int | None,
    num_nodes: int,
    held: int,
) -> None:
    settings = {"num_streams": num_streams, "num_canonical_nodes": lanes}
    plan = plan_of(num_shards, length, shuffle_block_size=block_size, **settings)  # type: ignore[arg-type]
    world, sizes = World(num_nodes=num_nodes), np.full(num_shards * num_streams, 1 << 20)
    room = CacheRoom(limit_bytes=held << 20, shard_bytes=sizes)
    assume(not room.holds(measure_footprint(plan, world)))
    with pytest.raises(CacheTooSmallError) as caught:
        check_cache(plan, world, room)
    text = str(caught.value)
    limit = parse_bytes(re.findall(r'set cache_limit="(\w[\w.]*)"', text)[0])
    check_cache(plan, world, CacheRoom(limit_bytes=limit, shard_bytes=sizes))
    fits = caught.value.facts["shuffle_block_size"]
    assert ("shuffle_block_size=" in text) == (fits is not None)
    if fits is None:
        if "leave out shuffle=True" in text:
            unshuffled = plan_of(num_shards, length, shuffle=False, **settings)  # type: ignore[arg-type]
            check_cache(unshuffled, world, room)
        return
    smaller = plan_of(num_shards, length, shuffle_block_size=fits, **settings)  # type: ignore[arg-type]
    check_cache(smaller, world, room)
    for advice in told(smaller, world, room):
        if "shuffled among" in advice:  # more only with a larger cache, and then it fits
            assert "cache_limit=" in advice
            limit = parse_bytes(re.findall(r'set cache_limit="(\w[\w.]*)"', advice)[0])
            better = int(re.findall(r"shuffle_block_size=(\d+)", advice)[0])
            larger = CacheRoom(limit_bytes=limit, shard_bytes=sizes)
            check_cache(plan_of(num_shards, length, shuffle_block_size=better, **settings), world, larger)  # type: ignore[arg-type]


def test_a_run_that_goes_on_from_a_state_is_only_told_the_limit() -> None:
    plan, sizes = plan_of(400, 500), np.full(400, 1 << 20)
    with pytest.raises(CacheTooSmallError, match="the loaded state fixes") as caught:
        check_cache(plan, World(), CacheRoom(limit_bytes=10 << 20, shard_bytes=sizes), is_resumed=True)
    assert "shuffle_block_size" not in str(caught.value)
