"""Where the whole training job stands, seen from one rank: its seat, its plan, its passes and its state."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cachedir.once import keep_in_files
from penstock.data.in_place.identity import DataIdentity
from penstock.data.passes import NO_WORKER, SharedPasses
from penstock.data.ranks.agreement import Agreement
from penstock.data.seat import find_seat, is_worker, worker_of
from penstock.errors import ConfigError, ResumeError
from penstock.order.advice import CacheRoom, check_cache, check_world
from penstock.order.cursor import Cursor
from penstock.order.make_plan import MOSAIC, check_state, choose_order, make_plan
from penstock.order.mosaic.plan import MosaicPlan
from penstock.order.mosaic.rules import with_mosaic_keys
from penstock.order.native import StreamPlan
from penstock.order.world import seats
from penstock.processes import abandon_in_children
from penstock.reading.schedule import BatchSchedule
from penstock.reading.source import fetched_by
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.data.passes import Pass, PassState
    from penstock.data.seat import SeatSettings
    from penstock.order.make_plan import RunSettings
    from penstock.order.options import StreamShards
    from penstock.order.plan import Plan
    from penstock.order.world import Seat, World
    from penstock.reading.source import Source

# Without a batch size, samples come one by one but are still read many at a time.
_READ_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A plan, and where the state that it was made from left off."""

    plan: Plan
    resumed_at: Cursor

    def start_of(self, next_epoch: int, world: World, global_batch_size: int, *, is_state_new: bool) -> Cursor:
        """Return where the next pass begins: at the state, unless a pass has begun there; after a finished epoch, anew.

        An epoch may be finished before its last sample, where whole batches are made of several streams.
        """
        if not is_state_new:
            return Cursor(next_epoch, 0)
        at = self.resumed_at
        if at.position >= _end_of(self.plan, at, world, global_batch_size) or (
            at.position and not any(self.plan.num_batches(at, seat, global_batch_size) for seat in seats(world))
        ):
            return Cursor(at.epoch + 1, 0)
        return at


def _end_of(plan: Plan, at: Cursor, world: World, global_batch_size: int) -> int:
    """Return the position at which the epoch of a cursor is over."""
    if isinstance(plan, MosaicPlan):
        return plan.end(at, world, global_batch_size)
    return plan.epoch_size(at.epoch)


class Planner:
    """Makes the plan of the pass about to begin, again only when world, batch or state are others."""

    def __init__(
        self,
        streams: Sequence[StreamShards],
        settings: RunSettings,
        *,
        allow_mix_change: bool,
        advise: Callable[[StreamPlan, World, bool], None],
    ) -> None:
        self.streams, self.settings = streams, settings
        self._allow_mix_change, self._advise = allow_mix_change, advise
        self._last: tuple[Any, PlannedRun] | None = None

    def plan(self, world: World, global_batch_size: int, state: Mapping[str, Any] | None) -> PlannedRun:
        """Return the plan of a world for global batches of a size, going on from a state if there is one."""
        key = (world.num_nodes, world.ranks_per_node, global_batch_size, json.dumps(state, sort_keys=True))
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        plan, at = make_plan(
            self.streams,
            self.settings,
            world=world,
            global_batch_size=global_batch_size,
            state=state,
            allow_mix_change=self._allow_mix_change,
            compute_once=keep_in_files,
        )
        if isinstance(plan, StreamPlan):
            self._advise(plan, world, state is not None)
        planned = PlannedRun(plan=plan, resumed_at=at)
        self._last = key, planned
        return planned

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # quick to make again, and large


class _Now(NamedTuple):
    """Who this rank is at this moment, and what it reads by."""

    seat: Seat
    batch_size: int  # the samples of a rank that are dealt as one batch
    run: PlannedRun

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.seat.world.num_ranks


class RunState:
    """Answers for the dataset who this rank is, what it gets, and what a state says."""

    def __init__(
        self,
        planner: Planner,
        seat: SeatSettings,
        batch_size: int | None,
        identity: DataIdentity = DataIdentity(),  # noqa: B008  frozen
    ) -> None:
        self.batch_size = batch_size
        self.passes = SharedPasses()
        self.identity = identity
        self._planner, self._seat = planner, seat
        self._parents_seat: Seat | None = None
        found = [stream.fingerprint for stream in planner.streams]
        of_data = {**identity.state(), "code": None}  # ranks may not run the same release of Python
        self._agreement = Agreement(identity.places, json.dumps([found, of_data], sort_keys=True))
        self.compare_with_ranks(waits=False)

    @property
    def planner(self) -> Planner:
        """What makes the plans of this run: its streams and settings."""
        return self._planner

    def compare_with_ranks(self, *, waits: bool) -> None:
        """Raise if other ranks of the job opened other data; the first pass waits a while for those to come."""
        if not is_worker():  # what it reads, its parent has opened
            num_ranks = self._seat.world_size or find_seat(num_nodes=1).world.num_ranks
            (self._agreement.resolve if waits else self._agreement.tell)(num_ranks)

    # --- Who and how many -------------------------------------------------------------------------------------

    def set_seat(self, rank: int, world_size: int) -> None:
        """Take a seat that a loader knows of, such as that of a process of JAX, unless the user named another one."""
        said = self._seat.rank, self._seat.world_size
        if said != (None, None) and said != (rank, world_size):
            raise ConfigError(
                f"the dataset is rank {said[0]} of {said[1]}, but its loader is rank {rank} of {world_size}: pass rank="
                " and world_size= to one of them only"
            )
        self._seat = replace(self._seat, rank=rank, world_size=world_size)

    def seat(self) -> Seat:
        """Find this rank in its job, as it is now; a worker that was spawned is told by its parent."""
        if self._parents_seat is not None and is_worker():
            return self._parents_seat
        return self._seat.find()

    def _now(self, passes: PassState) -> _Now:
        """Look at what is shared with other processes once, so that one answer is about one moment."""
        seat, size = self.seat(), self.batch_size
        if size is None:
            settings = self._planner.settings
            is_batch_seen = settings.epoch_end == "drop" or choose_order(settings, passes.state) == MOSAIC
            size = 1 if is_batch_seen else _READ_AT_ONCE
        return _Now(seat, size, self._planner.plan(seat.world, size * seat.world.num_ranks, passes.state))

    def num_samples(self, epoch_size: int) -> int:
        """Count the samples that this rank gets in an epoch."""
        if self._planner.settings.epoch_end == "pad":
            return -(-epoch_size // self.seat().world.num_ranks)
        now, at = self._now(self.passes.read()), Cursor()
        plan, size = now.run.plan, now.global_batch_size
        num_batches = plan.num_batches(at, now.seat, size)
        last = len(plan.batch(at, num_batches - 1, now.seat, size)) if num_batches else 0
        return max(0, num_batches - 1) * now.batch_size + last

    def num_batches(self, epoch: int, *, drop_last: bool) -> int:
        """Count the batches that this rank gets in an epoch."""
        now, at = self._now(self.passes.read()), Cursor(epoch, 0)
        plan, size = now.run.plan, now.global_batch_size
        num_batches = plan.num_batches(at, now.seat, size)
        if drop_last and num_batches:
            num_batches -= len(plan.batch(at, num_batches - 1, now.seat, size)) < now.batch_size
        return num_batches

    def num_samples_after(self, begun: Pass, num_steps: int) -> int:
        """Count the samples that this rank gets in so many batches of a pass."""
        if not num_steps:
            return 0
        now = self._now(self.passes.read())
        last = now.run.plan.batch(begun.at, num_steps - 1, now.seat, now.global_batch_size)
        return (num_steps - 1) * now.batch_size + len(last)

    # --- Passes -----------------------------------------------------------------------------------------------

    def schedule(self, begun: Pass, worker: int, num_workers: int) -> BatchSchedule:
        """Return what one of so many workers reads in a pass that has begun."""
        now = self._now(self.passes.read())
        world = replace(now.seat.world, workers_per_rank=num_workers)
        return BatchSchedule(
            plan=now.run.plan,
            at=begun.at,
            seat=replace(now.seat, world=world, worker=worker),
            global_batch_size=now.global_batch_size,
        )

    def start_of(self, passes: PassState) -> Cursor:
        """Return where the next pass begins."""
        now = self._now(passes)
        return now.run.start_of(
            passes.next_epoch, now.seat.world, now.global_batch_size, is_state_new=passes.is_state_new
        )

    # --- States -----------------------------------------------------------------------------------------------

    def load(self, given: Mapping[str, Any]) -> None:
        """Note a state to go on from; its seed is what counts from then on, and not the one that the user gave."""
        state = check_state(self._planner.settings, given)  # what is no state, or one of another order, is refused
        begun, seed = state.get("seed", state.get("shuffle_seed")), self._planner.settings.shuffle_seed
        if begun not in (None, seed) and worker_of()[0] == 0:
            warn_user(
                f"the state was saved with shuffle_seed={begun}, but this dataset has shuffle_seed={seed}: the"
                f" run continues with {begun}. Set shuffle_seed={begun} to get rid of this warning, or start"
                " without the state to get another order"
            )
        if worker_of()[0] == 0:
            self.identity.compare(given, {stream.name: stream.fingerprint for stream in self._planner.streams})
        self.passes.load(state)

    def state(self, num_samples: int | None, yielded: int | None, *, from_beginning: bool) -> dict[str, Any]:
        """Describe where the job stands, by what was delivered to all ranks or, failing that, by what this one yielded.

        `num_samples` counts from the beginning of the epoch, or of the pass.
        """
        passes = self.passes.read()
        now = self._now(passes)
        if passes.is_between_passes:
            at = self.start_of(passes)
            if num_samples not in (None, 0, at.position if from_beginning else 0):
                raise ResumeError(
                    f"num_samples={num_samples} cannot be right, because no pass has started:"
                    " start iterating first, or leave out num_samples to save the beginning of the next pass"
                )
            return self._describe(now, passes, at)
        begun = passes.passes[-1]
        if begun.workers != [NO_WORKER] and self.batch_size is None:
            raise ResumeError(
                "workers iterated over this dataset without knowing the batch size, so its state cannot be known:"
                " pass batch_size= to the dataset, or use penstock's StreamingDataLoader"
            )
        if num_samples is not None:
            position = num_samples if from_beginning else begun.position + num_samples
        elif yielded is not None and begun.workers == [NO_WORKER]:
            position = begun.position + yielded * now.seat.world.num_ranks
        else:
            raise ResumeError(
                "the workers of a loader read ahead of what it has delivered, so the dataset does not know its"
                " own position: pass num_samples=, counted over all ranks, or save the state of penstock's"
                " StreamingDataLoader instead"
            )
        return self._describe(now, passes, Cursor(begun.epoch, position))

    def state_after(self, begun: Pass, num_steps: int, *, is_over: bool) -> dict[str, Any]:
        """Describe where the job stands after so many global batches of a pass, or at its end."""
        passes = self.passes.read()
        now = self._now(passes)
        plan, size = now.run.plan, now.global_batch_size
        epoch_size = _end_of(plan, begun.at, now.seat.world, size)
        position = begun.position + num_steps * size
        if num_steps and position > epoch_size:  # the last batch may be a short one
            last = plan.global_batch(begun.at, num_steps - 1, now.seat.world, size)
            position += len(last) - size
        return self._describe(now, passes, Cursor(begun.epoch, max(position, epoch_size) if is_over else position))

    def _describe(self, now: _Now, passes: PassState, at: Cursor) -> dict[str, Any]:
        began_on = (passes.state or {}).get("initial_physical_nodes") or now.seat.world.num_nodes
        described = with_mosaic_keys(now.run.plan.state_dict(at), began_on)
        return {**described, **self.identity.state()}

    def describe_order(self) -> dict[str, Any]:
        """Describe what decides the order of this run, by the names of a state."""
        passes = self.passes.read()
        now, settings = self._now(passes), self._planner.settings
        described = self._describe(now, passes, Cursor())
        if isinstance(now.run.plan, MosaicPlan):
            described["shuffle_algo"] = now.run.plan.rules.shuffle_algo or settings.shuffle_algo
        return described

    def after_fork_in_child(self) -> None:
        """Forget in a forked child what this process was told by its parent: that holds for this one alone."""
        self._parents_seat = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parents_seat": self.seat()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        abandon_in_children(self)


def advise(
    source: Source, cache_limit: int | None, index_bytes: int, plan: StreamPlan, world: World, is_resumed: bool
) -> None:
    """Announce what the world and the limit of the cache mean for a plan."""
    room = None
    if cache_limit is not None and fetched_by(source) is not None:
        room = CacheRoom(limit_bytes=cache_limit, shard_bytes=source.sizes, index_bytes=index_bytes)
        check_cache(plan, world, room, is_resumed=is_resumed)
    if worker_of()[0] == 0:  # one of all workers is enough to say it
        check_world(plan, world, int(source.sizes.sum()), room)
