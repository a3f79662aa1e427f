"""Going on from a state: adopt what it carries, refuse what does not fit, change the mix only if told to."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import ResumeError
from penstock.order.cursor import Cursor, check_fingerprint, read_state
from penstock.order.epoch_order import History, MixSpec
from penstock.order.native import StreamPlan

if TYPE_CHECKING:
    from penstock.order.options import OrderOptions


def resume(plan: StreamPlan, state: dict[str, Any], *, allow_mix_change: bool = False) -> tuple[StreamPlan, Cursor]:
    """Give the plan that goes on from a state, and where: seed, lanes, windows and mix are the state's.

    With `allow_mix_change`, other weights, or streams that came or went, take effect from the cursor on;
    every stream that was there before goes on at its own position.
    """
    cursor = read_state(state, order=plan.options.order)
    _check_order(plan.options, state)
    before = MixSpec.read(state["mix"])
    _check_streams(plan, state)
    mixes = [(int(past["until"]), MixSpec.read(past["mix"])) for past in state["history"]]
    is_changed = before != plan.mix
    if is_changed:
        _announce_change(before, plan.mix, cursor, is_allowed=allow_mix_change)
        if cursor.position:
            mixes.append((cursor.position, before))
    windows = {**plan.windows, **{name: int(window) for name, window in state["windows"].items()}}
    sizes = {name: int(size) for name, size in state["sizes"].items()}
    resumed = StreamPlan(
        streams=plan.streams,
        options=replace(plan.options, seed=int(state["seed"]), num_canonical_nodes=int(state["lanes"])),
        mix=plan.mix,
        num_lanes=int(state["lanes"]),
        windows={stream.name: windows[stream.name] for stream in plan.streams},
        history=History(epoch=cursor.epoch, mixes=tuple(mixes), sizes=sizes) if mixes else None,
        mixed_anew=None if state.get("mixes_alike", state["shuffle"]) else cursor.epoch,
    )
    if not is_changed:
        check_fingerprint(state, resumed.fingerprint)
    resumed.epoch_size(cursor.epoch)  # not every mix can change everywhere: better said now than later
    return resumed, cursor


def _check_order(options: OrderOptions, state: dict[str, Any]) -> None:
    fixed = ["shuffle", "batching_method"]
    if options.batching_method != "random":
        fixed.append("global_batch_size")
    if options.batching_method == "device_per_stream":
        fixed.append("device_batch_size")
    for name in fixed:
        if state[name] != getattr(options, name):
            raise ResumeError(
                f"the state was saved with {name}={state[name]!r}, but this run has {getattr(options, name)!r},"
                f" which means another order: set {name}={state[name]!r}"
            )


def _check_streams(plan: StreamPlan, state: dict[str, Any]) -> None:
    for stream in plan.streams:
        known = state["streams"].get(stream.name)
        if known is not None and known != stream.fingerprint:
            raise ResumeError(
                f"the shards of stream {stream.name!r} have changed since the state was saved"
                f" ({state['sizes'][stream.name]} samples then, {stream.num_samples} now): use the same data, or"
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
