"""Run in the environment of lerobot: reads a dataset with it, and reports every sample.

Its decoders need libraries that are not everywhere, so frames come from PyAV: by their times, within the tolerance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import torchvision.transforms


class ToTensor:
    """Stands in for the one of torchvision, which no build of fits this torch."""

    def __call__(self, image: Any) -> Any:
        return torch.tensor(np.asarray(image)).permute(2, 0, 1).float() / 255


torchvision.transforms.ToTensor = ToTensor

from lerobot.datasets import lerobot_dataset  # noqa: E402  after what it imports was replaced


def decode(path: Path, timestamps: list[float], tolerance_s: float, backend: str | None = None) -> Any:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    times = np.array([frame.time for frame in frames])
    nearest = [int(np.abs(times - time).argmin()) for time in timestamps]
    assert all(abs(times[each] - time) < tolerance_s for each, time in zip(nearest, timestamps, strict=True))
    pixels = np.stack([frames[each].to_ndarray(format="rgb24") for each in nearest])
    return torch.tensor(pixels).permute(0, 3, 1, 2).float() / 255


lerobot_dataset.decode_video_frames = decode


def codes(pictures: Any) -> list[int]:
    """Read the numbers that pictures show: 12 stripes, the first one the highest bit."""
    stripes = [(pictures[..., bit * 5 + 1 : bit * 5 + 4].mean(dim=(1, 2, 3)) > 0.5) for bit in range(12)]
    return [int("".join("1" if stripe[each] else "0" for stripe in stripes), 2) for each in range(len(pictures))]


def main() -> None:
    top, deltas = "observation.images.top", {"observation.images.top": [-0.1, 0.0, 0.1], "action": [0.0, 0.1]}
    dataset = lerobot_dataset.LeRobotDataset(
        "me/arm", root=sys.argv[1], delta_timestamps=deltas, video_backend="pyav", download_videos=False
    )
    samples = []
    for number in range(len(dataset)):
        sample = dataset[number]
        plain = {key: value.tolist() for key, value in sample.items() if hasattr(value, "tolist") and value.ndim < 3}
        texts = {key: value for key, value in sample.items() if isinstance(value, str)}
        gray = round(float(sample["observation.image"].mean()) * 255)
        samples.append({**plain, **texts, "keys": list(sample), "codes": codes(sample[top]), "gray": gray})
    stats = {key: {name: value.tolist() for name, value in each.items()} for key, each in dataset.meta.stats.items()}
    report = {
        "episodes": dataset.meta.total_episodes,
        "frames": len(dataset),
        "stats": stats,
        "samples": samples,
    }
    Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
