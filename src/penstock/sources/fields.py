"""Transforms of the fields of samples: select, drop, rename, map, filter, extract, combine and add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, MissingColumnError
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.sources.transforms import Transform, check_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.types import Sample

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
