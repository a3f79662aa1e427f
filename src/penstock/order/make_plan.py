"""From what a person says to a plan and a place in it: the choice between native and MosaicML-compatible orders."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from penstock.errors import ConfigError, ResumeError
from penstock.order.base import orders
from penstock.order.cursor import NATIVE_FIELDS, STATE_FIELDS, Cursor, check_fingerprint, read_state
from penstock.order.mosaic.plan import MosaicPlan
from penstock.order.mosaic.rules import (
    MOSAIC_FIELDS,
    MosaicOptions,
    MosaicState,
    MosaicVersion,
    SamplingMethod,
    resume_at,
)
from penstock.order.mosaic.sampling import share_out
from penstock.order.native import StreamPlan, check_schedule
from penstock.order.options import OrderOptions, StreamShards
from penstock.order.resume import resume
from penstock.order.state_fields import check_fields, describe_kind, refuse
from penstock.order.weights import count_samples, read_epoch_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.order.mosaic.plan import ComputeOnce
    from penstock.order.plan import BatchingMethod, EpochEnd, Plan
    from penstock.order.schedule import MixSchedule
    from penstock.order.world import World

_Options = TypeVar("_Options", OrderOptions, MosaicOptions)

MOSAIC = "mosaic"
NATIVE = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All that one may say about the order of a run, under the names that users of this field know.

    `order` is `native` (the default), `mosaic`, or one that a plug-in registered. Naming a `shuffle_algo` or a
    `partition_algo`, or setting `sampling_*` or `mosaic_version` to other than their defaults, means `mosaic`, and so
    does loading a state of MosaicML's. `epoch_end` and `schedule` belong to the others.
    """

    order: str | None = None
    shuffle: bool = False
    shuffle_algo: str | None = None
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    num_canonical_nodes: int | None = None
    epoch_size: int | float | str | None = None
    epoch_end: EpochEnd = "pad"
    batching_method: BatchingMethod = "random"
    schedule: MixSchedule | None = None
    sampling_method: SamplingMethod = "balanced"
    sampling_granularity: int = 1
    partition_algo: str | None = None
    mosaic_version: MosaicVersion = "0.13"
    grow: Literal["epoch"] | None = None

    def __post_init__(self) -> None:
        """Refuse at once what no order could follow, and not only when a plan is made."""
        if self.grow not in (None, "epoch"):
            raise ConfigError(f'grow={self.grow!r} is unknown: use grow="epoch", or leave it out')
        order = choose_order(self)
        _take(MosaicOptions, self)
        if order == MOSAIC:
            _check_mosaic(self)
        else:
            if order not in orders:  # also where nothing is shuffled
                raise ConfigError(f"unknown order {order!r}: use one of {', '.join([MOSAIC, *orders.names()])}")
            _native_options(order, self, num_ranks=1, global_batch_size=1)


# What only MosaicML's orders have: a user who sets one of these wants them.
_OF_MOSAIC = ("shuffle_algo", "partition_algo", "sampling_method", "sampling_granularity", "mosaic_version")
_DEFAULTS = {setting.name: setting.default for setting in fields(RunSettings)}


def make_plan(
    streams: Sequence[StreamShards],
    settings: RunSettings,
    *,
    world: World,
    global_batch_size: int,
    state: Mapping[str, Any] | None = None,
    allow_mix_change: bool = False,
    compute_once: ComputeOnce | None = None,
) -> tuple[Plan, Cursor]:
    """Plan a run and say where it begins: at its first sample, or where a state of ours or of MosaicML's left it.

    `world` counts replicated ranks once. `compute_once` keeps the arrays of MosaicML orders.
    """
    order = choose_order(settings, state)
    if order == MOSAIC:
        return _plan_mosaic(streams, settings, world, global_batch_size, state, compute_once)
    options = _native_options(order, settings, world.num_ranks, global_batch_size)
    plan = StreamPlan.make(streams, options)
    if state is None:
        return plan, Cursor()
    return resume(plan, dict(state), allow_mix_change=allow_mix_change, may_grow=settings.grow is not None)


def count_epoch(streams: Sequence[StreamShards], settings: RunSettings) -> list[int]:
    """Return how many samples each stream gives to an epoch, whatever the world."""
    weights, sizes = [stream.weight for stream in streams], [stream.num_samples for stream in streams]
    epoch_size = read_epoch_size(settings.epoch_size)
    if choose_order(settings) != MOSAIC:
        if settings.schedule is not None:
            check_schedule(settings.schedule, streams)
        return count_samples(weights, sizes, epoch_size)
    is_release_0_5 = settings.mosaic_version == "0.5"
    shares = share_out(
        sizes, weights, epoch_size=epoch_size, seed=settings.shuffle_seed, may_cut_unweighted=not is_release_0_5
    )
    return [share.choose for share in shares]


def choose_order(settings: RunSettings, state: Mapping[str, Any] | None = None) -> str:
    """Return which order is meant, by name, by one of its algorithms, or by the state to go on from."""
    of_mosaic = [name for name in _OF_MOSAIC if getattr(settings, name) != _DEFAULTS[name]]
    named = settings.order or (MOSAIC if of_mosaic else None)
    if of_mosaic and named != MOSAIC:
        given = ", ".join(f"{name}={getattr(settings, name)!r}" for name in of_mosaic)
        raise ConfigError(f"{given} works only with order='mosaic', not with {named!r}: leave out one of them")
    begun = None if state is None else _order_of(state)
    if named and begun and named != begun:
        raise ResumeError(
            f"the state was saved with order={begun!r}, but this run has order={named!r}: set order={begun!r}"
        )
    return named or begun or NATIVE


def _order_of(state: Mapping[str, Any]) -> str:
    if "order" in state:
        check_fields(state, {"order": (MOSAIC, *orders.names())}, "a StreamingDataset or its loader")
        return str(state["order"])
    if "sample_in_epoch" in state:
        return MOSAIC
    raise ResumeError(
        f"this is {describe_kind(state)}, which is neither penstock's nor MosaicML's of a dataset: load a state_dict as"
        " it was saved"
    )


def check_state(settings: RunSettings, state: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what no plan could go on from, as far as the state itself tells; return what plans read of it."""
    if choose_order(settings, state) != MOSAIC:
        return check_fields(state, NATIVE_FIELDS, "a StreamingDataset or its loader")
    known = check_fields(state, MOSAIC_FIELDS, "MosaicML Streaming")
    if "order" in state:
        read_state(state, order=MOSAIC)
        known |= check_fields(state, STATE_FIELDS, "a StreamingDataset or its loader")
    try:
        _check_mosaic(settings)
    except ConfigError as error:
        raise ResumeError(f"this is the state of order='mosaic': {error}") from error
    return known


def _native_options(order: str, settings: RunSettings, num_ranks: int, global_batch_size: int) -> OrderOptions:
    fixes_batch = settings.batching_method != "random"
    fixes_device_batch = settings.batching_method == "device_per_stream"
    return _take(
        OrderOptions,
        settings,
        order=order,
        seed=settings.shuffle_seed,
        epoch_size=read_epoch_size(settings.epoch_size),
        global_batch_size=global_batch_size if fixes_batch else None,
        device_batch_size=global_batch_size // num_ranks if fixes_device_batch else None,
    )


def _take(kind: type[_Options], settings: RunSettings, **others: Any) -> _Options:
    """Make options of the settings that they share under the same names, and of others."""
    shared = {each.name for each in fields(kind)} & _DEFAULTS.keys() - others.keys()
    return kind(**{name: getattr(settings, name) for name in shared}, **others)


def _check_mosaic(settings: RunSettings) -> None:
    if settings.epoch_end != "pad" or settings.schedule is not None:
        raise ConfigError(
            "epoch_end and schedule do not work with order='mosaic': leave them out, or use order='native'"
        )
    if settings.grow is not None:
        raise ConfigError("grow= does not work with order='mosaic', whose states do not say what was there")


def _plan_mosaic(
    streams: Sequence[StreamShards],
    settings: RunSettings,
    world: World,
    global_batch_size: int,
    state: Mapping[str, Any] | None,
    compute_once: ComputeOnce | None,
) -> tuple[Plan, Cursor]:
    _check_mosaic(settings)
    begun = None if state is None else MosaicState.from_dict(state)
    plan = MosaicPlan.make(
        [stream.lengths.tolist() for stream in streams],
        _take(MosaicOptions, settings, batch_size=global_batch_size // world.num_ranks),
        num_nodes=world.num_nodes,
        weights=[stream.weight for stream in streams],
        state=begun,
        compute_once=compute_once,
    )
    at = resume_at(begun, next_epoch=0)
    fewest = (min if plan.pads_epochs else sum)(stream.share.choose for stream in plan.streams)  # shuffled together
    if begun and plan.rules.shuffle_algo == "py1e" and begun.num_canonical_nodes > fewest:
        raise refuse("num_canonical_nodes", begun.num_canonical_nodes, f"at most the {fewest} samples")
    if state is not None and "order" in state:
        read_state(state, order=MOSAIC)
        check_fingerprint(state, plan.fingerprint)
        if plan.pads_epochs and "pads_epochs" not in state and at.position >= plan.epoch_size(at.epoch):
            at = Cursor(at.epoch + 1)  # as the releases went on that wrote such states
    return plan, at
