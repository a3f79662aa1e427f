"""The videos of a process: open files used last, surplus frames, and counts of both.

All frames that are wanted of a file at once are decoded in one pass over each group of pictures that holds some of
them. What is decoded on the way is kept as it comes from the decoder, which takes half the memory of RGB.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.frame_cache import FrameCache
from penstock.episodes.video import RgbConverter, VideoFile, frame_bytes, group_by_keyframe
from penstock.errors import CorruptShardError, FrameTimeError, ObjectNotFoundError
from penstock.processes import abandon_in_children

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.counters import Row

COUNTED = ("hits", "misses", "evictions", "frames_decoded", "frames_used", "frames_kept", "decode_ns")

_of_parents: list[Videos] = []  # in a forked child, and never closed there


@dataclass(frozen=True, slots=True)
class DecodedFrames:
    """Frames of one file, each once, and which of them is at each of the times that were asked for."""

    frames: npt.NDArray[np.uint8]  # (frames, height, width, 3)
    places: npt.NDArray[np.intp]


class Videos:
    """Decodes frames of video files by their times. Safe for threads; each process has its own.

    Args:
        max_open: How many files stay open.
        frame_cache_bytes: How much memory surplus frames may take.
        row: What is counted goes here.
    """

    def __init__(self, max_open: int, frame_cache_bytes: int, row: Row) -> None:
        self._max_open, self._row = max_open, row
        self._open: OrderedDict[str, VideoFile] = OrderedDict()
        self._kept = FrameCache(frame_cache_bytes)
        self._rgb = RgbConverter()
        self._lock = threading.Lock()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Leave open what a parent has open: to close a decoder is to wait for its threads, which a child lacks."""
        _of_parents.append(self)

    def read(
        self,
        path: str,
        seconds: npt.NDArray[np.float64],
        tolerance_s: float,
        locate: Callable[[str], str] = str,
    ) -> DecodedFrames:
        """Give the frames shown at these times, each within the tolerance; the times may come in any order.

        `locate` says where on this machine the file is; it is asked only if the file is not open.
        """
        with self._lock:
            file = self._file(path, locate)
            numbers, off = file.index.nearest(seconds)
            if (off >= tolerance_s).any():
                worst = int(np.argmax(off))
                raise FrameTimeError(
                    f"{path} has no frame at {seconds[worst]:.6f} s: the nearest one is {off[worst]:.6f} s away, and"
                    f" tolerance_s={tolerance_s}",
                    file=path,
                    seconds=float(seconds[worst]),
                )
            wanted, places = np.unique(numbers, return_inverse=True)
            begun_ns = perf_counter_ns()
            frames = self._frames(path, file, wanted)
            self._row.add({"frames_used": len(wanted), "decode_ns": perf_counter_ns() - begun_ns})
            return DecodedFrames(frames, places.reshape(-1))

    def _frames(self, path: str, file: VideoFile, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        found: dict[int, Any] = {}
        for number in wanted.tolist():
            frame = self._kept.get((path, number))
            if frame is not None:
                found[number] = frame
        self._row.add({"frames_kept": len(found)})
        missing = np.array([number for number in wanted.tolist() if number not in found], np.int64)
        for group in group_by_keyframe(missing, file.index):
            self._decode(path, file, group, found)
        lost = [number for number in wanted.tolist() if number not in found]
        if lost:
            raise CorruptShardError(f"{path} ends, or is damaged, before frame {lost[0]}", file=path, frame=lost[0])
        pictures = [self._rgb.convert(found[number]) for number in wanted.tolist()]
        if len({picture.shape for picture in pictures}) > 1:
            raise CorruptShardError(f"{path} has frames of different sizes", file=path)
        return np.stack(pictures)

    def _decode(self, path: str, file: VideoFile, group: npt.NDArray[np.int64], found: dict[int, Any]) -> None:
        wanted = set(group.tolist())
        num_decoded = 0
        for number, frame in file.decode(group):
            num_decoded += 1
            if number in wanted:
                found[number] = frame
            self._kept.put((path, number), frame, frame_bytes(frame))
        self._row.add({"frames_decoded": num_decoded})

    def _file(self, path: str, locate: Callable[[str], str]) -> VideoFile:
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            self._row.add({"hits": 1})
            return file
        self._row.add({"misses": 1})
        while len(self._open) >= self._max_open:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
            self._row.add({"evictions": 1})
        try:
            file = VideoFile(locate(path))
        except ObjectNotFoundError:  # the cache may have removed it just now: it is fetched again, or missing
            file = VideoFile(locate(path))
        self._open[path] = file
        return file

    @property
    def num_open(self) -> int:
        """How many files are open."""
        return len(self._open)

    def close(self) -> None:
        """Close all files and drop all frames."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._kept.clear()
