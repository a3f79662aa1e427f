"""The state of one worker, for loaders that keep a state for each of theirs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ResumeError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KIND = "penstock-worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """How far one worker got in a pass: valid for the same worker of as many.

    `begun` is the state of the whole job where the pass began.
    """

    worker: int
    num_workers: int
    yielded: int
    begun: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Describe it in plain JSON values."""
        return {"kind": _KIND, **asdict(self)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], *, worker: int, num_workers: int) -> WorkerState:
        """Read it, in the worker that it belongs to."""
        read = cls(**{name: state[name] for name in cls.__slots__})
        if (read.worker, read.num_workers) != (worker, num_workers):
            raise ResumeError(
                f"this is the state of worker {read.worker} of {read.num_workers}, and here is worker {worker} of "
                f"{num_workers}: resume with num_workers={read.num_workers}, or use penstock's StreamingDataLoader, "
                "whose state serves any number"
            )
        return read


def is_worker_state(state: Mapping[str, Any]) -> bool:
    """Tell the state of one worker from that of a job."""
    return state.get("kind") == _KIND
