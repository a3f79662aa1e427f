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
    ("shard_index", "row_index"): "a ResumeState",
    ("feeds", "at"): "an iterator over a mix",
    ("group", "counts"): "an iterator over packed rows",
    ("shard", "inner"): "an iterator over a source",
}
_SHORT = Repr()


def check_fields(state: Any, fields: Fields, what: str) -> None:
    """Refuse what does not fit a table; fields that are not in it are left alone."""
    is_mapping = isinstance(state, Mapping)
    missing = [name for name in fields if not name.endswith("?") and not (is_mapping and name in state)]
    if missing or not is_mapping:
        needed = f", but {what} needs one with {', '.join(missing)}" if missing else f", and none of {what}"
        raise ResumeError(f"this is {describe_kind(state)}{needed}: load a state_dict exactly as it was saved")
    for name, rule in fields.items():
        value, plain = state.get(name.rstrip("?")), name.rstrip("?")
        if value is not None or plain == name:
            _check(value, rule, plain, what)


def describe_kind(state: Any) -> str:
    """Say which kind of state it is, by its fields."""
    if not isinstance(state, Mapping):
        return f"no state but a {type(state).__name__}"
    kind = next((kind for names, kind in _KINDS.items() if all(name in state for name in names)), None)
    fields = ", ".join(map(_SHORT.repr, list(state)[:8])) or "none"
    return f"the state of {kind}" if kind else f"a state with the fields {fields}"


def refuse(name: str, value: Any, expected: str, what: str = "") -> ResumeError:
    """Make the error for a value that does not fit."""
    is_long = isinstance(value, int) and value.bit_length() > 128  # Python writes no number of thousands of digits
    shown = f"a number of {value.bit_length()} bits" if is_long else _SHORT.repr(value)
    whose = f", for {what}" if what else ""
    return ResumeError(
        f"the state has {name}={shown} instead of {expected}{whose}: load a state_dict exactly as it was saved, for the"
        " same data"
    )


def _check(value: Any, rule: Any, name: str, what: str) -> None:
    if isinstance(rule, dict) and str not in rule:
        check_fields(value, rule, f"{name} of {what}")
    elif isinstance(rule, dict):
        _check(value, dict, name, what)
        for key, each in value.items():
            _check(each, rule[str], f"{name}.{key:.60}", what)
    elif isinstance(rule, list):
        if not isinstance(value, list | tuple) or len(value) > _LONGEST:
            raise refuse(name, value, f"a list of at most {_LONGEST}", what)
        for number, each in enumerate(value):
            _check(each, rule[0], f"{name}[{number}]", what)
    elif not _fits(value, rule):
        bounds = f"a whole number from {rule.start} to {rule.stop - 1}" if isinstance(rule, range) else f"one of {rule}"
        raise refuse(name, value, _NAMES.get(rule, bounds), what)


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
