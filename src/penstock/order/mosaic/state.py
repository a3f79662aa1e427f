"""MosaicML's own state dict: what it says, and where a run goes on from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.order.cursor import Cursor
from penstock.order.state_fields import COUNT, MOST, check_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.order.mosaic.rules import MosaicRules

_REQUIRED = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")
_INITIAL_NODES = "initial_physical_nodes"
_MOST_NODES = 1 << 17  # an epoch takes memory for each
MOSAIC_FIELDS = {
    "epoch": range(-1, MOST),
    "sample_in_epoch": COUNT,
    "shuffle_seed": COUNT,
    "num_canonical_nodes": range(1, _MOST_NODES),
    f"{_INITIAL_NODES}?": range(1, _MOST_NODES),
    "pads_epochs?": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicState:
    """A place in a run, in the fields of MosaicML's `state_dict`.

    `sample_in_epoch` counts over all ranks. Release 0.5 has no `initial_physical_nodes`.
    """

    epoch: int
    sample_in_epoch: int
    num_canonical_nodes: int
    shuffle_seed: int
    initial_physical_nodes: int | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> MosaicState:
        """Read what `to_dict`, or MosaicML's own `state_dict`, returned."""
        check_fields(fields, MOSAIC_FIELDS, "MosaicML Streaming")
        return cls(**{name: fields[name] for name in (*_REQUIRED, _INITIAL_NODES) if name in fields})

    def to_dict(self) -> dict[str, int]:
        """Return the state as MosaicML saves it."""
        fields = {name: int(getattr(self, name)) for name in _REQUIRED}
        if self.initial_physical_nodes is not None:
            fields[_INITIAL_NODES] = self.initial_physical_nodes
        return fields

    def adopt(self, rules: MosaicRules) -> MosaicRules:
        """Return the rules of the run that saved this state."""
        return replace(
            rules,
            num_canonical_nodes=self.num_canonical_nodes,
            shuffle_seed=self.shuffle_seed,
            initial_nodes=None if rules.is_release_0_5 else self.initial_physical_nodes,
        )


def with_mosaic_keys(state: dict[str, Any], initial_nodes: int) -> dict[str, Any]:
    """Return a state of an order of our own the keys that code written for MosaicML's reads, too."""
    if "sample_in_epoch" in state:
        return state
    return {
        **state,
        "sample_in_epoch": state["position"],
        "num_canonical_nodes": state["lanes"],
        "shuffle_seed": state["seed"],
        _INITIAL_NODES: initial_nodes,
    }


def resume_at(state: MosaicState | None, next_epoch: int) -> Cursor:
    """Return where a run about to begin `next_epoch` goes on: at the state, unless its epoch is older."""
    if state is None or state.epoch < next_epoch:
        return Cursor(next_epoch, 0)
    return Cursor(state.epoch, state.sample_in_epoch)
