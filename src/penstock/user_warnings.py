"""Warnings that point at the user's own line, however deep in the library they are raised."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_INSIDE = str(Path(__file__).parent)


def warn_user(text: str) -> None:
    """Warn at the line that called into the library; in a process where there is none, where it is raised."""
    frame: FrameType | None = sys._getframe(1)
    stacklevel = 2
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
        stacklevel += 1
    warnings.warn(text, UserWarning, stacklevel=2 if frame is None else stacklevel)
