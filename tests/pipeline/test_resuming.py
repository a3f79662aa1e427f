"""Cut after any batch and gone on with: equal to uncut, for stages in all combinations, with any number of threads.

`make soak` tries every combination at every batch, and each of them in a new process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from penstock import Pipeline
from tests.pipeline.texts import same, settings

STAGES = ("tokenize", "cache", "mix", "pack", "shuffle")
COMBINATIONS = [
    tuple(name for name, is_there in zip(STAGES, chosen, strict=True) if is_there)
    for chosen in product((False, True), repeat=len(STAGES))
    if chosen[0] or not chosen[3]  # only tokens can be packed
]
FEW = [(), ("shuffle",), ("cache", "mix"), ("tokenize", "mix", "pack"), STAGES]


def make(data: Path, stages: tuple[str, ...], workers: int) -> Pipeline:
    """Make a pipeline of these stages; `workers` threads tokenize and load, none if there are 0 of them."""
    config = settings(data, seed=3)
    config["datasets"][0]["num_rows"] = 120
    config["datasets"][1]["num_rows"] = 60
    pipeline = Pipeline.from_config(config).source()
    if "tokenize" in stages:
        pipeline.tokenize({"num_workers": workers, "batch_size": 16})
    if "cache" in stages:
        cache = {"cache_dir": f"{data}/cache", "part_size": 1000, "max_shard_size": 2000, "num_workers": 0}
        pipeline.cache({**cache, "wait": workers != 1})
    if "mix" in stages:
        pipeline.mix({"stop_strategy": "all_exhausted"})
    if "pack" in stages:
        pipeline.pack({"enabled": True, "seq_length": 64, "shuffle_buffer_factor": 1})
    load: dict[str, Any] = {"batch_size": 9, "shuffle_buffer_size": 40 if "shuffle" in stages else None}
    return pipeline.load({**load, "prefetch_enabled": workers > 0, "prefetch_workers": max(workers, 1)})


def take(pipeline: Pipeline, count: int) -> list[Any]:
    batches = iter(pipeline)
    taken = [next(batches) for _ in range(count)]
    batches.close()  # type: ignore[attr-defined]
    return taken


def check(data: Path, stages: tuple[str, ...], cuts: Any, workers: tuple[int, int]) -> None:
    whole = make(data, stages, workers[0])
    first, second = list(whole), list(whole)
    assert len(first) > 3
    for cut in cuts(len(first)):
        begun = make(data, stages, workers[0])
        assert same(take(begun, cut), first[:cut])
        state = json.loads(json.dumps(begun.state_dict()))
        resumed = make(data, stages, workers[1])
        resumed.load_state_dict(state)
        rest = list(resumed)
        assert same(rest, first[cut:]) or (cut == len(first) and same(rest, second)), (stages, cut)
        if cut < len(first):
            assert same(list(resumed), second)  # and the next pass is the next epoch


@pytest.mark.parametrize("stages", FEW, ids="-".join)
def test_cut_and_gone_on(data: Path, stages: tuple[str, ...]) -> None:
    check(data, stages, lambda length: (0, 1, length // 2, length), (2, 0))


@pytest.mark.soak
@pytest.mark.parametrize("workers", [(0, 0), (1, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("stages", COMBINATIONS, ids="-".join)
def test_every_combination_cut_at_every_batch(data: Path, stages: tuple[str, ...], workers: tuple[int, int]) -> None:
    check(data, stages, lambda length: range(length + 1), workers)


def in_another_process(data: Path, stages: tuple[str, ...], cut: int) -> None:
    expected = list(make(data, stages, 2))
    begun = make(data, stages, 2)
    take(begun, cut)
    (data / "state.json").write_text(json.dumps(begun.state_dict()))
    command = [sys.executable, "-m", "tests.pipeline.test_resuming", str(data), ",".join(stages)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == plain(expected[cut:])


def plain(batches: list[Any]) -> Any:
    return json.loads(json.dumps(batches, default=lambda value: value.tolist()))


def test_in_a_new_process(data: Path) -> None:
    in_another_process(data, STAGES, 4)


@pytest.mark.soak
@pytest.mark.parametrize("stages", COMBINATIONS, ids="-".join)
def test_every_combination_in_a_new_process(data: Path, stages: tuple[str, ...]) -> None:
    in_another_process(data, stages, 3)


if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), tuple(name for name in sys.argv[2].split(",") if name)
    pipeline = make(folder, names, 0)
    pipeline.load_state_dict(json.loads((folder / "state.json").read_text()))
    print(json.dumps(plain(list(pipeline))))
