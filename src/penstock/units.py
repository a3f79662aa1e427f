"""Arguments as people write them: sizes and counts (`"64mb"`, `"2.5b"` samples), and calls that do not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import wraps
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import CallError, ConfigError, meant
from penstock.outside_text import ASCII, Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

_BYTE_UNITS = {unit + "b": 1024**power for power, unit in enumerate("kmgtpezy", start=1)}
_COUNT_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MOST_CHARACTERS = 40
_NUMBER = Bounded(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", _MOST_CHARACTERS, ASCII)


def parse_bytes(value: int | float | str) -> int:
    """Turn 1000, `"100b"`, `"64kb"` or `"1.5GB"` (powers of 1024, any case) into a number of bytes."""
    if isinstance(value, str):
        number, unit = _split(value, "a size", "1000, '64kb' or '1.5gb'")
        if unit in ("", "b"):
            if not number.isdigit():
                raise ConfigError(f"size {value!r} is a fraction of a byte: use a whole number, or a unit such as 'kb'")
            return int(number)
        if unit not in _BYTE_UNITS:
            raise ConfigError(f"size {value!r} has an unknown unit: use one of b, {', '.join(_BYTE_UNITS)}")
        return _exactly(number, _BYTE_UNITS[unit])
    return _whole(value, "size")


def _exactly(number: str, unit: int) -> int:
    from fractions import Fraction  # which takes a while to load, and is seldom needed

    return int(Fraction(number) * unit)


def parse_count(value: int | float | str) -> int:
    """Turn 1000, 1e8, `"1k"`, `"2.5m"` or `"1.5b"` (powers of 1000) into a number of samples."""
    if isinstance(value, str):
        number, unit = _split(value, "a count", "1000, '64k' or '1.5b'")
        if unit and unit not in _COUNT_UNITS:
            raise ConfigError(f"count {value!r} has an unknown unit: use one of {', '.join(_COUNT_UNITS)}")
        return _exactly(number, _COUNT_UNITS.get(unit, 1))
    return _whole(value, "count")


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse an argument that is not a whole number from `least` on; None, which leaves it out, is fine."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}={value!r} is not a whole number: use an int of {least} or more")
    if value < least:
        raise ConfigError(f"{name}={value} is too small: use {least} or more")


def check_seconds(name: str, value: object) -> None:
    """Refuse an argument that is no time to wait; None, which leaves it out, is fine."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise ConfigError(f"{name}={value!r} is not a valid timeout: use a number of seconds above 0")


def check_bool(name: str, value: object) -> None:
    """Refuse an argument that is neither True nor False, such as "no", which counts as True; None is fine."""
    if value is None or isinstance(value, bool):
        return
    import numpy as np  # not needed otherwise

    if not isinstance(value, np.bool_):
        raise ConfigError(f"{name}={value!r:.100} is not a bool: use True or False")


def check_mapping(name: str, value: object) -> None:
    """Refuse an argument that is not a dict, without showing it: it may hold secrets. None is fine."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict, got {type(value).__name__}")


def format_count(number: int, what: str) -> str:
    """Show how many there are of something: `1 shard`, `1,200 shards`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def format_bytes(num_bytes: float) -> str:
    """Show a number of bytes with three digits and a unit, in powers of 1024 like `parse_bytes` reads them."""
    size, unit = float(num_bytes), "B"
    for bigger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(size) < 1000:
            break
        size, unit = size / 1024, bigger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"


def round_up_bytes(num_bytes: int) -> str:
    """Write a size as a short setting that `parse_bytes` reads as at least so much."""
    unit, size = next(((unit, size) for unit, size in _BYTE_UNITS.items() if num_bytes <= 1000 * size), ("yb", 1024**8))
    return f"{-(-10 * num_bytes // size) / 10:g}{unit}"


def _split(text: str, what: str, example: str) -> tuple[str, str]:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or len(text) > _MOST_CHARACTERS:
        raise ConfigError(f"{text[:_MOST_CHARACTERS]!r} is not {what}: write it like {example}")
    return match.group(1), match.group(2)


def _whole(value: int | float, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{value!r} is not a {what}: use a number or a string")
    if value < 0:
        raise ConfigError(f"{what} {value!r} is negative: use 0 or more")
    return int(value)


# --- Calls that do not fit -------------------------------------------------------------------------------------------


def checks_call(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that users call, so that a call that does not fit it raises a `CallError`."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # by something that the function calls
            raise CallError(_explain(function, args, named) or str(error)) from None

    return call


def checks_making(kind: type[T]) -> type[T]:
    """Decorate a class that users make objects of, so that arguments which do not fit it raise a `CallError`."""
    kind.__init__ = checks_call(kind.__init__)  # type: ignore[method-assign]
    return kind


def _explain(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    import inspect  # seldom needed, here and below

    takes = list(inspect.signature(function).parameters.values())
    name = function.__name__
    if name == "__init__":
        name, takes, args = type(args[0]).__name__, takes[1:], args[1:]
    names = [each.name for each in takes if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    unknown = [each for each in named if each not in names]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in takes):
        return f"{name} has no argument {unknown[0]!r}{meant(unknown[0], names)}: it takes {', '.join(names)}"
    by_place = [each.name for each in takes if each.name in names and each.kind is not each.KEYWORD_ONLY]
    if len(args) > len(by_place):
        first = next((each for each in ("remote", *names[len(by_place) :]) if each in names), "…")
        most = f"only {', '.join(by_place)}" if by_place else "no argument"
        return f"{name} takes {most} without a name: write {name}({first}=…), and name the others, too"
    given = {*by_place[: len(args)], *named}
    needed = [each.name for each in takes if each.default is each.empty and each.name in names]
    missing = [each for each in needed if each not in given]
    return f"{name} needs {', '.join(f'{each}=' for each in missing)}" if missing else None
