"""The examples, killed at random moments and run again: every sample once, in the batches of a run that was not cut."""

from __future__ import annotations

import json
import random
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.test_frameworks import launch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integrations

STEPS, PER_EPOCH = 50, 25
KILLED = "tests/integrations/killed.py"
Trained = dict[int, list[int]]


def train(
    program: str, place: Path, ranks: int, *options: Any, workers: int, kill_at: int | None = None, run: int = 0
) -> Trained:
    """Run a program, to its end or to a step; return the samples of all ranks, by step."""
    seen = place / f"seen{run}"
    command = [program] if kill_at is None else [KILLED, kill_at, program]
    arguments = ["--workers", workers, "--checkpoint", place / "checkpoint", "--seen", seen, *options]
    done = launch(ranks, *command, place.parent / "data", *arguments)
    killed = -9 if ranks == 1 else 1  # torchrun ends with 1
    assert done.returncode == (0 if kill_at is None else killed), done.stdout + done.stderr[-5000:]
    steps: dict[int, dict[int, list[int]]] = {}
    for rank in range(ranks):
        for line in (seen / f"rank{rank}.jsonl").read_text().splitlines():
            step, ids = json.loads(line)
            steps.setdefault(step, {})[rank] = ids
    whole = {
        step: sorted(chain.from_iterable(by_rank.values())) for step, by_rank in steps.items() if len(by_rank) == ranks
    }
    assert all(len(ids) == 10 for ids in whole.values())
    return whole


@pytest.mark.parametrize("name", ["torch", "accelerate", "lightning", "hf_trainer"])
def test_examples_are_killed_and_go_on(tmp_path: Path, name: str) -> None:
    draw = random.Random(name)
    launched = launch(
        1,
        "-c",
        "import sys, pathlib; sys.path.insert(0, 'examples'); import tiny; "
        f"tiny.write_line(pathlib.Path({str(tmp_path / 'data')!r}))",
    )
    assert launched.returncode == 0, launched.stderr
    program = f"examples/train_{name}.py"
    uncut = train(program, tmp_path / "uncut", 2, workers=0)
    assert list(uncut) == list(range(STEPS))
    epochs = [
        sorted(chain.from_iterable(uncut[step] for step in range(first, first + PER_EPOCH))) for first in (0, PER_EPOCH)
    ]
    assert epochs == [list(range(250))] * 2
    assert uncut[0] != uncut[PER_EPOCH]

    moments = sorted(draw.sample(range(8, STEPS), 3))
    trained: Trained = {}
    first_of_last = 0
    for run, (ranks, kill_at) in enumerate(zip([2, 1, 2, 1], [*moments, None], strict=True)):
        steps = train(program, tmp_path / "cut", ranks, workers=run % 3, kill_at=kill_at, run=run)
        first_of_last = min(steps)
        trained |= steps
    assert trained == uncut
    assert first_of_last > 0, "the last run went on, and did not begin again"


@pytest.mark.parametrize(("kind", "ranks"), [("torchdata", 1), ("accelerate", 1), ("orbax", 1), ("trl", 2)])
def test_loops_of_other_libraries_are_killed_and_go_on(tmp_path: Path, kind: str, ranks: int) -> None:
    draw, program = random.Random(kind), "tests/integrations/loops.py"
    options, num_steps = ("--kind", kind), PER_EPOCH if kind == "trl" else STEPS
    uncut = train(program, tmp_path / "uncut", 1, *options, workers=0)
    assert list(uncut) == list(range(num_steps))
    assert sorted(chain.from_iterable(uncut[step] for step in range(PER_EPOCH))) == list(range(250))
    moments = sorted(draw.sample(range(8, num_steps), 3))
    trained: Trained = {}
    for run, kill_at in enumerate([*moments, None]):
        here = ranks if run % 2 else 1
        trained |= train(program, tmp_path / "cut", here, *options, workers=run % 3, kill_at=kill_at, run=run)
    assert trained == uncut


def whole_and_cut(tmp_path: Path, example: str, steps: int, *options: Any) -> tuple[str, str]:
    """Run an example of text in one go, and another time killed three times; return what each step was trained on."""
    draw = random.Random(example)
    seen = tmp_path / "whole", tmp_path / "cut"
    done = launch(1, example, tmp_path / "data", "--steps", steps, "--seen", seen[0], *options)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    for kill_at in [*sorted(draw.sample(range(4, steps), 3)), None]:
        command = [example] if kill_at is None else [KILLED, kill_at, example]
        checkpoint = ["--checkpoint", tmp_path / "checkpoint", "--save-every", 3]
        done = launch(1, *command, tmp_path / "data", "--steps", steps, "--seen", seen[1], *checkpoint, *options)
        assert done.returncode == (0 if kill_at is None else -9), done.stdout + done.stderr[-5000:]
    by_step = [{json.loads(line)[0]: line for line in path.read_text().splitlines()} for path in seen]
    assert len(by_step[0]) == steps
    return tuple("\n".join(each[step] for step in sorted(each)) for each in by_step)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["torch", "jax", "hf_trainer"])
def test_text_examples_are_killed_and_go_on(tmp_path: Path, name: str) -> None:
    whole, cut = whole_and_cut(tmp_path, f"examples/text_{name}.py", 30)
    assert cut == whole
