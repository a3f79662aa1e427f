"""What may be done to samples on their way: one to one, one to none, one to many, or a batch at a time."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.types import Sample


class _Composes:
    """`first >> second` does one after the other, whatever kinds they are."""

    is_filter = False  # may give nothing for a sample
    is_expand = False  # may give several
    is_batched = False

    def __rshift__(self, other: AnyTransform | Callable[[Sample], Any]) -> ChainedTransform:
        return ChainedTransform([self, other])  # type: ignore[list-item]

    def __rrshift__(self, function: Callable[[Sample], Any]) -> ChainedTransform:
        return ChainedTransform([function, self])  # type: ignore[list-item]

    def settings(self) -> Mapping[str, Any] | None:
        """Give all that the result depends on as plain values, or None if there is more to it, such as a function."""
        return None

    def fingerprint(self) -> str | None:
        """Name what the transform does by a hash, or give None if that cannot be known."""
        settings = self.settings()
        if settings is None:
            return None
        text = json.dumps([type(self).__module__, type(self).__qualname__, settings], sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Transform(_Composes, ABC):
    """Turns a sample into another one, or into None to drop it. Do not change the sample that you get."""

    @abstractmethod
    def __call__(self, sample: Sample) -> Sample | None:
        """Give the new sample, or None."""


class ExpandTransform(_Composes, ABC):
    """Turns a sample into any number of samples."""

    is_expand = True

    @abstractmethod
    def __call__(self, sample: Sample) -> Iterable[Sample]:
        """Give the new samples."""


class BatchTransform(_Composes, ABC):
    """Turns a list of samples into any number of samples. `batch_size` says how many it gets at once."""

    is_batched = True
    keeps_number = False  # whether each sample becomes exactly one
    batch_size = 1000

    @abstractmethod
    def __call__(self, samples: list[Sample]) -> Iterable[Sample]:
        """Give the new samples."""


AnyTransform = Transform | ExpandTransform | BatchTransform


class MapTransform(Transform):
    """Applies a function that returns a new sample. None is an error: use `FilterTransform` to drop samples."""

    def __init__(self, fn: Callable[[Sample], Sample]) -> None:
        self._fn = check_callable(fn, "fn")

    def __call__(self, sample: Sample) -> Sample:
        """Give what the function makes of a sample."""
        made = self._fn(sample)
        if not isinstance(made, Mapping):
            raise TypeError(
                f"the function returned {made!r:.80} instead of a dict: use filter to drop samples, or flat_map to"
                " make several"
            )
        return made  # type: ignore[return-value]


class MapBatchTransform(BatchTransform):
    """Applies a function to lists of samples; it returns the samples that replace them, fewer or more."""

    def __init__(self, fn: Callable[[list[Sample]], Iterable[Sample]], batch_size: int = 1000) -> None:
        self._fn: Callable[[list[Sample]], Iterable[Sample]] = check_callable(fn, "fn")
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} is too small: pass 1 or more")
        self.batch_size = batch_size

    def __call__(self, samples: list[Sample]) -> Iterable[Sample]:
        """Give what the function makes of the samples."""
        return checked_samples(self._fn(samples))


class FlatMapTransform(ExpandTransform):
    """Applies a function that returns any number of samples for each sample."""

    def __init__(self, fn: Callable[[Sample], Iterable[Sample]]) -> None:
        self._fn: Callable[[Sample], Iterable[Sample]] = check_callable(fn, "fn")

    def __call__(self, sample: Sample) -> Iterable[Sample]:
        """Give what the function makes of a sample."""
        return checked_samples(self._fn(sample))


class FilterTransform(Transform):
    """Keeps the samples for which a function returns True."""

    is_filter = True

    def __init__(self, predicate: Callable[[Sample], Any]) -> None:
        self._predicate = check_callable(predicate, "predicate")

    def __call__(self, sample: Sample) -> Sample | None:
        """Give the sample, or None."""
        return sample if self._predicate(sample) else None


class ChainedTransform(_Composes):
    """Applies one transform after another; a sample that one of them drops goes no further.

    Chains within chains are laid flat. Functions among the transforms count as `MapTransform`.
    """

    def __init__(self, transforms: Sequence[AnyTransform | ChainedTransform | Callable[[Sample], Any]]) -> None:
        flat: list[AnyTransform] = []
        for transform in transforms:
            if isinstance(transform, ChainedTransform):
                flat += transform
            else:
                flat.append(as_transform(transform))
        self._transforms = tuple(flat)
        self.is_filter = any(each.is_filter for each in flat)
        self.is_expand = any(each.is_expand for each in flat)
        self.is_batched = any(each.is_batched for each in flat)

    def __len__(self) -> int:
        return len(self._transforms)

    def __iter__(self) -> Iterator[AnyTransform]:
        return iter(self._transforms)

    def __call__(self, sample: Sample) -> Any:
        """Give the new sample or None; with a transform that makes several, the list of all of them."""
        if self.is_batched:
            raise ConfigError("a chain with a batched transform cannot be applied to one sample: apply it to a source")
        made = apply_all(self._transforms, sample)
        if self.is_expand:
            return made
        return made[0] if made else None

    def settings(self) -> Mapping[str, Any] | None:
        """Return the fingerprints of all transforms, if they all have one."""
        fingerprints = [each.fingerprint() for each in self._transforms]
        return None if None in fingerprints else {"transforms": fingerprints}


def apply_all(transforms: Sequence[AnyTransform], sample: Sample) -> list[Sample]:
    """Give all that a list of transforms, none of them batched, makes of a sample."""
    for number, transform in enumerate(transforms):
        if isinstance(transform, ExpandTransform):
            rest = transforms[number + 1 :]
            return [made for each in transform(sample) for made in (apply_all(rest, each) if rest else (each,))]
        made = transform(sample)  # type: ignore[arg-type]
        if made is None:
            return []
        sample = made  # type: ignore[assignment]
    return [sample]


def as_transform(given: Any) -> AnyTransform:
    """Take a transform as it is, and a function as one that gives a sample for each."""
    if isinstance(given, Transform | ExpandTransform | BatchTransform):
        return given
    if isinstance(given, type):
        raise ConfigError(f"{given.__name__} is a class: make a transform of it, {given.__name__}(...)")
    return MapTransform(given)


def checked_samples(made: Any) -> Iterator[Sample]:
    """Give the samples that a function returned, and refuse what is none, such as a dict of columns."""
    if isinstance(made, str | Mapping) or not isinstance(made, Iterable):
        raise TypeError(f"the function returned a {type(made).__name__} instead of a list of samples: {made!r:.80}")
    for sample in made:
        if not isinstance(sample, Mapping):
            raise TypeError(f"the function returned a list with {sample!r:.80}, which is no sample: samples are dicts")
        yield sample  # type: ignore[misc]


def check_callable(function: Any, name: str) -> Any:
    """Refuse what cannot be called."""
    if not callable(function):
        raise ConfigError(f"{name}={function!r:.100} is not callable: pass a function that takes one value")
    return function
