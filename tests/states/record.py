"""Records states and what follows them: `python -m tests.states.record FOLDER`, with `src` of any tree on the path.

Recorded once for each kind of state; states of earlier releases have to load, so what is there stays.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from tests.states.cases import CASES, FILES, UNKNOWN, Case, make_data, steps, write_binary
from tests.streaming import private_places


def record(case: Case) -> dict[str, Any]:
    """Return all that two passes give, and states at some places of it, each with how much came before."""
    order: list[int] = []
    states: list[tuple[int, Any]] = []
    made = case.open()
    states.append((0, made.state_dict()))
    for number in range(2 if case.is_loader else 1):
        for given in steps(made, case, 1):
            order += given
            states.append((len(order), made.state_dict()))
        if number == 0:
            end = len(states)
            states.append((len(order), made.state_dict()))
    last = len(states) - 1
    wanted = {0, 1, 2, end // 2, end // 2 + 1, end - 1, end, min(end + 2, last)}
    if case.is_slow:
        wanted = {2, end, min(end + 2, last)}
    if not case.is_loader:
        wanted |= {20, 21, 41}  # where shards end
    chosen = [states[number] for number in sorted(wanted) if number <= last]
    first = chosen[0][1]
    return {"order": order, "state": first, "states": [(count, less_than(first, state)) for count, state in chosen]}


def less_than(first: Any, state: Any) -> Any:
    """Leave out what is as in another state; `cases.whole` puts it back."""
    if not isinstance(state, dict) or not isinstance(first, dict) or first.keys() - state.keys():
        return state
    return {"...": 1, **{k: less_than(first.get(k), v) for k, v in state.items() if k not in first or first[k] != v}}


def lasting(one: Any, other: Any) -> Any:
    """Return what two recordings have in common: a mark is in the place of names of files that no other folder has."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), (one, other)
        return {name: lasting(value, other[name]) for name, value in one.items()}
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other), (one, other)
        return [lasting(*each) for each in zip(one, other, strict=True)]
    assert one == other or (isinstance(one, str) and isinstance(other, str)), (one, other)
    return one if one == other else UNKNOWN


def record_all() -> dict[str, Any]:
    """Record all cases, in a folder of its own."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as data, private_places():
        make_data(Path(data))
        os.chdir(data)
        try:
            return {name: record(case) for name, case in CASES.items()}
        finally:
            os.chdir(before)


def main(folder: Path) -> None:
    """Record all cases, twice."""
    warnings.simplefilter("ignore")
    if not list(FILES.glob("*.parquet")):
        write_binary(FILES)
    recorded = lasting(record_all(), record_all())
    lines = [f"{json.dumps(name)}:{json.dumps(each, separators=(',', ':'))}" for name, each in recorded.items()]
    (folder / "states.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
