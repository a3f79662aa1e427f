"""What a library has to do that decodes videos: open files, give frames by number, and turn them into RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.outside_text import Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from penstock.formats.mp4.track import FrameIndex
    from penstock.types import Int64Array

PURPOSE = "decoding video"
DEEP_GRAY = Bounded(r"gray\d+[bl]e", 64)  # what FFmpeg calls pixels of one number of more than 8 bits


class VideoFile(Protocol):
    """An open video file. For one thread at a time.

    It goes on where it stopped, without a seek, if what is wanted next comes later in the same group of pictures.
    """

    index: FrameIndex

    @property
    def next_frame(self) -> int | None:
        """The frame that comes next without a seek, if that is known."""

    def decode(self, first: int, last: int) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Decode from one frame to another, and all others on the way to the first: numbers, and what makes each frame.

        A frame that is not wanted need not be made.
        """

    def close(self) -> None:
        """Close the file."""


class Pictures(Protocol):
    """Keeps frames in a form of its own, and turns them into pictures; for one process."""

    def pack(self, frame: Any) -> tuple[Any, int]:
        """Return a frame, packed or not, as it is kept, in memory of its own, and how many bytes that takes."""

    def to_rgb(self, frame: Any) -> npt.NDArray[Any]:
        """Return a frame, packed or not, as RGB, or uint16 if it is deep gray, colors last.."""

    def clear(self) -> None:
        """Release memory that lies ready for other frames."""


class VideoBackend(Protocol):
    """A library that decodes videos. It is sent to workers, and makes frames of a kind of its own."""

    @property
    def pixel_bytes(self) -> float:
        """What each pixel of a frame takes in memory while it is kept."""

    def open(self, path: str, name: str) -> VideoFile:
        """Open a file; `name` is what errors call it."""

    def make_pictures(self, limit_bytes: int) -> Pictures:
        """Return what keeps frames, which take so much memory at most."""


def group_by_keyframe(frames: Int64Array, index: FrameIndex) -> list[Int64Array]:
    """Cut ascending frame numbers into those that are decoded from the same keyframe, and so in one pass."""
    if not len(frames):
        return []
    cuts = np.flatnonzero(np.diff(index.keyframe_of(frames))) + 1
    return np.split(frames, cuts)
