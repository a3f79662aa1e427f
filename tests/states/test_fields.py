"""Fields that are younger than the first states: each has a line in docs/design.md, and no line is left over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.states.cases import CASES, FILES, make_data
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
STATES = {
    "dataset/plain": "`StreamingDataset`",
    "dataset/two": "`StreamingDataset`",
    "stratified/mosaic": "MosaicML order",
    "loader/jsonl": "`AsyncDataLoader` over a source",
}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    with private_places():
        yield


def test_the_table_of_docs_has_all_fields_that_are_new() -> None:
    recorded = json.loads((FILES / "states.json").read_text())
    new = set()
    for name, kind in STATES.items():
        loader = CASES[name].open()
        next(iter(loader))
        state, first = loader.state_dict(), recorded[name]["state"]
        new |= {(kind, f"`{field}`") for field in state.keys() - first.keys()}
        new |= {(kind, f"`version` {number}") for number in range(first["version"] + 1, state["version"] + 1)}
        assert not first.keys() - state.keys()
    lines = (ROOT / "docs" / "design.md").read_text().splitlines()
    rows = [re.split(r" \| ", line.strip("| ")) for line in lines[lines.index("## Fields of states") :]]
    end = next(number for number, row in enumerate(rows) if row[0].startswith("## Optional"))
    assert {(row[0], row[1]) for row in rows[:end] if len(row) == 4 and row[0] in STATES.values()} == new
