"""mosaicml-streaming at any number of samples and shards, in .peers/mosaic. It reads the very files of penstock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from benchmarks.peers.mosaic_stream import open_shuffled
from benchmarks.peers.scaling import answer

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_samples(directory: str, state: Any) -> Iterable[Any]:
    dataset = open_shuffled(directory)
    if state is not None:
        dataset.load_state_dict(state)
    return cast("Iterable[Any]", dataset)


def make_state(directory: str, at: int) -> Any:
    dataset = open_shuffled(directory)
    return dataset.state_dict(at, True)


if __name__ == "__main__":
    answer(open_samples, make_state)
