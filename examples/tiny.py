"""What the training examples share: a line to learn, kept as a dataset, and a note of what each step was trained on."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock import MDSWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NUM_SAMPLES = 250
GLOBAL_BATCH = 10  # of all ranks, so that a job that goes on with fewer of them takes the same steps


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="folder of the dataset; written if it is not there")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, help="folder to save to, and to go on from if something is there")
    parser.add_argument("--save-every", type=int, default=7, help="steps between checkpoints")
    parser.add_argument("--seen", type=Path, help="folder to note in what each rank was trained on in each step")
    return parser


def arguments() -> argparse.Namespace:
    return parser().parse_args()


def write_line(folder: Path) -> None:
    """Write samples of y = 2x + 1, unless they are there."""
    if (folder / "index.json").exists():
        return
    numbers = np.random.default_rng(0).uniform(-1, 1, NUM_SAMPLES).astype(np.float32)
    with MDSWriter(
        out=folder, columns={"id": "int", "x": "ndarray:float32:1", "y": "ndarray:float32:1"}, size_limit="1kb"
    ) as writer:
        for number, x in enumerate(numbers):
            writer.write({"id": number, "x": np.array([x]), "y": np.array([2 * x + 1])})


def batch_size() -> int:
    """Return the samples per batch on each rank."""
    return GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", "1"))


def num_steps(epochs: int) -> int:
    """Count the steps of a whole run."""
    return epochs * NUM_SAMPLES // GLOBAL_BATCH


def note(seen: Path | None, step: int, ids: list[int]) -> None:
    """Write down what this rank is trained on in a step."""
    if seen is not None:
        seen.mkdir(parents=True, exist_ok=True)
        with (seen / f"rank{os.environ.get('RANK', '0')}.jsonl").open("a") as file:
            file.write(json.dumps([step, ids]) + "\n")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint that is whole or not there, whenever the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, part := path.with_suffix(".part"))
    part.replace(path)


def fit(loader: Iterable[dict[str, torch.Tensor]], epochs: int) -> Iterator[int]:
    """Learn the line from the batches of a loader, and give the number of each training step that was taken."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batch for _ in range(epochs) for batch in loader):
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step
