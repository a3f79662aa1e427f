"""Who takes part: ranks are numbered node after node, positions are dealt to the nodes in turn."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.order.world import Seat, World, replicate, seats

WORLD = World(num_nodes=2, ranks_per_node=4, workers_per_rank=3)


def test_every_rank_has_a_seat_and_positions_of_its_own() -> None:
    assert [seat.rank for seat in seats(WORLD)] == list(range(8))
    assert [seat.residue for seat in seats(WORLD)] == [0, 2, 4, 6, 1, 3, 5, 7]


def test_workers_take_turns() -> None:
    steps = [Seat(world=WORLD, worker=worker).step_of(turn) for turn in range(2) for worker in range(3)]
    assert steps == list(range(6))


def test_ranks_of_a_group_share_a_seat() -> None:
    shared = [replicate(seat, 2) for seat in seats(WORLD)]
    assert [seat.rank for seat in shared] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert shared[0].world == World(num_nodes=1, ranks_per_node=4, workers_per_rank=3)
    across = replicate(Seat(world=World(num_nodes=4, ranks_per_node=2), node=3), 2)
    assert across.world == World(num_nodes=2, ranks_per_node=2)
    assert across.rank == 3


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="ranks_per_node=0 is too small"):
        World(ranks_per_node=0)
    with pytest.raises(ConfigError, match="node=2 does not exist: there are 2, counted from 0"):
        Seat(world=WORLD, node=2)
    with pytest.raises(ConfigError, match="replication=3 does not divide the 8 ranks evenly"):
        replicate(Seat(world=WORLD), 3)
