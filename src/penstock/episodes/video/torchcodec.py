"""Videos decoded by torchcodec, with the FFmpeg of the system. Frames come as RGB, and are kept as such."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.video.backend import DEEP_GRAY, PURPOSE
from penstock.episodes.video.pyav import read_packets
from penstock.errors import ConfigError, CorruptShardError, ObjectNotFoundError
from penstock.extras import require
from penstock.formats.mp4.track import FrameIndex, read_frame_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

_NEEDS = "FFmpeg 4 to 8 on this machine, such as apt-get install ffmpeg or conda install ffmpeg brings it"
_ERRORS = (RuntimeError, ValueError, IndexError)  # what torchcodec raises


class TorchcodecBackend:
    """Decodes with torchcodec, which is looked for at once."""

    pixel_bytes = 3.0

    def __init__(self) -> None:
        _decoder_class()

    def open(self, path: str, name: str) -> TorchcodecFile:
        """Open a file."""
        return TorchcodecFile(path, name)

    def make_pictures(self, limit_bytes: int) -> _AsTheyCome:  # noqa: ARG002
        """Return what keeps frames as they are: each has memory of its own, and is RGB."""
        return _AsTheyCome()


def _decoder_class() -> Any:
    return require("torchcodec.decoders", extra="torchcodec", purpose=PURPOSE, needs=_NEEDS).VideoDecoder


class _AsTheyCome:
    def pack(self, frame: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], int]:
        return frame, frame.nbytes

    def to_rgb(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return frame

    def clear(self) -> None:
        pass  # no memory lies ready


class TorchcodecFile:
    """An open video file. For one thread at a time."""

    def __init__(self, path: str, name: str = "") -> None:
        self._name = name or path
        make = _decoder_class()
        try:
            self.index = read_frame_index(path) or read_packets(path, self._name)
            # It is told where all frames and keyframes are: else it reads the whole file for that, or guesses.
            self._decoder: Any = make(
                path, dimension_order="NHWC", num_ffmpeg_threads=1, custom_frame_mappings=_as_mappings(self.index)
            )
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"the video {self._name} is missing", file=self._name) from error
        except CorruptShardError:
            raise
        except _ERRORS as error:
            if not Path(path).exists():
                raise ObjectNotFoundError(f"the video {self._name} is missing", file=self._name) from error
            text = f"{self._name} cannot be opened as a video: {_first_line(error)}"
            raise CorruptShardError(text, file=self._name) from error
        if DEEP_GRAY.fullmatch(str(self._decoder.metadata.pixel_format)):
            text = f"{self._name} has pixels of more than 8 bits, which torchcodec loses: use video_backend='pyav'"
            raise ConfigError(text, file=self._name)
        self._next: int | None = None

    @property
    def next_frame(self) -> int | None:
        """The frame that comes next without a seek, if that is known."""
        return self._next

    def decode(self, first: int, last: int) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Decode from one frame to another, and all others on the way to the first.

        A frame that is not wanted is decoded, but never turned into RGB.
        """
        keyframe = int(self.index.keyframes[self.index.keyframe_of(np.array([first]))[0]])
        begin = keyframe if self._next is None or not keyframe <= self._next <= first else self._next
        for number in range(begin, last + 1):
            yield number, partial(self._frame, number)

    def _frame(self, number: int) -> npt.NDArray[np.uint8]:
        try:
            found = self._decoder.get_frame_at(number)
        except _ERRORS as error:
            self._next = None
            raise self._damaged(number, _first_line(error)) from error
        if abs(found.pts_seconds - self.index.times[number]) > self.index.tick_s / 2:
            self._next = None
            raise self._damaged(number, f"the frame at {found.pts_seconds:.6f} s came instead")
        pixels: npt.NDArray[np.uint8] = found.data.numpy()
        self._next = number + 1
        return pixels

    def _damaged(self, number: int, why: str) -> CorruptShardError:
        at = float(self.index.times[number])
        return CorruptShardError(f"{self._name} cannot be decoded at {at:.6f} s: {why}", file=self._name, seconds=at)

    def close(self) -> None:
        """Close the file."""
        self._decoder = self._next = None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _as_mappings(index: FrameIndex) -> str:
    """Write where frames are as torchcodec reads it, which is as ffprobe writes it."""
    shown = np.diff(index.ticks, append=index.ticks[-1:] + 1)
    is_key = np.zeros(len(index), np.int64)
    is_key[index.keyframes] = 1
    rows = zip(index.ticks.tolist(), shown.tolist(), is_key.tolist(), strict=True)
    frames = ",".join(f'{{"pts":{tick},"duration":{ticks},"key_frame":{key}}}' for tick, ticks, key in rows)
    return f'{{"frames":[{frames}]}}'
