"""Settings as dataclasses, from and to plain values: an unknown field is an error that names the likely one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from penstock.errors import ConfigError
from penstock.extras import require

T = TypeVar("T")

_SCALARS = (str, int, float, bool, type(None))


def read_fields(kind: type[T], given: Any, where: str = "") -> T:
    """Make settings of plain values; those within settings are read by their own classes."""
    if isinstance(given, kind):
        return given
    place = where or kind.__name__
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place} is a {type(given).__name__}: give a dict of its fields")
    known = {each.name: each for each in fields(kind) if each.init}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"do you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            raise ConfigError(f"{place} has no field {name!r}: {hint}")
    missing = [name for name, each in known.items() if _is_needed(each) and name not in given]
    if missing:
        raise ConfigError(f"{place} needs {', '.join(missing)}")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class can be hashed
    read = {
        name: _read(hints[name], value, f"{where}.{name}" if where else name)
        for name, value in given.items()
        if not (value is None and _is_settings(hints[name]))  # a section with nothing in it has its defaults
    }
    made = kind(**read)
    check_types(made)
    return made


def write_fields(settings: Any) -> dict[str, Any]:
    """Return settings as plain values, all of them; what cannot be written, such as a function, is an error."""
    return {each.name: _write(getattr(settings, each.name), each.name) for each in fields(settings) if each.init}


def check_types(settings: Any) -> None:
    """Refuse a value that is not of the type of its field, such as the text "no" for False."""
    hints = _hints(type(settings))  # type: ignore[arg-type]  # a class can be hashed
    for each in fields(settings):
        value = getattr(settings, each.name)
        if not _fits(value, hints[each.name]):
            shown = f"={value!r:.60}" if each.repr else ""  # what is hidden may be secret
            raise ConfigError(f"{each.name}{shown} must be {_said(hints[each.name])}")


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str | PathLike)
    kind = origin or hint
    if isinstance(value, str):
        return False  # a sequence, but not one of several things
    return callable(value) if kind is Callable else isinstance(value, kind)


def _said(hint: Any) -> str:
    """Name a type in plain words."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    known = {bool: "True or False", int: "a whole number", float: "a number", str: "text", type(None): "None"}
    return " or ".join(dict.fromkeys(known.get(kind) or f"a {(get_origin(kind) or kind).__name__}" for kind in kinds))


@lru_cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.init}


def load_text(text: str, *, is_yaml: bool) -> Any:
    """Read JSON or YAML."""
    try:
        return _yaml().safe_load(text) if is_yaml else json.loads(text)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the text is not {'YAML' if is_yaml else 'JSON'}: {error}") from error


def dump_text(values: dict[str, Any], *, is_yaml: bool) -> str:
    """Write JSON or YAML."""
    if is_yaml:
        return str(_yaml().safe_dump(values, sort_keys=False))
    return json.dumps(values, indent=2)


def is_yaml_path(path: str | Path) -> bool:
    """Distinguish YAML from JSON by the name of a file."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{path} is neither .json nor .yaml")
    return suffix != ".json"


def _yaml() -> Any:
    return require("yaml", extra="yaml", purpose="reading and writing YAML")


def _is_needed(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _read(hint: Any, value: Any, where: str) -> Any:
    """Read a value whose type may be settings, or a list of settings."""
    if _is_settings(hint):
        return read_fields(hint, value, where)
    for kind in (hint, *get_args(hint)):
        if _is_settings(kind) and isinstance(value, Mapping):
            return read_fields(kind, value, where)
        of_list = [inner for inner in get_args(kind) if _is_settings(inner)]
        if of_list and isinstance(value, Sequence) and not isinstance(value, str):
            return [read_fields(of_list[0], each, f"{where}[{number}]") for number, each in enumerate(value)]
    return value


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _write(value: Any, where: str) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return write_fields(value)
    if isinstance(value, Mapping):
        return {str(name): _write(each, f"{where}.{name}") for name, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [_write(each, where) for each in value]
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(f"{where} is {value!r:.60}, which cannot be written as plain values: set it in code only")
