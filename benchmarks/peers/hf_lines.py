"""Hugging Face datasets on JSON lines, in .peers/hf: as a stream, through a buffer that shuffles."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.common import Result, main
from benchmarks.peers.hf import BUFFER
from benchmarks.peers.streaming import check_samples, timed_samples
from datasets import load_dataset


def lines(directory: str, count: int, seconds: float) -> Result:
    files = [str(path) for path in sorted(Path(directory).iterdir())]
    dataset = load_dataset("json", data_files=files, split="train", streaming=True)
    dataset = dataset.shuffle(seed=0, buffer_size=BUFFER)
    check_samples("rows", dataset, count)
    return timed_samples(lambda: dataset, seconds)


if __name__ == "__main__":
    main({"lines": lines})
