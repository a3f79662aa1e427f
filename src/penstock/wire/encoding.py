"""Dataclasses as plain JSON values and back, derived from their fields: no message spells out how it travels.

A dataclass travels as an object, each value by its name. Those marked with `compact` travel as lists, in the order of
their fields: a plan holds 10⁶ of them. What comes in is checked against the types of the fields.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

from penstock.errors import FetcherError

if TYPE_CHECKING:
    from collections.abc import Callable

    Load = Callable[[Any], Any]

T = TypeVar("T")

_compact: set[type] = set()
_PLAIN = {int: (int,), float: (float, int), str: (str,), bool: (bool,), type(None): (type(None),)}


def compact(kind: type[T]) -> type[T]:
    """Have a dataclass travel as a list."""
    _compact.add(kind)
    return kind


# --- Out ----------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Give what stands for a value that JSON does not know; its parts may be such values again."""
    return _dumpers[type(value)](value)


class _Dumpers(dict[type, "Callable[[Any], Any]"]):
    """How to give the values of each type, made when it is first needed."""

    def __missing__(self, kind: Any) -> Callable[[Any], Any]:
        names = [] if issubclass(kind, Path) else [field.name for field in dataclasses.fields(kind)]
        if issubclass(kind, Path):
            self[kind] = str
        elif kind in _compact:
            self[kind] = attrgetter(*names)
        else:
            self[kind] = lambda value: {name: getattr(value, name) for name in names}
        return self[kind]


_dumpers = _Dumpers()


# --- In -----------------------------------------------------------------------------------------------------


def load(kind: type[T], value: Any) -> T:
    """Rebuild a dataclass from plain values; a FetcherError says what does not fit."""
    hint: Any = kind
    loaded: T = _loader(hint)(value)
    return loaded


@cache
def _loader(hint: Any) -> Load:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if (kinds := _plain_kinds(hint)) is not None:
        return _plain_loader(hint, kinds)
    if hint is Path:
        text = _loader(str)
        return lambda value: Path(text(value))
    if dataclasses.is_dataclass(hint):
        return _list_loader(hint) if hint in _compact else _object_loader(hint)
    if origin in (types.UnionType, Union):
        (other,) = (_loader(argument) for argument in arguments if argument is not type(None))
        return lambda value: None if value is None else other(value)
    if origin is tuple:
        return _tuple_loader(arguments)
    if origin is dict:
        return _dict_loader(*arguments)
    raise TypeError(f"{hint} cannot travel over the fetcher's socket")


def _plain_kinds(hint: Any) -> frozenset[type] | None:
    """Give the types of JSON values that fit, if all of them are used as they come."""
    is_union = typing.get_origin(hint) in (types.UnionType, Union)
    kinds = typing.get_args(hint) if is_union else (hint,)
    if not all(kind in _PLAIN for kind in kinds):
        return None
    return frozenset(found for kind in kinds for found in _PLAIN[kind])


def _plain_loader(hint: Any, kinds: frozenset[type]) -> Load:
    def load_plain(value: Any) -> Any:
        if type(value) not in kinds:
            raise _misfit(hint, value)
        return value

    return load_plain


def _object_loader(kind: Any) -> Load:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _loader(hints[field.name]) for field in dataclasses.fields(kind)}

    def load_object(value: Any) -> Any:
        if type(value) is not dict or not value.keys() <= fields.keys():
            raise _misfit(kind.__name__, value)
        try:
            return kind(**{name: fields[name](part) for name, part in value.items()})
        except TypeError as error:
            raise _misfit(kind.__name__, value) from error

    return load_object


def _list_loader(kind: Any) -> Load:
    hints = typing.get_type_hints(kind)
    parts = [hints[field.name] for field in dataclasses.fields(kind)]
    allowed = [_plain_kinds(hint) for hint in parts]
    converted = [(place, _loader(hint)) for place, hint in enumerate(parts) if allowed[place] is None]
    fitting: set[tuple[type, ...]] = set()  # the few combinations that were found right: looked up, not checked again

    def check(value: Any, kinds: tuple[type, ...]) -> None:
        is_fitting = type(value) is list and len(kinds) == len(allowed)
        if not is_fitting or not all(of is None or found in of for found, of in zip(kinds, allowed, strict=True)):
            raise _misfit(kind.__name__, value)
        fitting.add(kinds)

    def load_list(value: Any) -> Any:
        try:
            kinds = tuple(map(type, value))
        except TypeError as error:
            raise _misfit(kind.__name__, value) from error
        if kinds not in fitting:
            check(value, kinds)
        for place, convert in converted:
            value[place] = convert(value[place])
        return kind(*value)

    return load_list


def _tuple_loader(arguments: tuple[Any, ...]) -> Load:
    if arguments[-1] is Ellipsis:
        one = _loader(arguments[0])

        def load_many(value: Any) -> Any:
            if type(value) is not list:
                raise _misfit("a list", value)
            return tuple(map(one, value))

        return load_many
    each = tuple(map(_loader, arguments))

    def load_few(value: Any) -> Any:
        if type(value) is not list or len(value) != len(each):
            raise _misfit(f"a list of {len(each)}", value)
        return tuple(one(part) for one, part in zip(each, value, strict=True))

    return load_few


def _dict_loader(key: Any, hint: Any) -> Load:
    one = _loader(hint)

    def load_dict(value: Any) -> Any:
        if type(value) is not dict:
            raise _misfit("an object", value)
        try:
            return {key(name): one(part) for name, part in value.items()}
        except ValueError as error:
            raise _misfit(f"an object with {key.__name__} keys", value) from error

    return load_dict


def _misfit(wanted: Any, value: Any) -> FetcherError:
    # Only its type is told: settings of stores may hold secrets.
    name = getattr(wanted, "__name__", wanted)
    return FetcherError(
        f"a message that does not fit came over the fetcher's socket: {type(value).__name__} for {name}"
    )
