"""From what a person says to a plan and a place in it: native or MosaicML-compatible, begun or resumed.

To resume is to adopt what a state carries, refuse what does not fit, and change the mix only if told to.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ResumeError
from penstock.order.base import orders
from penstock.order.cursor import NATIVE_FIELDS, STATE_FIELDS, Cursor, check_fingerprint, read_state
from penstock.order.epoch_order import History, MixSpec
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
from penstock.order.native import StreamPlan, check_schedule, name_plan
from penstock.order.options import OrderOptions, StreamShards
from penstock.order.state_fields import check_fields, describe_kind, refuse
from penstock.order.weights import count_samples, read_epoch_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.order.mosaic.plan import ComputeOnce
    from penstock.order.plan import BatchingMethod, EpochEnd, Plan
    from penstock.order.schedule import MixSchedule
    from penstock.order.world import World

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

    def __post_init__(self) -> None:
        """Refuse at once what no order could follow, and not only when a plan is made."""
        order = choose_order(self)
        _mosaic_options(self, None)
        if order == MOSAIC:
            _check_mosaic(self)
        else:
            if order not in orders:  # also where nothing is shuffled
                raise ConfigError(f"unknown order {order!r}: use one of {', '.join([MOSAIC, *orders.names()])}")
            _native_options(order, self, num_ranks=1, global_batch_size=1)


# What only MosaicML's orders have: whoever sets one of these wants them.
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
    return resume(plan, dict(state), allow_mix_change=allow_mix_change)


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
    return OrderOptions(
        order=order,
        seed=settings.shuffle_seed,
        shuffle=settings.shuffle,
        num_canonical_nodes=settings.num_canonical_nodes,
        shuffle_block_size=settings.shuffle_block_size,
        epoch_size=read_epoch_size(settings.epoch_size),
        epoch_end=settings.epoch_end,
        batching_method=settings.batching_method,
        global_batch_size=global_batch_size if fixes_batch else None,
        device_batch_size=global_batch_size // num_ranks if fixes_device_batch else None,
        schedule=settings.schedule,
    )


def _check_mosaic(settings: RunSettings) -> None:
    if settings.epoch_end != "pad" or settings.schedule is not None:
        raise ConfigError(
            "epoch_end and schedule do not work with order='mosaic': leave them out, or use order='native'"
        )


def _mosaic_options(settings: RunSettings, batch_size: int | None) -> MosaicOptions:
    return MosaicOptions(
        mosaic_version=settings.mosaic_version,
        epoch_size=settings.epoch_size,
        sampling_method=settings.sampling_method,
        sampling_granularity=settings.sampling_granularity,
        partition_algo=settings.partition_algo,
        num_canonical_nodes=settings.num_canonical_nodes,
        batch_size=batch_size,
        shuffle=settings.shuffle,
        shuffle_algo=settings.shuffle_algo,
        shuffle_seed=settings.shuffle_seed,
        shuffle_block_size=settings.shuffle_block_size,
        batching_method=settings.batching_method,
    )


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
        _mosaic_options(settings, global_batch_size // world.num_ranks),
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


_MOST_LANES = 1 << 16


def resume(plan: StreamPlan, state: dict[str, Any], *, allow_mix_change: bool = False) -> tuple[StreamPlan, Cursor]:
    """Return the plan that goes on from a state, and where: seed, lanes, windows and mix are the state's.

    With `allow_mix_change`, other weights, or streams that came or went, take effect from the cursor on;
    every stream that was there before goes on at its own position.
    """
    cursor = read_state(state, order=plan.options.order)
    check_fields(state, NATIVE_FIELDS, "a StreamingDataset or its loader")
    _check_same_order(plan.options, state)
    before = _read_mix(state["mix"], state)
    _check_streams(plan, state)
    mixes = [(past["until"], _read_mix(past["mix"], state)) for past in state["history"]]
    ends = [0, *(until for until, _ in mixes), cursor.position]
    if ends != sorted(ends):
        raise refuse("history", ends[1:-1], f"positions up to {cursor.position}, in order")
    is_changed = before != plan.mix
    if is_changed:
        _announce_change(before, plan.mix, cursor, is_allowed=allow_mix_change)
        if cursor.position:
            mixes.append((cursor.position, before))
    lanes, options = state["lanes"], replace(plan.options, seed=state["seed"], num_canonical_nodes=state["lanes"])
    windows = {stream.name: state["windows"].get(stream.name, plan.windows[stream.name]) for stream in plan.streams}
    if not is_changed:  # which also vouches for lanes and windows, that take memory
        check_fingerprint(state, name_plan(plan.streams, options, plan.mix, lanes, windows))
    elif lanes > max(_MOST_LANES, plan.num_lanes):
        raise refuse("lanes", lanes, f"at most {_MOST_LANES} where the mix has changed")
    resumed = StreamPlan(
        streams=plan.streams,
        options=options,
        mix=plan.mix,
        num_lanes=lanes,
        windows=windows,
        history=History(epoch=cursor.epoch, mixes=tuple(mixes), sizes=dict(state["sizes"])) if mixes else None,
        mixed_anew=None if state.get("mixes_alike", state["shuffle"]) else cursor.epoch,
    )
    size = resumed.epoch_size(cursor.epoch)  # not every mix can change everywhere: better said now than later
    if cursor.position > size and not is_changed:
        raise refuse("position", cursor.position, f"one of an epoch of {size} samples")
    return resumed, cursor


def _read_mix(described: dict[str, Any], state: dict[str, Any]) -> MixSpec:
    names, counts = described["names"], described["counts"]
    if not len(names) == len(counts) == len(set(names)) or not set(names) <= set(state["sizes"]) or not sum(counts):
        raise refuse("mix", described, "a number of samples for each stream that has a size")
    try:
        mix = MixSpec.read(described)
    except (ConfigError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ResumeError(f"the state has a mix that cannot be: {error}") from error
    if mix.schedule is None or len(mix.schedule.proportions[0]) == len(names):
        return mix
    raise refuse("mix", described, "proportions of all streams")


def _check_same_order(options: OrderOptions, state: dict[str, Any]) -> None:
    fixed = ["shuffle", "batching_method"]
    if options.batching_method != "random":
        fixed.append("global_batch_size")
    if options.batching_method == "device_per_stream":
        fixed.append("device_batch_size")
    for name in fixed:
        if state.get(name) != getattr(options, name):
            raise ResumeError(
                f"the state was saved with {name}={state.get(name)!r}, but this run has {getattr(options, name)!r},"
                f" which means another order: set {name}={state.get(name)!r}"
            )


def _check_streams(plan: StreamPlan, state: dict[str, Any]) -> None:
    for stream in plan.streams:
        known = state["streams"].get(stream.name)
        if known is not None and known != stream.fingerprint:
            raise ResumeError(
                f"the shards of stream {stream.name!r} have changed since the state was saved"
                f" ({state['sizes'].get(stream.name)} samples then, {stream.num_samples} now): use the same data, or"
                " give the new data another name and pass allow_mix_change=True"
            )


def _announce_change(before: MixSpec, after: MixSpec, cursor: Cursor, *, is_allowed: bool) -> None:
    was = dict(zip(before.names, before.counts, strict=True))
    now = dict(zip(after.names, after.counts, strict=True))
    change = f"samples per epoch were {was} and are now {now}"
    if before.schedule != after.schedule:
        change += "; the schedule is another one"
    if not is_allowed:
        raise ResumeError(
            f"the mix has changed since the state was saved: {change}. Restore it, or pass allow_mix_change=True"
            " to continue with the new one"
        )
    warnings.warn(
        f"the mix changes at epoch {cursor.epoch}, position {cursor.position}: {change}. Each stream continues at"
        " its own position",
        stacklevel=3,
    )
