"""The examples of training on text, run for real: cut and gone on, in one process and in two, they see the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.process import free_port
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parents[2] / "examples"
Steps = list[tuple[int, list[list[int]]]]


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def run_all(*commands: list[object]) -> None:
    """Run programs side by side; all must end well."""
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        for process in running:
            out, errors = process.communicate(timeout=180)
            assert process.returncode == 0, out + errors
            assert "loss" in out
    finally:
        for process in running:
            process.kill()
            process.communicate()


def steps_in(*files: Path) -> Steps:
    """Read what each step was trained on, by all processes together."""
    noted: dict[int, list[list[int]]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            step, rows = json.loads(line)
            noted.setdefault(step, []).extend(rows)
    return [(step, sorted(rows)) for step, rows in sorted(noted.items())]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import text_corpus

    text_corpus.write_corpus(tmp_path / "data")
    return tmp_path / "data"


def test_a_plain_torch_loop_is_cut_and_goes_on(data: Path, tmp_path: Path) -> None:
    example = EXAMPLES / "text_torch.py"
    cut = [example, data, "--seen", tmp_path / "cut", "--checkpoint", tmp_path / "model.pt", "--steps"]
    run_all([example, data, "--steps", 40, "--seen", tmp_path / "whole"], [*cut, 17])
    run_all([*cut, 40])
    whole = steps_in(tmp_path / "whole")
    assert steps_in(tmp_path / "cut") == whole
    assert len(whole) == 40  # more than an epoch
    assert len({str(rows) for _, rows in whole}) > 35


def test_a_jax_loop_sees_the_same_in_one_process_and_in_two(data: Path, tmp_path: Path, places: Path) -> None:
    example, port = EXAMPLES / "text_jax.py", free_port()
    cut = [example, data, "--checkpoint", tmp_path / "model.json"]
    run_all(
        [example, data, "--steps", 30, "--seen", tmp_path / "whole"],
        [*cut, "--steps", 13, "--seen", tmp_path / "first"],
    )
    two = [*cut, "--steps", 30, "--processes", 2, "--port", port]
    run_all(*([*two, "--process", number, "--seen", tmp_path / f"second{number}"] for number in range(2)))
    gone_on = steps_in(tmp_path / "first") + steps_in(tmp_path / "second0", tmp_path / "second1")
    assert gone_on == steps_in(tmp_path / "whole")
    assert len(list(places.rglob("written.json"))) == 1
