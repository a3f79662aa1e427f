"""States of earlier releases load, and what follows is what followed then."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.states.cases import CASES, FILES, here, make_data, rest, whole
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED: dict[str, Any] = json.loads((FILES / "states.json").read_text())


@pytest.fixture(autouse=True, scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The data in the current folder, as when states were recorded."""
    folder, before = tmp_path_factory.mktemp("states"), Path.cwd()
    make_data(folder)
    os.chdir(folder)
    with private_places():
        yield
    os.chdir(before)


def test_all_cases_are_recorded() -> None:
    assert list(RECORDED) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_recorded_states_go_on(name: str) -> None:
    case, recorded = CASES[name], RECORDED[name]
    made, order = case.open(), recorded["order"]
    now = made.state_dict()
    for count, state in recorded["states"]:
        made = made if case.is_loader else case.open()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.load_state_dict(here(whole(recorded["state"], state), now))
            following = rest(made, case, len(order) - count)
        assert following == order[count:], count
