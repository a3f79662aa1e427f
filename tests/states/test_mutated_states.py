"""States come from outside: a damaged one is a `ResumeError`, or goes on with samples that there are."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Stream, StreamingDataset
from penstock.errors import ResumeError
from tests.formats.hostile import most_memory
from tests.states.cases import CASES, FILES, MORE, ROWS, Case, here, make_data, marks, whole
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED: dict[str, Any] = json.loads((FILES / "states.json").read_text())
NUMBERS = [-1, 0, 1, 2, 7, 63, 64, 1000, 10**5, 10**7, 10**9, 10**12, 2**62, 2**63, 10**30, 10**4000]
VALUES: list[Any] = [
    None,
    True,
    1.5,
    float("nan"),
    "",
    "x",
    "../../etc/passwd",
    "9" * 70_000,
    [],
    [[]],
    {},
    {"a": {}},
    *NUMBERS,
]
SLOWEST_S = 20.0
MOST_MB = 512
PASSES = 40  # steps that are looked at: several chunks of each kind


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="penstock")  # each refused state of a pipeline is logged


@pytest.fixture(autouse=True, scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder, before = tmp_path_factory.mktemp("mutated"), Path.cwd()
    make_data(folder)
    os.chdir(folder)
    with private_places():
        yield
    os.chdir(before)


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Fail, rather than hang."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def places_in(state: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List where values are in a state."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return [path, *(place for name, value in items for place in places_in(value, (*path, name)))]


def mutate(state: Any, draw: random.Random) -> Any:
    """Change a state in one to three places."""
    state = copy.deepcopy(state)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        path = draw.choice(places_in(state)[1:] or [()])
        if not path:
            return copy.deepcopy(draw.choice(VALUES))
        inner = state
        for name in path[:-1]:
            inner = inner[name]
        name, value = path[-1], inner[path[-1]]
        kind = draw.random()
        if kind < 0.15:
            del inner[name]
        elif kind < 0.5 and isinstance(value, int):
            inner[name] = draw.choice([value + 1, value - 1, -value, value * 2, *NUMBERS])
        elif kind < 0.6 and isinstance(value, list):
            inner[name] = draw.choice([value * 1000, value[:-1], value[::-1], value + value[:1]])
        elif kind < 0.6 and isinstance(value, dict):
            value[draw.choice(["x", "row", "given", "inner", "file"])] = copy.deepcopy(draw.choice(VALUES))
        else:
            inner[name] = copy.deepcopy(draw.choice(VALUES))
    return state


def outcome(case: Case, made: Any, state: Any, known: set[int] | None) -> str:
    """Load a state and go on: tell whether it was refused, or what came instead of samples that there are."""
    try:
        with no_longer_than(SLOWEST_S), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.load_state_dict(state)
            for given in islice(iter(made), PASSES):
                strange = set(marks(given, is_batch=case.is_loader)) - (known or set())
                if known is not None and strange:
                    return f"gave {sorted(strange)[:3]}"
    except ResumeError:
        return "refused"
    except Exception as error:  # noqa: BLE001  what is looked for
        return f"{type(error).__name__}: {error}"[:300]
    return "went on"


def known_marks(name: str) -> set[int] | None:
    """Return the numbers of all samples there are; None where each is made of several that may be cut elsewhere."""
    if "packed" in name or "tokenized" in name or "tokens" in name:
        return None
    return {
        *range(163 if CASES[name].is_slow else 0),
        *(int(row["id"]) for row in (*ROWS, *MORE)),
        *RECORDED[name]["order"],
    }


def corpus(name: str) -> list[Any]:
    """Return states of a case: those recorded, and some of now, which say more."""
    case, recorded = CASES[name], RECORDED[name]
    made = case.open()
    now = made.state_dict()
    states = [here(whole(recorded["state"], state), now) for _, state in recorded["states"]]
    for _ in islice(iter(made), 3):
        states.append(json.loads(json.dumps(made.state_dict())))
    return states


def check(names: list[str], count: int, seed: int, most_s: float = 1e9) -> Counter[str]:
    """Try so many damaged states, of all these cases in turn, or as many as there is time for."""
    draw, begin = random.Random(seed), time.monotonic()
    states = {name: corpus(name) for name in names}
    opened: dict[str, Any] = {}
    found: Counter[str] = Counter()
    wrong: list[str] = []
    memory = most_memory()
    for number in range(count):
        if time.monotonic() - begin > most_s:
            break
        name = names[number % len(names)]
        case = CASES[name]
        if draw.random() < 0.03:
            state = draw.choice(states[draw.choice(names)])  # of another kind, or another place
        else:
            state = mutate(draw.choice(states[name]), draw)
        made = opened.pop(name) if name in opened else case.open()
        came = outcome(case, made, state, known_marks(name))
        found[came if came in ("refused", "went on") else "wrong"] += 1
        if came in ("refused", "went on") and case.is_loader:
            opened[name] = made
        if came not in ("refused", "went on"):
            wrong.append(f"{name}: {came} of {str(state)[:600]}")
    assert most_memory() - memory < MOST_MB
    assert not wrong, f"{len(wrong)} of {sum(found.values())}\n" + "\n".join(wrong[:20])
    return found


QUICK = [name for name, case in CASES.items() if not case.is_slow and not name.startswith(("written", "indexed/f"))]


def test_damaged_states_are_refused_or_go_on() -> None:
    found = check(QUICK[::3], 300, seed=1)
    assert found["refused"] > 100
    assert found["went on"] > 30


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_many_damaged_states(seed: int) -> None:
    assert check(QUICK, 9900, seed + 10, 250)["went on"]


@pytest.mark.soak
def test_damaged_states_of_slow_cases() -> None:
    assert check([name for name in CASES if name not in QUICK], 1000, seed=7)["went on"]


@pytest.mark.parametrize("given", [10**6, 10**12])
def test_a_mix_without_end_is_not_read_to_a_far_place(given: int) -> None:
    mix = CASES["iterator/mix restarting of jsonl"].open()
    state = mix.state_dict()
    state["inner"] = {"left": 150, "input": {**state_of_mix(), "given": given}}
    assert outcome(CASES["iterator/mix restarting of jsonl"], mix, state, None) == "refused"


def nested(depth: int) -> Any:
    return {"inner": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    ("name", "path", "value", "refused"),
    [
        # What readers of other libraries find in it goes into later states.
        *(("dataset/two", [field], nested(300), False) for field in ("sample_in_epoch", "num_canonical_nodes")),
        ("dataset/two", ["initial_physical_nodes"], "x", True),
        ("dataset/two", ["mix", "more"], nested(300), False),
        ("mosaic/py1e", ["more"], nested(300), False),
        ("mosaic/py1e", ["pads_epochs"], nested(300), True),
        pytest.param("loader/jsonl", ["settings", "seed"], 10**5000, True, id="a number of 5000 digits"),
        ("iterator/map of jsonl", ["inner", "given"], 10**17, True),
    ],
)
def test_fields_of_no_use_do_no_harm(name: str, path: list[str], value: Any, refused: bool) -> None:
    made = CASES[name].open()
    next(iter(made))
    inner = state = json.loads(json.dumps(made.state_dict()))
    for each in path[:-1]:
        inner = inner[each]
    inner[path[-1]] = value
    assert outcome(CASES[name], CASES[name].open(), state, None) == ("refused" if refused else "went on")


def test_a_mix_of_more_samples_than_there_can_be() -> None:
    streams = [Stream(local="mds"), Stream(local="more")]
    dataset = StreamingDataset(streams=streams, batch_size=6, shuffle=True, allow_mix_change=True)
    state = dataset.state_dict()
    state |= {"position": 6, "mix": {**state["mix"], "counts": [2**60, 24]}}
    with pytest.raises(ResumeError, match="counts"):
        dataset.load_state_dict(state)


def test_more_canonical_nodes_than_a_stream_has_samples() -> None:
    case = CASES["stratified/mosaic"]
    state = case.open().state_dict()
    state = {name: state[name] for name in state if name not in ("order", "fingerprint")} | {"num_canonical_nodes": 64}
    assert outcome(case, case.open(), state, None) == "refused"


def state_of_mix() -> dict[str, Any]:
    """Return the state of a mix at its beginning."""
    phase = {"start": 0, "sources": ["a", "b"], "before": [0, 0], "taken": [0, 0]}
    return {"at": 0, "feeds": {name: {"epoch": 0, "given": 0, "samples": None} for name in "ab"}, "phase": phase}
