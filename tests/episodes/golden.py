"""Recorded datasets, and what a map-style reader of lerobot gave for them."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_OURS = Path(__file__).parents[1] / "golden"
# A dataset for other tests, which know what it holds: always the one of this repository.
ROOT = _OURS / "lerobot" / "two_cams_av1"
TOP, WRIST = "observation.images.top", "observation.images.wrist"
LENGTHS = [23, 7, 31, 1, 18, 12, 40, 5, 26]
NUM_FRAMES = 163


def recordings() -> list[Path]:
    """Find all recorded datasets, whatever they are called."""
    folder = Path(os.environ.get("PENSTOCK_GOLDEN") or _OURS)
    found = sorted(path.parent for path in folder.rglob("expected.json") if (path.parent / "meta/info.json").is_file())
    assert found, f"{folder} has no recorded dataset of LeRobot"
    return found


@cache
def expected(root: Path = ROOT) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((root / "expected.json").read_text())
    return answers


def recorded_windows() -> list[Any]:
    """Return each recording with each of the windows that it has answers for."""
    each = [(root, name) for root in recordings() for name in expected(root)["windows"]]
    return [pytest.param(root, name, id=f"{root.name}-{name}") for root, name in each]


def code_of(picture: np.ndarray[Any, Any]) -> int:
    """Read the number that a frame carries: 16 squares of 8 × 8 pixels, the first one the highest bit."""
    gray = picture.mean(axis=0)[:32, :32].reshape(4, 8, 4, 8).mean(axis=(1, 3)).ravel()
    word = int("".join("1" if value > gray_limit(picture) else "0" for value in gray), 2)
    return word * 30599 % 65536


def gray_limit(picture: np.ndarray[Any, Any]) -> float:
    return 127.5 if picture.max() > 1.0 else 0.5


def codes_of(pictures: Any) -> list[int]:
    """Read the numbers of a picture, or of each one in a window."""
    array = np.asarray(pictures)
    return [code_of(picture) for picture in array.reshape(-1, *array.shape[-3:])]
