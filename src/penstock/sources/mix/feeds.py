"""One source of a mix: read from its beginning, and again when it ends, as often as it may be."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from penstock.errors import EmptyDatasetError
from penstock.order.keys import hash_key, permutation
from penstock.order.state_fields import COUNT, MOST, check_fields, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.blocks.stage import State
    from penstock.sources.base import ShardedSource
    from penstock.sources.iterators import SampleIterator
    from penstock.types import Sample

SOURCE_FIELD = "__source__"
_FIELDS = {"epoch": COUNT, "given": COUNT, "samples?": dict}


class Feed:
    """Gives the samples of a source, and its name in them, epoch after epoch; shards are shuffled after the first."""

    def __init__(self, name: str, source: ShardedSource, *, max_epochs: int | None, seed: int) -> None:
        self.name = name
        self._source, self._max_epochs, self._seed = source, max_epochs, seed
        self._epoch = 0
        self._given = 0  # in this epoch
        self._samples: SampleIterator | None = None

    def next(self) -> Sample | None:
        """Return the next sample, or None if the source has given all that it may."""
        while True:
            if self._samples is None:
                self._samples = self._source.iter_shards(self._shards(self._epoch))
            sample = next(self._samples, None)
            if sample is not None:
                self._given += 1
                return self._name([sample])[0]
            if self._max_epochs is None and not self._given:
                raise EmptyDatasetError(f"source {self.name!r} of the mix has no samples: leave it out")
            if self._max_epochs is not None and self._epoch + 1 >= self._max_epochs:
                return None
            self.close()
            self._epoch, self._given, self._samples = self._epoch + 1, 0, None

    @property
    def num_at_hand(self) -> int:
        """How many samples can be given without reading any, and without coming to an end."""
        return 0 if self._samples is None else self._samples.num_at_hand

    def take(self, count: int) -> list[Sample]:
        """Return some of the samples that are at hand."""
        if not count or self._samples is None:
            return []
        self._given += count
        return self._name(self._samples.take(count))

    def _name(self, samples: list[Sample]) -> list[Sample]:
        """Return in samples where they come from; in copies if they may be somebody's."""
        name = self.name
        if not self._source.makes_new_samples:
            return [{**sample, SOURCE_FIELD: name} for sample in samples]
        for sample in samples:
            sample[SOURCE_FIELD] = name
        return samples

    def total(self) -> int | None:
        """Count all samples that the source may give; None if that is not known, or without end."""
        lengths = self._source.shard_lengths()
        return None if lengths is None or self._max_epochs is None else sum(lengths) * self._max_epochs

    @property
    def can_seek(self) -> bool:
        """Whether any place is found without reading what comes before it."""
        return self._source.shard_lengths() is not None

    def seek(self, count: int) -> None:
        """Go to where so many samples have been given."""
        lengths = self._source.shard_lengths() or []
        size = sum(lengths)
        if not count or not size:
            return
        self._epoch, rest = divmod(count - 1, size)  # the end of an epoch belongs to it
        self._given = rest + 1
        shards = self._shards(self._epoch)
        numbers = list(range(len(lengths))) if shards is None else shards
        ends = list(accumulate(lengths[number] for number in numbers))
        first = bisect_right(ends, self._given)
        row = self._given - (ends[first - 1] if first else 0)
        self._samples = self._source.iter_shards(shards, first, row)

    def close(self) -> None:
        """Close what is open."""
        if self._samples is not None:
            self._samples.close()

    def state_dict(self) -> State:
        """Describe where the source is."""
        inner = None if self._samples is None else self._samples.state_dict()
        return {"epoch": self._epoch, "given": self._given, "samples": inner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state says."""
        check_fields(state, _FIELDS, f"source {self.name!r} of a mix")
        epoch, inner = state["epoch"], state.get("samples")
        if epoch >= (MOST if self._max_epochs is None else max(1, self._max_epochs)):
            raise refuse("epoch", epoch, f"one of the {self._max_epochs} epochs of {self.name!r}")
        self.close()
        # Where samples were begun there are some, whatever a damaged state says: the source is not taken for empty.
        self._epoch, self._given, self._samples = epoch, max(state["given"], inner is not None), None
        if inner is not None:
            self._samples = self._source.iter_shards(self._shards(epoch))
            self._samples.load_state_dict(inner)

    def _shards(self, epoch: int) -> list[int] | None:
        if epoch == 0:
            return None
        shards: list[int] = permutation(hash_key("mix", self._seed, self.name, epoch), self._source.num_shards).tolist()
        return shards
