"""Which library decodes videos, by the name that users of LeRobot know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.episodes.video.pyav import PyavBackend
from penstock.episodes.video.torchcodec import TorchcodecBackend

if TYPE_CHECKING:
    from penstock.episodes.video.backend import VideoBackend

BACKENDS: dict[str, type[VideoBackend]] = {"pyav": PyavBackend, "torchcodec": TorchcodecBackend}


def make_backend(name: str | None) -> VideoBackend:
    """Return what decodes videos under one of the names."""
    return BACKENDS[name or "pyav"]()
