"""Dataclasses as plain JSON values and back, derived from their fields: no message spells out how it travels.

A dataclass travels as an object, each value by its name; named tuples and spans travel as lists, in the order of their
fields. What comes in is checked against the types of the fields.
"""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

from penstock.errors import FetcherError, PenstockError
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    Load = Callable[[Any], Any]

T = TypeVar("T")

_PLAIN = {int: (int,), float: (float, int), str: (str,), bool: (bool,), type(None): (type(None),)}


# --- Out ----------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return what stands for a value that JSON does not know; its parts may be such values again."""
    if isinstance(value, Span):
        return value.begin, value.end
    if isinstance(value, Path):
        return str(value)
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


# --- In -----------------------------------------------------------------------------------------------------


def load(kind: type[T], value: Any) -> T:
    """Rebuild a dataclass from plain values; a FetcherError says that they do not fit."""
    hint: Any = kind
    try:
        loaded: T = _loader(hint)(value)
    except FetcherError:
        raise
    except (PenstockError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        # What did not fit is not told: settings of stores may hold secrets.
        raise FetcherError(
            f"the fetcher or a client sent a {kind.__name__} that this version does not understand"
        ) from error
    return loaded


@cache
def _loader(hint: Any) -> Load:
    """Make what rebuilds a value of a type; it raises one of several errors if that is impossible."""
    arguments = typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if (kinds := _plain_kinds(hint)) is not None:
        return partial(_as_it_is, kinds)
    if hint is Path:
        return lambda value: Path(os.fsdecode(os.fsencode(value)))  # an error if no file can be called so
    if hint is Span or hasattr(hint, "_fields"):
        return _list_loader(hint)
    if dataclasses.is_dataclass(hint):
        return _object_loader(hint)
    origin = typing.get_origin(hint)
    if origin is dict:
        key, one = arguments[0], _loader(arguments[1])
        return lambda value: {key(name): one(part) for name, part in value.items()}
    if origin is tuple and arguments[-1] is Ellipsis:
        one = _loader(arguments[0])
        return lambda value: tuple(map(one, _as_it_is((list,), value)))
    each = [_loader(argument) for argument in arguments if argument is not type(None)]
    if origin is tuple:
        return lambda value: tuple(one(part) for one, part in zip(each, value, strict=True))
    (one,) = each  # a value, or none
    return lambda value: None if value is None else one(value)


def _plain_kinds(hint: Any) -> frozenset[type] | None:
    """Return the types of JSON values that fit, if all of them are used as they come."""
    is_union = typing.get_origin(hint) in (types.UnionType, Union)
    kinds = typing.get_args(hint) if is_union else (hint,)
    if not all(kind in _PLAIN for kind in kinds):
        return None
    return frozenset(found for kind in kinds for found in _PLAIN[kind])


def _as_it_is(kinds: Collection[type], value: Any) -> Any:
    if type(value) not in kinds:
        raise TypeError
    return value


def _object_loader(kind: Any) -> Load:
    hints = typing.get_type_hints(kind)
    fields = {name: _loader(hints[name]) for name in _names(kind)}
    return lambda value: kind(**{name: fields[name](part) for name, part in value.items()})


def _list_loader(kind: Any) -> Load:
    parts = list(typing.get_type_hints(kind).values())
    make: Load = partial(tuple.__new__, kind) if issubclass(kind, tuple) else lambda value: kind(*value)
    allowed = [_plain_kinds(hint) for hint in parts]
    converted = [(place, _loader(hint)) for place, hint in enumerate(parts) if allowed[place] is None]
    fitting: set[tuple[type, ...]] = set()  # the few combinations that were found right: looked up, not checked again

    def load_list(value: Any) -> Any:
        kinds = tuple(map(type, value))
        if kinds not in fitting:
            if not all(of is None or found in of for found, of in zip(kinds, allowed, strict=True)):
                raise TypeError
            fitting.add(kinds)
        for place, convert in converted:
            value[place] = convert(value[place])
        return make(value)

    return load_list
