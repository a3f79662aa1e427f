"""What may be done to samples: one to one, one to none, one to many, or a batch at a time; and to their fields."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from penstock.errors import ConfigError, MissingColumnError
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.sources.code_digest import digest_code, name_of, with_code
from penstock.units import check_mapping

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
        if type(made) is not dict and not isinstance(made, Mapping):
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
        if transform.is_expand:
            rest = transforms[number + 1 :]
            several: Any = transform(sample)  # type: ignore[arg-type]
            return [made for each in several for made in (apply_all(rest, each) if rest else (each,))]
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


_STEP = Bounded(r"([^.\[\]]+)|\[(-?\d+)\]", NAME_CHARACTERS)


class SelectFields(Transform, written_name="fields.SelectFields/1"):
    """Keeps these fields only. A sample that lacks one is an error."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = _names(fields)

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with these fields."""
        try:
            return {name: sample[name] for name in self._fields}
        except KeyError as missing:
            raise MissingColumnError(f"the sample has no field {missing}: it has {', '.join(sample)}") from None

    def settings(self) -> Mapping[str, Any]:
        """Return the fields."""
        return {"fields": self._fields}


class DropFields(Transform, written_name="fields.DropFields/1"):
    """Removes these fields from samples that have them."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = frozenset(_names(fields))

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample without these fields."""
        return {name: value for name, value in sample.items() if name not in self._fields}

    def settings(self) -> Mapping[str, Any]:
        """Return the fields."""
        return {"fields": sorted(self._fields)}


class RenameFields(Transform, written_name="fields.RenameFields/1"):
    """Renames fields, old name to new, in samples that have them. Two fields with the same name are an error."""

    def __init__(self, mapping: Mapping[str, str]) -> None:
        check_mapping("mapping", mapping)
        self._mapping = dict(mapping)

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the new names."""
        renamed = {self._mapping.get(name, name): value for name, value in sample.items()}
        if len(renamed) < len(sample):
            raise ConfigError(
                f"renaming {self._mapping} gives two fields the same name: the sample has {', '.join(sample)}"
            )
        return renamed

    def settings(self) -> Mapping[str, Any]:
        """Return the names."""
        return {"mapping": self._mapping}


class MapField(Transform, written_name="fields.MapField/1"):
    """Applies a function to one field; a sample without it stays as it is."""

    def __init__(self, field: str, fn: Callable[[Any], Any], output_field: str | None = None) -> None:
        self._field, self._fn = field, check_callable(fn, "fn")
        self._output_field = output_field or field

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the function's value."""
        if self._field not in sample:
            return sample
        return {**sample, self._output_field: self._fn(sample[self._field])}

    def settings(self) -> Mapping[str, Any]:
        """Return the fields."""
        return {"field": self._field, "output_field": self._output_field}


class FilterByField(Transform, written_name="fields.FilterByField/1"):
    """Keeps samples with a field for whose value a function returns True."""

    is_filter = True

    def __init__(self, field: str, predicate: Callable[[Any], Any]) -> None:
        self._field, self._fn = field, check_callable(predicate, "predicate")

    def __call__(self, sample: Sample) -> Sample | None:
        """Return the sample, or None."""
        return sample if self._field in sample and self._fn(sample[self._field]) else None

    def settings(self) -> Mapping[str, Any]:
        """Return the field."""
        return {"field": self._field}


class FilterNonEmpty(Transform, written_name="fields.FilterNonEmpty/1"):
    """Keeps samples that have something in all of these fields: not None, and not of length 0."""

    is_filter = True

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = _names(fields)

    def __call__(self, sample: Sample) -> Sample | None:
        """Return the sample, or None."""
        return None if any(_is_empty(sample.get(name)) for name in self._fields) else sample

    def settings(self) -> Mapping[str, Any]:
        """Return the fields."""
        return {"fields": self._fields}


class ExtractField(Transform, written_name="fields.ExtractField/1"):
    """Copies a nested value, such as `"meta.authors[0].name"`, to a field of its own; a default if there is none."""

    def __init__(self, source_path: str, target_field: str, default: Any = None) -> None:
        self._path, self._target, self._default = source_path, target_field, default
        self._fn = _unless_plain(default)
        self._steps = [key if key else int(number) for key, number in _STEP.findall(source_path)]
        if not self._steps:
            raise ConfigError(
                f"source_path={source_path!r} does not name a field: write it like 'meta.authors[0].name'"
            )

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the value."""
        value: Any = sample
        for step in self._steps:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                value = self._default
                break
        return {**sample, self._target: value}

    def settings(self) -> Mapping[str, Any]:
        """Return the path, the field and the default."""
        return {"path": self._path, "target": self._target, "default": self._default}


class CombineFields(Transform, written_name="fields.CombineFields/1"):
    """Joins several fields into one: by a separator, or by a function of the list of their values.

    Args:
        source_fields: The fields, in order; `fields` is another name for it.
        target_field: Where the result goes; `output_field` is another name for it.
        combiner: A function of the list of values.
        separator: What goes between the values if there is no function.
        drop_sources: Leave the fields themselves out.
    """

    def __init__(
        self,
        source_fields: Sequence[str] | None = None,
        target_field: str | None = None,
        combiner: Callable[[list[Any]], Any] | None = None,
        separator: str = " ",
        drop_sources: bool = False,
        *,
        fields: Sequence[str] | None = None,
        output_field: str | None = None,
    ) -> None:
        names, target = source_fields or fields, target_field or output_field
        if not names or not target:
            raise ConfigError("CombineFields needs source_fields and target_field")
        self._fields, self._target, self._separator = _names(names), target, separator
        self._fn = None if combiner is None else check_callable(combiner, "combiner")
        self._drops = drop_sources

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the joined field; fields that are not there are left out of it."""
        values = [sample[name] for name in self._fields if name in sample]
        joined = self._separator.join(map(str, values)) if self._fn is None else self._fn(values)
        kept = {name: value for name, value in sample.items() if not (self._drops and name in self._fields)}
        return {**kept, self._target: joined}

    def settings(self) -> Mapping[str, Any]:
        """Return everything but a function."""
        return {
            "fields": self._fields,
            "target": self._target,
            "separator": self._separator,
            "drops": self._drops,
        }


class AddField(Transform, written_name="fields.AddField/1"):
    """Adds a field: a value, or what a function returns for the sample."""

    def __init__(self, field: str, value: Any) -> None:
        self._field, self._value = field, value
        self._fn = _unless_plain(value)

    def __call__(self, sample: Sample) -> Sample:
        """Return a sample with the field."""
        return {**sample, self._field: self._value(sample) if callable(self._value) else self._value}

    def settings(self) -> Mapping[str, Any]:
        """Return the field and its value, if it is no function."""
        return {"field": self._field, "value": None if callable(self._value) else self._value}


def _names(fields: Sequence[str]) -> list[str]:
    if isinstance(fields, str):
        raise ConfigError(f"fields={fields!r} is a string: pass a list of names")
    return list(fields)


def _unless_plain(value: Any) -> Any:
    return None if isinstance(value, str | int | float) else value


def _is_empty(value: Any) -> bool:
    return value is None or (hasattr(value, "__len__") and len(value) == 0)


def changes_number(transform: AnyTransform) -> bool:
    """Return whether a transform may make fewer or more samples than it gets."""
    is_batched = isinstance(transform, BatchTransform) and not transform.keeps_number
    return transform.is_filter or transform.is_expand or is_batched


def grouped(transforms: ChainedTransform) -> list[list[AnyTransform]]:
    """Cut a chain where batched transforms are: each of them stands alone, and the others stay together."""
    groups: list[list[AnyTransform]] = []
    for each in transforms:
        if groups and not each.is_batched and not groups[-1][-1].is_batched:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups or [[]]
