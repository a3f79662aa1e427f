"""A dataset as an `IterableDataset` of the `datasets` library, for trainers that ask for that class.

It gives the samples of all ranks in their order: that library and those trainers divide them. Iterating begins again at
the same place each time, as trainers look at first samples; `set_epoch` chooses another order.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


class ReadsAllRanks(Protocol):
    """What reads the samples of all ranks, from a state or the beginning of an epoch on; it says where it begins."""

    def read_all_ranks(self, state: dict[str, Any] | None, epoch: int) -> tuple[dict[str, Any], Iterator[Any]]:
        """Return the state where reading begins, and the samples from there on."""


def make_hf_dataset(dataset: ReadsAllRanks) -> Any:
    """Return the samples of a dataset as an `IterableDataset`."""
    library = require("datasets", extra="datasets", purpose="to_hf")
    return library.IterableDataset(make_examples(dataset, 0))


def make_examples(dataset: ReadsAllRanks, epoch: int) -> Any:
    """Return the samples of an epoch as what such a dataset iterates over."""
    return _examples()(dataset, epoch)


@cache
def _examples() -> Any:
    base: Any = require("datasets.iterable_dataset", extra="datasets", purpose="to_hf")._BaseExamplesIterable

    class Examples(base):  # type: ignore[misc]
        """Samples with their numbers, and a state: that of the dataset where it began, and the position now."""

        num_shards = 1
        sleep_on_threads_shutdown = False

        def __init__(self, dataset: ReadsAllRanks, epoch: int) -> None:
            super().__init__()
            self._state_dict: dict[str, Any] | None = None
            self.dataset, self.epoch = dataset, epoch

        def _init_state_dict(self) -> dict[str, Any]:
            self._state_dict = {"begun": None, "position": 0, "type": "penstock"}
            return self._state_dict

        def __iter__(self) -> Iterator[tuple[int, Any]]:
            here = self._state_dict or self._init_state_dict()
            state = None if here["begun"] is None else {**here["begun"], "position": here["position"]}
            here["begun"], samples = self.dataset.read_all_ranks(state, self.epoch)
            for number, sample in enumerate(samples, here["begun"]["position"]):
                here["position"] = number + 1
                yield number, sample

        def shuffle_data_sources(self, generator: np.random.Generator) -> Any:
            """Return the samples of the epoch that the generator was made for."""
            return make_examples(self.dataset, int(generator.bit_generator.seed_seq.entropy))  # type: ignore[attr-defined]

        def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Any:  # noqa: ARG002
            """Return all of it, for there is one shard."""
            return make_examples(self.dataset, self.epoch)

        def reshard_data_sources(self) -> Any:
            """Return it as it is."""
            return self

        def __reduce__(self) -> tuple[Any, ...]:
            return make_examples, (self.dataset, self.epoch), {"_state_dict": self._state_dict}

    return Examples
