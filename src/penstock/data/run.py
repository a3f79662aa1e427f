"""The plan of the pass about to begin, made again only when world, batch or state are others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cache.once import keep_in_files
from penstock.order.advice import check_cache, check_world
from penstock.order.cursor import Cursor
from penstock.order.make_plan import make_plan
from penstock.order.native import StreamPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.order.make_plan import RunSettings
    from penstock.order.options import StreamShards
    from penstock.order.plan import Plan
    from penstock.order.world import Seat, World
    from penstock.reading.shard_table import ShardTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A plan, and where the state that it was made from left off."""

    plan: Plan
    resumed_at: Cursor

    def start_of(self, next_epoch: int, world: World, global_batch_size: int, *, is_state_new: bool) -> Cursor:
        """Say where the next pass begins: at the state, unless a pass has begun there; after a finished epoch, anew.

        An epoch may be finished before its last sample, where whole batches are made of several streams.
        """
        if not is_state_new:
            return Cursor(next_epoch, 0)
        at = self.resumed_at
        if at.position >= self.plan.epoch_size(at.epoch) or (
            at.position and not len(self.plan.global_batch(at, 0, world, global_batch_size))
        ):
            return Cursor(at.epoch + 1, 0)
        return at


class Runs:
    """Makes plans for a dataset, and keeps the last one."""

    def __init__(
        self,
        streams: Sequence[StreamShards],
        settings: RunSettings,
        table: ShardTable,
        *,
        limit_bytes: int | None,
        allow_mix_change: bool,
    ) -> None:
        self._streams, self._settings, self._table = streams, settings, table
        self._limit_bytes, self._allow_mix_change = limit_bytes, allow_mix_change
        self._last: tuple[Any, Run] | None = None

    def get(self, seat: Seat, global_batch_size: int, state: Mapping[str, Any] | None) -> Run:
        """Give the plan of a world for global batches of a size, going on from a state if there is one."""
        key = (seat.world.num_nodes, seat.world.ranks_per_node, global_batch_size, json.dumps(state, sort_keys=True))
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        plan, at = make_plan(
            self._streams,
            self._settings,
            world=seat.world,
            global_batch_size=global_batch_size,
            state=state,
            allow_mix_change=self._allow_mix_change,
            compute_once=keep_in_files,
        )
        if isinstance(plan, StreamPlan):
            self._advise(plan, seat.world)
        run = Run(plan=plan, resumed_at=at)
        self._last = key, run
        return run

    def _advise(self, plan: StreamPlan, world: World) -> None:
        """Say what the world and the limit of the cache mean for the plan."""
        check_world(plan, world)
        if self._limit_bytes is not None and self._table.needs_cache:
            check_cache(plan, world, self._limit_bytes, self._table.raw_bytes())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # quick to make again, and large
