"""Going on from a state: adopt what it carries, refuse what does not fit, change the mix only if told to."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ResumeError
from penstock.order.cursor import NATIVE_FIELDS, Cursor, check_fingerprint, read_state
from penstock.order.growth import plan_later, streams_then
from penstock.order.native import History, MixSpec, StreamPlan, name_plan
from penstock.order.state_fields import check_fields, refuse

if TYPE_CHECKING:
    from penstock.order.options import OrderOptions

_MOST_LANES = 1 << 16


def resume(
    plan: StreamPlan, state: dict[str, Any], *, allow_mix_change: bool = False, may_grow: bool = False
) -> tuple[StreamPlan, Cursor]:
    """Return the plan that goes on from a state, and where: seed, lanes, windows and mix are the state's.

    With `allow_mix_change`, other weights, or streams that came or went, take effect from the cursor on;
    every stream that was there before goes on at its own position. With `may_grow`, rows that were appended to a stream
    join with the first epoch that begins after the cursor.
    """
    cursor = read_state(state, order=plan.options.order)
    check_fields(state, NATIVE_FIELDS, "a StreamingDataset or its loader")
    _check_order(plan.options, state)
    streams = streams_then(plan.streams, state["streams"], state["sizes"], may_grow=may_grow)
    if all(then is now for then, now in zip(streams, plan.streams, strict=True)):
        return _go_on(plan, state, cursor, allow_mix_change=allow_mix_change)
    under_way, cursor = _go_on(StreamPlan.make(streams, plan.options), state, cursor, allow_mix_change=allow_mix_change)
    later = plan_later(plan, under_way)
    has_begun = cursor.position > 0 or state.get("is_begun")
    return (replace(under_way, later=(cursor.epoch, later)) if has_begun else later), cursor


def _go_on(
    plan: StreamPlan, state: dict[str, Any], cursor: Cursor, *, allow_mix_change: bool
) -> tuple[StreamPlan, Cursor]:
    before = _read_mix(state["mix"], state)
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


def _check_order(options: OrderOptions, state: dict[str, Any]) -> None:
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
    new = [repr(name) for name in now if name not in was]
    begins = f"; {', '.join(new)} is new to this run, and gives all of its samples" if new else ""
    warnings.warn(
        f"the mix changes at epoch {cursor.epoch}, position {cursor.position}: {change}. Streams that the state knows"
        f" continue at their own position{begins}",
        stacklevel=3,
    )
