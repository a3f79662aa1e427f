"""Values made to exhaust memory are refused before anything is allocated for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.formats.hostile import CASES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[str, str, int]]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.formats.hostile"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {name: (kind, message, memory) for name, kind, message, memory in lines}


@pytest.mark.parametrize("name", CASES)
def test_hostile_values_are_refused(name: str, outcomes: dict[str, tuple[str, str, int]]) -> None:
    kind, message, memory = outcomes[name]
    first = min(memory for _, _, memory in outcomes.values())
    assert kind == "ours", message
    assert message.startswith(("shard.00000.mds", "ndarray:"))
    assert "MemoryError" not in message
    assert memory < first + 64, "MB were allocated for a value that is not there"
