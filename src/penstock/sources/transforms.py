"""What may be done to samples on their way: one to one, one to none, one to many, or a batch at a time."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from penstock.errors import ConfigError
from penstock.sources.code_digest import digest_code, name_of, with_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.reading.source import CodeDigest
    from penstock.types import Sample


class _Composes:
    """`first >> second` does one after the other, whatever kinds they are."""

    is_filter = False  # may give nothing for a sample
    is_expand = False  # may give several
    is_batched = False
    written_name: ClassVar[str]
    _fn: Any = None  # a function that it calls, or another value that is not plain

    def __init_subclass__(cls, written_name: str = "") -> None:
        """Name a class of penstock's own, which may move. The number grows when what it makes changes."""
        super().__init_subclass__()
        cls.written_name = written_name

    def __rshift__(self, other: AnyTransform | Callable[[Sample], Any]) -> ChainedTransform:
        return ChainedTransform([self, other])  # type: ignore[list-item]

    def __rrshift__(self, function: Callable[[Sample], Any]) -> ChainedTransform:
        return ChainedTransform([function, self])  # type: ignore[list-item]

    def settings(self) -> Mapping[str, Any] | None:
        """Return all that the result depends on beside code, as plain values; None if there is more to it.

        Without this method, all attributes of a transform count as its code does.
        """
        return None

    def fingerprint(self) -> str | None:
        """Return a hash of what the transform does, code included, or None if that cannot be known."""
        return with_code(self.order_fingerprint(), self.code_digests())

    def order_fingerprint(self) -> str | None:
        """Return a hash of the kind and the settings alone."""
        has_settings, settings = self._has_settings, self.settings()
        if has_settings and settings is None:
            return None
        module, _, name = self.written_name.removesuffix("/1").rpartition(".")
        # As the first release hashed them: its caches and states are of use.
        named = [f"penstock.sources.{module}", name] if name else [type(self).__module__, type(self).__qualname__]
        text = json.dumps([*named, settings or {}], sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def code_digests(self) -> list[CodeDigest]:
        """Return a digest of each function of yours that it calls, or of its class if that is yours."""
        function = self._fn
        if self.written_name:
            is_named = not callable(function)
            return [] if function is None else [digest_code(name_of(function), function, has_settings=is_named)]
        values = self.settings() if self._has_settings else vars(self)
        return [digest_code(type(self).__qualname__, (type(self), values), has_settings=self._has_settings)]

    @property
    def _has_settings(self) -> bool:
        return type(self).settings is not _Composes.settings


class Transform(_Composes, ABC):
    """Turns a sample into another one, or into None to drop it. Do not change the sample that you get."""

    @abstractmethod
    def __call__(self, sample: Sample) -> Sample | None:
        """Return the new sample, or None."""


class ExpandTransform(_Composes, ABC):
    """Turns a sample into any number of samples."""

    is_expand = True

    @abstractmethod
    def __call__(self, sample: Sample) -> Iterable[Sample]:
        """Return the new samples."""


class BatchTransform(_Composes, ABC):
    """Turns a list of samples into any number of samples. `batch_size` says how many it gets at once."""

    is_batched = True
    keeps_number = False  # whether each sample becomes exactly one
    batch_size = 1000

    @abstractmethod
    def __call__(self, samples: list[Sample]) -> Iterable[Sample]:
        """Return the new samples."""


AnyTransform = Transform | ExpandTransform | BatchTransform


class MapTransform(Transform, written_name="transforms.MapTransform/1"):
    """Applies a function that returns a new sample. None is an error: use `FilterTransform` to drop samples."""

    def __init__(self, fn: Callable[[Sample], Sample]) -> None:
        self._fn = check_callable(fn, "fn")

    def __call__(self, sample: Sample) -> Sample:
        """Return what the function makes of a sample."""
        made = self._fn(sample)
        if not isinstance(made, Mapping):
            raise TypeError(
                f"the function returned {made!r:.80} instead of a dict: use filter to drop samples, or flat_map to"
                " make several"
            )
        return made  # type: ignore[return-value]


class MapBatchTransform(BatchTransform, written_name="transforms.MapBatchTransform/1"):
    """Applies a function to lists of samples; it returns the samples that replace them, fewer or more."""

    def __init__(self, fn: Callable[[list[Sample]], Iterable[Sample]], batch_size: int = 1000) -> None:
        self._fn = check_callable(fn, "fn")
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} is too small: pass 1 or more")
        self.batch_size = batch_size

    def __call__(self, samples: list[Sample]) -> Iterable[Sample]:
        """Return what the function makes of the samples."""
        return checked_samples(self._fn(samples))

    def settings(self) -> Mapping[str, Any]:
        """Return the size of batches."""
        return {"batch_size": self.batch_size}


class FlatMapTransform(ExpandTransform, written_name="transforms.FlatMapTransform/1"):
    """Applies a function that returns any number of samples for each sample."""

    def __init__(self, fn: Callable[[Sample], Iterable[Sample]]) -> None:
        self._fn = check_callable(fn, "fn")

    def __call__(self, sample: Sample) -> Iterable[Sample]:
        """Return what the function makes of a sample."""
        return checked_samples(self._fn(sample))


class FilterTransform(Transform, written_name="transforms.FilterTransform/1"):
    """Keeps the samples for which a function returns True."""

    is_filter = True

    def __init__(self, predicate: Callable[[Sample], Any]) -> None:
        self._fn = check_callable(predicate, "predicate")

    def __call__(self, sample: Sample) -> Sample | None:
        """Return the sample, or None."""
        return sample if self._fn(sample) else None


class ChainedTransform(_Composes, written_name="transforms.ChainedTransform/1"):
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
        """Return the new sample or None; with a transform that makes several, the list of all of them."""
        if self.is_batched:
            raise ConfigError("a chain with a batched transform cannot be applied to one sample: apply it to a source")
        made = apply_all(self._transforms, sample)
        if self.is_expand:
            return made
        return made[0] if made else None

    def settings(self) -> Mapping[str, Any] | None:
        """Return the kinds and settings of all transforms, if they can be known."""
        fingerprints = [each.order_fingerprint() for each in self._transforms]
        return None if None in fingerprints else {"transforms": fingerprints}

    def code_digests(self) -> list[CodeDigest]:
        """Return the digests of all functions that are called."""
        return [digest for each in self._transforms for digest in each.code_digests()]


AnySourceTransform = AnyTransform | ChainedTransform | Callable[[dict[str, Any]], Any]


def apply_all(transforms: Sequence[AnyTransform], sample: Sample) -> list[Sample]:
    """Return all that a list of transforms, none of them batched, makes of a sample."""
    for number, transform in enumerate(transforms):
        if isinstance(transform, ExpandTransform):
            rest = transforms[number + 1 :]
            return [made for each in transform(sample) for made in (apply_all(rest, each) if rest else (each,))]
        made = transform(sample)  # type: ignore[arg-type]
        if made is None:
            return []
        sample = made  # type: ignore[assignment]
    return [sample]


class Outcome(NamedTuple):
    """What became of some samples."""

    made: list[Sample]
    ends: list[int] | None  # how many were made after each of them; None where they were transformed together
    error: Exception | None = None  # it followed what was made
    failed_at: int | None = None  # the number of the sample that failed; None if any of them may have


def apply_to_each(transforms: Sequence[AnyTransform], samples: list[Sample]) -> Outcome:
    """Return what transforms, none of them batched, make of samples."""
    made: list[Sample] = []
    ends: list[int] = []
    for number, sample in enumerate(samples):
        try:
            made += apply_all(transforms, sample)
        except Exception as error:  # noqa: BLE001  raised where its sample would have been
            return Outcome(made, ends, error, number)
        ends.append(len(made))
    return Outcome(made, ends)


def apply_to_batch(transform: BatchTransform, samples: list[Sample]) -> Outcome:
    """Return what a batched transform makes of a batch."""
    made: list[Sample] = []
    try:
        made.extend(transform(samples))
    except Exception as error:  # noqa: BLE001  raised after what was made before
        return Outcome(made, None, error, getattr(error, "facts", {}).get("number"))
    return Outcome(made, None)


def as_transform(given: Any) -> AnyTransform:
    """Take a transform as it is, and a function as one that gives a sample for each."""
    if isinstance(given, Transform | ExpandTransform | BatchTransform):
        return given
    if isinstance(given, type):
        raise ConfigError(f"{given.__name__} is a class: make a transform of it, {given.__name__}(...)")
    return MapTransform(given)


def checked_samples(made: Any) -> Iterator[Sample]:
    """Yield the samples that a function returned, and refuse what is none, such as a dict of columns."""
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
