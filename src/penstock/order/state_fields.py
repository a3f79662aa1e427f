"""Checks states before anything is read from them: they come from outside, and may be damaged or of another kind.

A table says what each field may be: a `range` of whole numbers, `str`, `bool`, `float`, `dict`, a tuple of words,
`[rule]` for a list, `{str: rule}` for a mapping, or another table. A name with a `?` may be missing or null.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import Repr
from typing import Any

from penstock.errors import ResumeError

Fields = Mapping[str, Any]

MOST = 1 << 62  # counts fit into 64 bits, also when a few are added up
COUNT = range(MOST)
_LONGEST = 1 << 16  # of text, lists and mappings
_NAMES = {str: "text", bool: "true or false", float: "a number", dict: "a mapping"}
# Fields by which a state is known that is loaded in the wrong place.
_KINDS = {
    ("stages", "loader"): "a Pipeline",
    ("begun", "yielded"): "one worker of a torch DataLoader",
    ("settings", "position", "source"): "an AsyncDataLoader over a source",
    ("order", "position", "fingerprint"): "a StreamingDataset or its loader",
    ("sample_in_epoch",): "MosaicML Streaming",
    ("_snapshot",): "torchdata's StatefulDataLoader",
    ("feeds", "at"): "an iterator over a mix",
    ("group", "counts"): "an iterator over packed rows",
    ("shard", "inner"): "an iterator over a source",
    ("state", "param_groups"): "an optimizer",
}
_SHORT = Repr()


def check_fields(state: Any, fields: Fields, what: str) -> dict[str, Any]:
    """Refuse what does not fit a table; return what is in it, without other fields, which are left alone."""
    is_mapping = isinstance(state, Mapping)
    missing = [name for name in fields if not name.endswith("?") and not (is_mapping and name in state)]
    if missing or not is_mapping:
        needed = f", but {what} needs one with {', '.join(missing)}" if missing else f", and none of {what}"
        raise ResumeError(f"this is {describe_kind(state)}{needed}: load exactly what its own state_dict() gave")
    known: dict[str, Any] = {}
    for name, rule in fields.items():
        if (plain := name.rstrip("?")) in state:
            value = state[plain]
            known[plain] = None if value is None and plain != name else _check(value, rule, plain, what)
    return known


def describe_kind(state: Any) -> str:
    """Return which kind of state it is, by its fields."""
    if not isinstance(state, Mapping):
        return f"no state but a {type(state).__name__}"
    kind = next((kind for names, kind in _KINDS.items() if all(name in state for name in names)), None)
    if kind is None and any(hasattr(value, "shape") for value in state.values()):
        kind = "a model"
    fields = ", ".join(shown(name) for name in list(state)[:8]) or "none"
    return f"the state of {kind}" if kind else f"a state with the fields {fields}"


def refuse(name: str, value: Any, expected: str, what: str = "") -> ResumeError:
    """Make the error for a value that does not fit."""
    whose = f", for {what}" if what else ""
    return ResumeError(
        f"the state has {name}={shown(value)} instead of {expected}{whose}: load a state_dict exactly as it was saved,"
        " for the same data"
    )


def shown(value: Any) -> str:
    """Write a value of a state, which may be anything, in few words."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return "numbers of thousands of digits"


def _check(value: Any, rule: Any, name: str, what: str) -> Any:
    if isinstance(rule, dict) and str not in rule:
        return check_fields(value, rule, f"{name} of {what}")
    if isinstance(rule, dict):
        _check(value, dict, name, what)
        return {key: _check(each, rule[str], f"{name}.{key:.60}", what) for key, each in value.items()}
    if isinstance(rule, list):
        if not isinstance(value, list | tuple) or len(value) > _LONGEST:
            raise refuse(name, value, f"a list of at most {_LONGEST}", what)
        return [_check(each, rule[0], f"{name}[{number}]", what) for number, each in enumerate(value)]
    if not _fits(value, rule):
        bounds = f"a whole number from {rule.start} to {rule.stop - 1}" if isinstance(rule, range) else f"one of {rule}"
        raise refuse(name, value, _NAMES.get(rule, bounds), what)
    return value


def _fits(value: Any, rule: Any) -> bool:
    if isinstance(rule, tuple):
        return value in rule
    if isinstance(value, bool) or rule is bool:
        return isinstance(value, bool) and rule is bool
    if isinstance(rule, range):
        return isinstance(value, int) and value in rule
    if rule is float:
        return isinstance(value, int | float) and abs(value) < MOST
    if rule is dict:
        return isinstance(value, Mapping) and len(value) <= _LONGEST and all(isinstance(key, str) for key in value)
    return isinstance(value, str) and len(value) <= _LONGEST
