"""Where the whole training job stands, seen from one rank: its seat, its plan, its passes and its state."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.data.passes import NO_WORKER, SharedPasses
from penstock.data.ranks import Agreement, find_seat, is_worker, pass_key, worker_of
from penstock.errors import ConfigError, ResumeError
from penstock.order.advice import CacheRoom, check_cache, check_world
from penstock.order.cursor import Cursor
from penstock.order.make_plan import MOSAIC, check_state, choose_order, make_plan
from penstock.order.mosaic.plan import MosaicPlan
from penstock.order.mosaic.rules import with_mosaic_keys
from penstock.order.native import StreamPlan
from penstock.order.world import Seat, World, seats
from penstock.processes import abandon_in_children
from penstock.reading.schedule import BatchSchedule
from penstock.reading.source import fetched_by
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from penstock.data.identity import DataIdentity
    from penstock.data.passes import Pass, PassState
    from penstock.data.ranks import SeatSettings
    from penstock.order.make_plan import RunSettings
    from penstock.order.options import StreamShards
    from penstock.order.plan import Plan
    from penstock.reading.source import Source

# Without a batch size, samples come one by one but are still read many at a time.
_READ_AT_ONCE = 256


class Planner:
    """Makes the plan of the pass about to begin, again only when world, batch or state are others."""

    def __init__(
        self,
        streams: Sequence[StreamShards],
        settings: RunSettings,
        *,
        allow_mix_change: bool,
        source: Source,
        cache_limit: int | None,
        index_bytes: int,
    ) -> None:
        self.streams, self.settings = streams, settings
        self._allow_mix_change = allow_mix_change
        self._source, self._cache_limit, self._index_bytes = source, cache_limit, index_bytes
        self._last: tuple[Any, tuple[Plan, Cursor]] | None = None

    def plan(self, world: World, global_batch_size: int, state: Mapping[str, Any] | None) -> tuple[Plan, Cursor]:
        """Return the plan of a world for global batches of a size, and where the state left off that it goes on from.

        It warns of what the world and the limit of the cache mean for a plan that is new.
        """
        key = (world.num_nodes, world.ranks_per_node, global_batch_size, json.dumps(state, sort_keys=True))
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        made = make_plan(
            self.streams,
            self.settings,
            world=world,
            global_batch_size=global_batch_size,
            state=state,
            allow_mix_change=self._allow_mix_change,
            compute_once=_keep_in_files,
        )
        if isinstance(made[0], StreamPlan):
            self._advise(made[0], world, is_resumed=state is not None)
        self._last = key, made
        return made

    def _advise(self, plan: StreamPlan, world: World, *, is_resumed: bool) -> None:
        room, sizes = None, self._source.sizes
        if self._cache_limit is not None and fetched_by(self._source) is not None:
            room = CacheRoom(limit_bytes=self._cache_limit, shard_bytes=sizes, index_bytes=self._index_bytes)
            check_cache(plan, world, room, is_resumed=is_resumed)
        if worker_of()[0] == 0:  # one of all workers is enough to say it
            check_world(plan, world, int(sizes.sum()), room)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # quick to make again, and large


def _keep_in_files(name: str, compute: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    from penstock.cachedir.once import keep_in_files  # for the orders of MosaicML alone

    return keep_in_files(name, compute)


class RankNow(NamedTuple):
    """Who this rank is at this moment, and what it reads by."""

    seat: Seat
    batch_size: int  # the samples of a rank that are dealt as one batch
    plan: Plan
    resumed_at: Cursor  # where the state that the plan was made from left off

    @property
    def global_batch_size(self) -> int:
        """The samples of all ranks that are dealt as one batch."""
        return self.batch_size * self.seat.world.num_ranks

    def num_batches(self, at: Cursor) -> int:
        """Count the batches of this rank from a cursor to the end of its epoch."""
        return self.plan.num_batches(at, self.seat, self.global_batch_size)

    def num_samples(self, at: Cursor, num_batches: int) -> int:
        """Count the samples in the first batches of this rank after a cursor, of which the last may be a short one."""
        if not num_batches:
            return 0
        last = self.plan.batch(at, num_batches - 1, self.seat, self.global_batch_size)
        return (num_batches - 1) * self.batch_size + len(last)

    def end(self, at: Cursor) -> int:
        """Return the position at which the epoch of a cursor is over."""
        if isinstance(self.plan, MosaicPlan):
            return self.plan.end(at, self.seat.world, self.global_batch_size)
        return self.plan.epoch_size(at.epoch)

    def start(self, passes: PassState) -> Cursor:
        """Return where the next pass begins: at the state, unless a pass has begun there; after a finished epoch, anew.

        An epoch may be finished before its last sample, where whole batches are made of several streams.
        """
        if not passes.is_state_new:
            return Cursor(passes.next_epoch, 0)
        at, size = self.resumed_at, self.global_batch_size
        if at.position >= self.end(at) or (
            at.position and not any(self.plan.num_batches(at, seat, size) for seat in seats(self.seat.world))
        ):
            return Cursor(at.epoch + 1, 0)
        return at


class RunState:
    """Answers for the dataset who this rank is, what it gets, and what a state says."""

    def __init__(self, planner: Planner, seat: SeatSettings, batch_size: int | None, identity: DataIdentity) -> None:
        self.batch_size = batch_size
        self.passes = SharedPasses()
        self.planner, self.identity = planner, identity
        self._seat = seat
        self._parents_seat: Seat | None = None
        found = [stream.fingerprint for stream in planner.streams]
        of_data = {**identity.state(), "code": None}  # ranks may not run the same release of Python
        self._agreement = Agreement(identity.places, json.dumps([found, of_data], sort_keys=True))
        self.compare_with_ranks(waits=False)

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

    def now(self, passes: PassState | None = None) -> RankNow:
        """Look at what is shared with other processes once, so that one answer is about one moment."""
        state = (self.passes.read() if passes is None else passes).state
        seat, size = self.seat(), self.batch_size
        if size is None:
            settings = self.planner.settings
            is_batch_seen = settings.epoch_end == "drop" or choose_order(settings, state) == MOSAIC
            size = 1 if is_batch_seen else _READ_AT_ONCE
        return RankNow(seat, size, *self.planner.plan(seat.world, size * seat.world.num_ranks, state))

    def num_samples(self, epoch_size: int) -> int:
        """Count the samples that this rank gets in an epoch."""
        if self.planner.settings.epoch_end == "pad":
            return -(-epoch_size // self.seat().world.num_ranks)
        now = self.now()
        return now.num_samples(Cursor(), now.num_batches(Cursor()))

    def num_batches(self, begun: Cursor | None, *, drop_last: bool) -> int:
        """Count the batches that this rank gets in a pass that began somewhere, or else in the next one."""
        passes = self.passes.read()
        now = self.now(passes)
        at = now.start(passes) if begun is None else begun
        num_batches = now.num_batches(at)
        if drop_last and now.num_samples(at, num_batches) < num_batches * now.batch_size:
            return num_batches - 1
        return num_batches

    # --- Passes -----------------------------------------------------------------------------------------------

    def announce(self, num_workers: int) -> Pass:
        """Begin a pass that so many workers will join, or with none of them the process itself."""
        self.compare_with_ranks(waits=True)
        with self.passes.changed() as passes:
            return passes.begin(self.now(passes).start(passes), expected=range(num_workers) or [NO_WORKER])

    def join(self, number: int | None) -> Pass:
        """Take part in the pass that this worker is meant for, beginning it if no other has yet.

        A process that is no worker begins one with each call, unless it names one that was announced.
        """
        if number is None:
            self.compare_with_ranks(waits=True)
        worker, key = (worker_of()[0] if is_worker() else NO_WORKER), pass_key()
        with self.passes.changed() as passes:
            begun = passes.find(worker, key, number) or passes.begin(self.now(passes).start(passes), key=key)
            begun.workers.append(worker)
            return begun

    def schedule(self, begun: Pass) -> BatchSchedule:
        """Return what this worker reads in a pass that has begun."""
        passes, (worker, num_workers) = self.passes.read(), worker_of()
        now = self.now(passes)
        return BatchSchedule(
            plan=now.plan,
            at=begun.at,
            seat=replace(now.seat, world=replace(now.seat.world, workers_per_rank=num_workers), worker=worker),
            global_batch_size=now.global_batch_size,
            seed=self.seed(passes),
        )

    def seed(self, passes: PassState | None = None) -> int:
        """Return the seed of the run: that of its state, if one was loaded."""
        return self._seed_of((self.passes.read() if passes is None else passes).state)

    def _seed_of(self, state: Mapping[str, Any] | None) -> int:
        known = state or {}
        seed: int = known.get("seed", known.get("shuffle_seed", self.planner.settings.shuffle_seed))
        return seed

    def schedule_of_all(self, given: Mapping[str, Any] | None, epoch: int) -> BatchSchedule:
        """Return what all ranks read together, as one: from a state on, or from the beginning of an epoch."""
        state = None if given is None else check_state(self.planner.settings, given)
        seat, size = Seat(world=World()), self.batch_size or _READ_AT_ONCE
        plan, at = self.planner.plan(seat.world, size, state)
        return BatchSchedule(
            plan=plan,
            at=Cursor(epoch) if state is None else at,
            seat=seat,
            global_batch_size=size,
            seed=self._seed_of(state),
        )

    # --- States -----------------------------------------------------------------------------------------------

    def load(self, given: Mapping[str, Any]) -> None:
        """Note a state to go on from; its seed is what counts from then on, and not the one that the user gave."""
        state = check_state(self.planner.settings, given)  # what is no state, or one of another order, is refused
        begun, seed = state.get("seed", state.get("shuffle_seed")), self.planner.settings.shuffle_seed
        if worker_of()[0] == 0:
            if begun not in (None, seed):
                warn_user(
                    f"the state was saved with shuffle_seed={begun}, but this dataset has shuffle_seed={seed}: the"
                    f" run continues with {begun}. Set shuffle_seed={begun} to get rid of this warning, or start"
                    " without the state to get another order"
                )
            self.identity.compare(given, {stream.name: stream.fingerprint for stream in self.planner.streams})
        self.passes.load(state)

    def state(self, num_samples: int | None, yielded: int | None, *, from_beginning: bool) -> dict[str, Any]:
        """Describe where the job stands, by what was delivered to all ranks or, failing that, by what this one yielded.

        `num_samples` counts from the beginning of the epoch, or of the pass.
        """
        passes = self.passes.read()
        now = self.now(passes)
        if passes.is_between_passes:
            at = now.start(passes)
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
        now = self.now(passes)
        end, size = now.end(begun.at), now.global_batch_size
        position = begun.position + num_steps * size
        if num_steps and position > end:  # the last batch may be a short one
            position += len(now.plan.global_batch(begun.at, num_steps - 1, now.seat.world, size)) - size
        return self._describe(now, passes, Cursor(begun.epoch, max(position, end) if is_over else position))

    def _describe(self, now: RankNow, passes: PassState, at: Cursor) -> dict[str, Any]:
        began_on = (passes.state or {}).get("initial_physical_nodes") or now.seat.world.num_nodes
        return {**with_mosaic_keys(now.plan.state_dict(at), began_on), **self.identity.state()}

    def describe_order(self) -> dict[str, Any]:
        """Describe what decides the order of this run, by the names of a state."""
        passes = self.passes.read()
        now = self.now(passes)
        described = self._describe(now, passes, Cursor())
        if isinstance(now.plan, MosaicPlan):
            described["shuffle_algo"] = now.plan.rules.shuffle_algo or self.planner.settings.shuffle_algo
        return described

    def after_fork_in_child(self) -> None:
        """Forget in a forked child what this process was told by its parent: that holds for this one alone."""
        self._parents_seat = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parents_seat": self.seat()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        abandon_in_children(self)
