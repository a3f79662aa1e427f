"""The video files that a process has open: those used last, each for one thread at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from threading import Condition

    from penstock.counters import Row
    from penstock.episodes.episode_table import VideoSpans
    from penstock.episodes.upcoming import ClipKey
    from penstock.episodes.video.backend import VideoBackend, VideoFile
    from penstock.reading.source import Closable
    from penstock.wire.quota import OpenShardQuota


@dataclass(frozen=True, slots=True)
class LocatedClip:
    """A file that holds the video of an episode."""

    path: str
    lease: Closable | None = None  # keeps the file in place


@dataclass(frozen=True)
class ClipLocator(ABC):
    """Finds the videos of episodes. It is sent to workers."""

    videos: Mapping[str, VideoSpans]

    @property
    def clip_bytes(self) -> float:
        """How much of the cache a clip takes, on average; 0: none."""
        return 0.0

    def name(self, clip: ClipKey) -> str:
        """Name the file, as the dataset does."""
        return self.videos[clip.camera].path(clip.episode)

    def begin_s(self, clip: ClipKey) -> float:
        """Return at which second of that file the episode begins."""
        return float(self.videos[clip.camera].begins[clip.episode])

    def begin_in_clip_s(self, clip: ClipKey) -> float:
        """Return at which second of the file that is opened the episode begins."""
        return self.begin_s(clip)

    def decoder(self, clip: ClipKey) -> Hashable:
        """Name the decoder: clips of one name share one; by default, each has its own."""
        return clip

    @abstractmethod
    def locate(self, clip: ClipKey) -> LocatedClip:
        """Return where it is, waiting for it if it has to be fetched."""


class OpenClip:
    """An open file; the thread that set `is_busy` has it alone, and reads an episode that begins at `first`."""

    def __init__(self, file: VideoFile, located: LocatedClip) -> None:
        self.file, self._located = file, located
        self.begin_s, self.first = 0.0, 0
        self._firsts: dict[float, int] = {}  # the frames of the file that episodes begin with
        self.is_busy = True

    def turn_to(self, begin_s: float) -> OpenClip:
        """Get ready for an episode that begins at this second of the file."""
        if begin_s not in self._firsts:
            self._firsts[begin_s] = int(self.file.index.nearest(np.array([begin_s]))[0][0])
        self.begin_s, self.first = begin_s, self._firsts[begin_s]
        return self

    def close(self) -> None:
        """Close the file, and let the cache remove it."""
        self.file.close()
        if self._located.lease is not None:
            self._located.lease.close()


def open_clip(locator: ClipLocator, backend: VideoBackend, clip: ClipKey) -> OpenClip:
    """Open the file of an episode's video, waiting for it if it has to be fetched."""
    name = locator.name(clip)
    for is_last in (False, True):
        located = locator.locate(clip)
        try:
            return OpenClip(backend.open(located.path, name), located)
        except BaseException as error:
            if located.lease is not None:
                located.lease.close()
            if is_last or not isinstance(error, ObjectNotFoundError):
                raise  # the cache may have removed it just now: it is fetched again, or missing
    raise AssertionError


class OpenClips:
    """Opens files and closes those that were not used for the longest time.

    Args:
        locator: Finds the files.
        backend: Opens them.
        max_open: How many stay open.
        changed: Guards all of this; it is told when a file is free.
        row: Where hits, misses and evictions are counted.
    """

    def __init__(
        self, locator: ClipLocator, backend: VideoBackend, max_open: int, changed: Condition, row: Row
    ) -> None:
        self._locator, self._backend, self._max_open, self._changed = locator, backend, max_open, changed
        self._row = row
        self._most_kept = max_open  # what those who share the cache leave to this process
        self._open: OrderedDict[Hashable, OpenClip] = OrderedDict()
        self._opening: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._open)

    def hold(self, clip: ClipKey) -> OpenClip:
        """Return an open file to one thread, opening it if none has, waiting for others that hold it."""
        decoder, begin_s = self._locator.decoder(clip), self._locator.begin_in_clip_s(clip)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy(decoder))
            held = self._open.get(decoder)
            if held is not None:
                self._open.move_to_end(decoder)
                self._row.add({"hits": 1})
                held.is_busy = True
                return held.turn_to(begin_s)
            self._row.add({"misses": 1})
            self._opening.add(decoder)
            self._close_excess(min(self._max_open, max(1, self._most_kept)) - 1)
        held = None
        try:
            held = open_clip(self._locator, self._backend, clip)
        finally:
            with self._changed:
                self._opening.discard(decoder)
                if held is not None:
                    self._open[decoder] = held
                self._changed.notify_all()
        return held.turn_to(begin_s)

    def release(self, held: OpenClip) -> None:
        """Release a file."""
        with self._changed:
            held.is_busy = False
            self._close_excess(min(self._max_open, self._most_kept))
            self._changed.notify_all()

    def is_busy(self, clip: ClipKey) -> bool:
        """Return whether a thread has the file of a clip; ask with the guard held."""
        return self._is_busy(self._locator.decoder(clip))

    def keep_to(self, share: OpenShardQuota) -> None:
        """Keep no more files open than fit into this process's share of the cache."""
        most = self._max_open
        if share.num_bytes is not None:
            most = min(most, int(share.num_bytes / max(1.0, self._locator.clip_bytes)))
        self._most_kept = 0 if share.is_tight else max(1, most)
        if self._changed.acquire(blocking=False):  # else the thread that holds it looks when it is done
            try:
                self._close_excess(self._most_kept)
            finally:
                self._changed.release()

    def close(self) -> None:
        """Close all files; call it with the guard held, once no thread holds any."""
        for held in self._open.values():
            held.close()
        self._open.clear()

    def _is_busy(self, decoder: Hashable) -> bool:
        held = self._open.get(decoder)
        return decoder in self._opening or (held is not None and held.is_busy)

    def _close_excess(self, most: int) -> None:
        for decoder in [decoder for decoder, held in self._open.items() if not held.is_busy]:
            if len(self._open) <= most:
                return
            self._open.pop(decoder).close()
            self._row.add({"evictions": 1})
