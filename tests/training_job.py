"""A small training job: takes batches, saves where it stands after each, and goes on from there when started again.

What it saves are the state of its loader and the batches it was given so far, in one file that is replaced as a whole:
a job that was killed and started again must end with exactly the batches of one that was not.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock import StreamingDataLoader, StreamingDataset, StreamingLeRobotDataset
from tests.episodes.golden import TOP, codes_of
from tests.in_place.kinds import KINDS
from tests.streaming import sample


def main() -> None:
    settings = json.loads(sys.argv[1])
    out = Path(settings["out"])
    is_of_robots = settings["kind"] == "robots"
    dataset = (StreamingLeRobotDataset if is_of_robots else StreamingDataset)(**settings["dataset"])
    loader = StreamingDataLoader(
        dataset, batch_size=settings["batch_size"], num_workers=settings["workers"], drop_last=False
    )
    kind = KINDS.get(settings["kind"])  # of files that are read in place
    numbers_of = check_frames if is_of_robots else check if kind is None else kind.batch_numbers
    saved: dict[str, Any] = {"batches": []}
    if (out / "saved.json").exists():
        saved = json.loads((out / "saved.json").read_text())
        loader.load_state_dict(saved["state"])
    say("begun")
    batches: list[list[int]] = saved["batches"]
    num_batches = saved.get("num_batches", len(loader))  # of an epoch; after a resume, it is what will come
    while len(batches) < settings["epochs"] * num_batches:
        for batch in loader:
            batches.append(numbers_of(batch))
            save(out, {"state": loader.state_dict(), "batches": batches, "num_batches": num_batches})
            say(f"batch {len(batches)}")
            time.sleep(settings["step_s"])
            if settings["stop_at"] == len(batches):
                sys.stdin.read()  # whatever the test does to this job, it does now
    say("done")
    dataset.close()


def check(batch: dict[str, Any]) -> list[int]:
    """What arrives must be what was written, to the last byte; tells which samples these are."""
    for number, text, x in zip(batch["id"].tolist(), batch["text"], batch["x"].numpy(), strict=True):
        written = sample(number)
        assert text == written["text"]
        assert np.array_equal(x, written["x"])
    numbers: list[int] = batch["id"].tolist()
    return numbers


def check_frames(batch: dict[str, Any]) -> list[int]:
    """Each picture shows the number of its frame."""
    numbers: list[int] = batch["index"].tolist()
    assert codes_of(batch[TOP]) == numbers
    return numbers


def save(out: Path, value: dict[str, Any]) -> None:
    """Replace the file as a whole: a process that is killed meanwhile leaves the last one."""
    (out / "saving.json").write_text(json.dumps(value))
    (out / "saving.json").replace(out / "saved.json")


def say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
