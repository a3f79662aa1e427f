"""Where a run stands: two integers, and the versioned form in which a checkpoint keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ResumeError
from penstock.order.state_fields import COUNT, MOST, check_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_VERSION = 1
_KIND = "a StreamingDataset or its loader"
STATE_FIELDS = {
    "version": COUNT,
    "order": str,
    "epoch": COUNT,
    "position": COUNT,
    "fingerprint": str,
    "is_begun?": bool,  # in memory alone: more than the position says was taken, as the states of workers count
}
_SCHEDULE = {"positions": [COUNT], "proportions": [[float]], "shape": str, "block?": COUNT}
_MIX = {"names": [str], "counts": [range(1 << 44)], "is_relative": bool, "schedule?": _SCHEDULE}
NATIVE_FIELDS = {
    **STATE_FIELDS,
    "seed": range(-MOST, MOST),
    "lanes": range(1, MOST),
    "windows": {str: range(1, MOST)},
    "shuffle": bool,
    "batching_method": str,
    "global_batch_size?": COUNT,
    "device_batch_size?": COUNT,
    "streams": {str: str},
    "sizes": {str: COUNT},
    "mix": _MIX,
    "history": [{"until": COUNT, "mix": _MIX}],
    "mixes_alike?": bool,
    "initial_physical_nodes?": range(1, MOST),
}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the run: the epoch, and the samples handed out in it over all ranks."""

    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.position < 0:
            raise ResumeError(f"epoch {self.epoch}, position {self.position} does not exist: both count from 0")


def read_state(state: Mapping[str, Any], *, order: str) -> Cursor:
    """Check that a state dict is one of ours, of this version and kind of order, and give its cursor."""
    check_fields(state, STATE_FIELDS, _KIND)
    version = state.get("version")
    if version != STATE_VERSION:
        raise ResumeError(
            f"the state has version {version!r}, but this release reads version {STATE_VERSION}: load it with the"
            " release that wrote it, or start the epoch from the beginning"
        )
    kind = state.get("order")
    if kind != order:
        raise ResumeError(f"the state was saved with order={kind!r}, but this run uses {order!r}: set order={kind!r}")
    return Cursor(epoch=state["epoch"], position=state["position"])


def check_fingerprint(state: Mapping[str, Any], fingerprint: str) -> None:
    """Refuse a state of another dataset or of another order."""
    if state["fingerprint"] != fingerprint:
        raise ResumeError(
            f"the fingerprint {state['fingerprint']} of the state is not the one of this run, {fingerprint}: the"
            " state belongs to another dataset or to other settings"
        )
