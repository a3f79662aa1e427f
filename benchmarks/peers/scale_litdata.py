"""litdata at any number of samples and chunks, in .peers/litdata. It shuffles chunks, and rows within a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from benchmarks.peers.scaling import answer
from litdata import StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_samples(directory: str, state: Any) -> Iterable[Any]:
    dataset = StreamingDataset(directory, shuffle=True)
    if state is not None:
        dataset.load_state_dict(state)
    return cast("Iterable[Any]", dataset)


def make_state(directory: str, at: int) -> Any:
    dataset = StreamingDataset(directory, shuffle=True)
    return dataset.state_dict(at, num_workers=1, batch_size=1)


if __name__ == "__main__":
    answer(open_samples, make_state)
