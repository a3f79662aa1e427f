"""The videos of a process: open files used last, frames wanted next, and counts of both.

What a pass will read is known beforehand. So a thread that decodes a frame goes on, within its group of pictures, to
those that samples will soon want, and keeps these; all that fit into `frame_cache_bytes`, as they come from the
decoder, which takes half the memory of RGB. Threads do the same ahead of the reader.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.open_clips import OpenClips
from penstock.episodes.upcoming import NEVER, ClipKey, FrameCache, Keeping, WantedFrames
from penstock.episodes.video.backend import group_by_keyframe
from penstock.errors import CorruptShardError, FrameTimeError, PenstockError
from penstock.processes import abandon_in_children

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from penstock.counters import Row
    from penstock.episodes.open_clips import ClipLocator, OpenClip
    from penstock.episodes.upcoming import WantedFrame
    from penstock.episodes.video.backend import VideoBackend
    from penstock.types import Int64Array
    from penstock.wire.quota import OpenShardQuota

COUNTED = ("hits", "misses", "evictions", "frames_decoded", "frames_used", "frames_kept", "bytes_used", "decode_ns")

_GONE_ON = 64  # frames at most, to the next group
_LEFT_OVER = 8  # frames at most, of a group that is decoded
_ROOM_FOR_LEFT_OVERS = 64 * _LEFT_OVER  # of as many groups as a pool has
_LOOKED_AT = 64  # wants, to find one that no thread is busy with
_of_parents: list[Videos] = []  # in a forked child, and never closed there


@dataclass(frozen=True, slots=True)
class DecodedFrames:
    """Frames of one clip, each once, and which of them is at each of the times that were asked for."""

    frames: list[npt.NDArray[np.uint8]]  # each of (height, width, 3)
    places: npt.NDArray[np.intp]


class Videos:
    """Decodes frames of episodes by their times. Safe for threads; each process has its own.

    Args:
        locator: Finds the files.
        backend: Decodes them.
        max_open: How many files stay open.
        frame_cache_bytes: How much memory frames may take that are wanted later.
        num_threads: How many threads decode ahead of the reader; 0: the reader does it.
        keeping: For how long frames are kept; by default, for all samples that were announced.
        row: What is counted goes here.
    """

    def __init__(
        self,
        locator: ClipLocator,
        backend: VideoBackend,
        *,
        max_open: int,
        frame_cache_bytes: int,
        num_threads: int,
        row: Row,
        keeping: Keeping | None = None,
    ) -> None:
        self._keeping = keeping or Keeping()
        is_in_order = not self._keeping.is_for_random_order
        self._keeps_left_overs = is_in_order and self._keeping.samples_kept >= _ROOM_FOR_LEFT_OVERS
        self._locator, self._num_threads, self._row = locator, num_threads, row
        self._kept = FrameCache(frame_cache_bytes)
        self._wanted = WantedFrames()
        self._failed: set[ClipKey] = set()  # by threads: their reader is told
        self._pictures = backend.make_pictures(frame_cache_bytes)
        self._rgb_lock = threading.Lock()
        self._changed = threading.Condition()  # guards all of the above, and the open files
        self._open = OpenClips(locator, backend, max_open, self._changed, row)
        self._threads: set[threading.Thread] = set()
        self._is_closing = False
        abandon_in_children(self)

    def after_fork_in_child(self) -> None:
        """Leave open what a parent has open: to close a decoder is to wait for its threads, which a child lacks."""
        _of_parents.append(self)

    @property
    def num_open(self) -> int:
        """How many files are open."""
        return len(self._open)

    def announce(self, samples: Iterable[Iterable[tuple[ClipKey, Iterable[int]]]], *, is_first: bool) -> None:
        """Hear which frames the next samples need; the first ones of a pass replace all that was said before."""
        with self._changed:
            if is_first:
                self._wanted.clear()
                self._failed.clear()
            for wants in samples:
                self._wanted.add_sample(wants)
            self._start_threads()

    def read(
        self, clip: ClipKey, frames: Int64Array, seconds: npt.NDArray[np.float64], tolerance_s: float
    ) -> DecodedFrames:
        """Return the frames shown at these times of an episode, each within the tolerance; they may come in any order.

        `frames` are the numbers under which they were announced.
        """
        begun_ns = perf_counter_ns()
        try:
            found, wanted, places = self._read(clip, frames, seconds, tolerance_s)
        except PenstockError:
            with self._changed:  # they cannot be read: if still wanted, they would stay the next ones for ever
                for frame in set(frames.tolist()):
                    self._wanted.use(clip, frame)
            raise
        with self._changed:
            self._start_threads()
        pictures = self._as_rgb(clip, [found[number] for number in wanted.tolist()])
        self._row.add({"frames_used": len(wanted), "decode_ns": perf_counter_ns() - begun_ns})
        return DecodedFrames(pictures, places.reshape(-1))

    def keep_to(self, share: OpenShardQuota) -> None:
        """Keep no more files open than fit into this process's share of the cache."""
        self._open.keep_to(share)

    def close(self) -> None:
        """Close all files and drop all frames, once the threads that decode are done with what they have begun."""
        with self._changed:
            self._is_closing = True
            self._wanted.clear()
            self._changed.wait_for(lambda: not self._threads)
            self._open.close()
            self._kept.clear()
            self._pictures.clear()
            self._is_closing = False

    # --- Frames -------------------------------------------------------------------------------------------------

    def _read(
        self, clip: ClipKey, frames: Int64Array, seconds: npt.NDArray[np.float64], tolerance_s: float
    ) -> tuple[dict[int, Any], Int64Array, npt.NDArray[np.intp]]:
        """Return frames by their numbers in the file, these numbers, and which of them is at each time."""
        held = self._open.hold(clip)
        try:
            numbers, off = held.file.index.nearest(held.begin_s + seconds)
            self._check_times(clip, seconds, off, tolerance_s)
            wanted, places = np.unique(numbers, return_inverse=True)
            found = self._frames(clip, held, wanted)
            self._row.add({"bytes_used": held.file.index.num_bytes(wanted)})
            # Before another thread gets the file, which would decode again what is not noted as used.
            self._note_uses(clip, held, set(zip(numbers.tolist(), frames.tolist(), strict=True)), found)
        finally:
            self._open.release(held)
        return found, wanted, places

    def _check_times(
        self, clip: ClipKey, seconds: npt.NDArray[np.float64], off: npt.NDArray[np.float64], tolerance_s: float
    ) -> None:
        if (off < tolerance_s).all():
            return
        worst = int(np.argmax(off))
        name, at = self._locator.name(clip), self._locator.begin_s(clip) + float(seconds[worst])
        raise FrameTimeError(
            f"{name} has no frame at {at:.6f} s: the nearest one is {off[worst]:.6f} s away, and"
            f" tolerance_s={tolerance_s}",
            file=name,
            seconds=at,
        )

    def _frames(self, clip: ClipKey, held: OpenClip, wanted: Int64Array) -> dict[int, Any]:
        """Return frames by their numbers in the file, decoding those that are not kept."""
        with self._changed:
            found = {number: self._kept.get((clip, number - held.first)) for number in wanted.tolist()}
        missing = np.array([number for number, frame in found.items() if frame is None], np.int64)
        self._row.add({"frames_kept": len(found) - len(missing)})
        for group in group_by_keyframe(missing, held.file.index):
            if found[int(group[-1])] is None:  # it may have come with a group before
                self._decode(clip, held, group, found)
        lost = [number for number, frame in found.items() if frame is None]
        if lost:
            name = self._locator.name(clip)
            in_clip = float(held.file.index.ticks[lost[0]] * held.file.index.tick_s)
            at = in_clip - held.begin_s + self._locator.begin_s(clip)
            raise CorruptShardError(f"{name} ends, or is damaged, before {at:.6f} s", file=name, seconds=at)
        return found

    def _note_uses(self, clip: ClipKey, held: OpenClip, used: set[tuple[int, int]], found: dict[int, Any]) -> None:
        """Note that a sample has got frames, numbered in the file and in the episode; keep those wanted again."""
        with self._changed:
            for number, frame in used:
                use = self._wanted.use(clip, frame)
                if use < NEVER or not self._wanted.is_known:
                    self._keep((clip, number - held.first), found[number], use)
                else:
                    self._kept.drop((clip, number - held.first))
            if self._wanted.is_done:  # a pass is over: others may need the memory
                self._pictures.clear()

    def _decode(
        self, clip: ClipKey, held: OpenClip, group: Int64Array, found: dict[int, Any], least_until: float = 0
    ) -> None:
        """Decode frames of one group of pictures, and on to those that will soon be wanted."""
        until = self._until(clip, held, group, least_until)
        first, last = self._stretch(clip, held, group, until)
        try:
            self._decode_stretch(clip, held, (first, last), until, found)
        except CorruptShardError:
            # What was decoded beside the group may be damaged, and the group not.
            own = int(group[0]), int(group[-1])
            if (first, last) == own:
                raise
            if any(found.get(number) is None for number in group.tolist()):
                self._decode_stretch(clip, held, own, until, found)

    def _decode_stretch(
        self, clip: ClipKey, held: OpenClip, stretch: tuple[int, int], until: float, found: dict[int, Any]
    ) -> None:
        num_decoded, (first, last) = 0, stretch
        for number, make in held.file.decode(first, last):
            num_decoded += 1
            place = clip, number - held.first
            if number in found:  # a decoder that goes on would have memory for another one
                found[number] = self._pictures.pack(make())[0] if number < last else make()
            elif self._is_surplus_kept(place, until):
                frame = make()
                with self._changed:
                    self._keep(place, frame, self._wanted.next_use(*place))
        self._row.add({"frames_decoded": num_decoded})

    def _is_surplus_kept(self, place: tuple[ClipKey, int], until: float) -> bool:
        """Return whether a frame is kept that is decoded on the way to others."""
        with self._changed:
            use = self._wanted.next_use(*place)
            if (use == NEVER and self._wanted.is_known) or (use > until and self._keeping.is_for_random_order):
                return False
            return place not in self._kept and self._kept.would_keep(use)

    def _keep(self, place: tuple[ClipKey, int], frame: Any, use: float) -> None:
        self._kept.put(place, *self._pictures.pack(frame), use)

    def _until(self, clip: ClipKey, held: OpenClip, group: Int64Array, least_until: float) -> float:
        """Return up to which sample frames of a group are kept that is decoded now."""
        index, given = held.file.index, set(group.tolist())
        keyframe = int(index.keyframe_of(group[:1])[0])
        begin, end = int(index.keyframes[keyframe]), self._end_of_group(index, keyframe)
        with self._changed:
            now = max(self._wanted.now, least_until)
            wants = [
                (self._wanted.next_use(clip, number - held.first), number + 1 - begin)
                for number in range(begin, end)
                if number not in given and (clip, number - held.first) not in self._kept
            ]
        return self._keeping.until(now, int(group[-1]) + 1 - begin, end - begin, wants)

    def _stretch(self, clip: ClipKey, held: OpenClip, group: Int64Array, until: float) -> tuple[int, int]:
        """Return from where to where to decode: the group as far as it is wanted, and those beside it that all are."""
        first, last = int(group[0]), int(group[-1])
        index = held.file.index
        keyframe = int(index.keyframe_of(group[:1])[0])
        at = held.file.next_frame
        with self._changed:
            if at is not None and first - _GONE_ON <= at < first:
                # Frames of the group before are left: going back to them later would cost all of that group.
                first = at if all(self._is_worth(clip, held, each, until) for each in range(at, first)) else first
            end = self._end_of_group(index, keyframe)
            last = max([last, *(each for each in range(last + 1, end) if self._is_worth(clip, held, each, until))])
            if self._keeps_left_overs and end - _LEFT_OVER <= last + 1 < end:
                # The next frames may be of another group: going back to these few would cost all of this one.
                is_worth = all(self._is_worth(clip, held, each, NEVER) for each in range(last + 1, end))
                last = end - 1 if is_worth else last
            if last < end - 1:
                return first, last
            following = keyframe + 1
            while following < len(index.keyframes) and self._is_all_worth(clip, held, following, until):
                last, following = self._end_of_group(index, following) - 1, following + 1
            while first != at and keyframe > 0 and self._is_all_worth(clip, held, keyframe - 1, until):
                keyframe -= 1
                first = int(index.keyframes[keyframe])
        return first, last

    def _end_of_group(self, index: Any, keyframe: int) -> int:
        keyframes = index.keyframes
        return int(keyframes[keyframe + 1]) if keyframe + 1 < len(keyframes) else len(index)

    def _is_worth(self, clip: ClipKey, held: OpenClip, number: int, until: float) -> bool:
        """Return whether a frame is wanted, not at hand, and would be kept until then."""
        place = clip, number - held.first
        use = self._wanted.next_use(*place)
        return use < NEVER and use <= until and place not in self._kept and self._kept.would_keep(use)

    def _is_all_worth(self, clip: ClipKey, held: OpenClip, keyframe: int, until: float) -> bool:
        index = held.file.index
        numbers = range(int(index.keyframes[keyframe]), self._end_of_group(index, keyframe))
        return all(self._is_worth(clip, held, number, until) for number in numbers)

    def _as_rgb(self, clip: ClipKey, frames: list[Any]) -> list[npt.NDArray[np.uint8]]:
        with self._rgb_lock:
            pictures = [self._pictures.to_rgb(frame) for frame in frames]
        if len({picture.shape for picture in pictures}) > 1:
            name = self._locator.name(clip)
            raise CorruptShardError(f"{name} has frames of different sizes", file=name)
        return pictures

    # --- Threads ------------------------------------------------------------------------------------------------

    def _start_threads(self) -> None:
        """Have threads decode what is wanted next; each ends when it finds nothing that there is room for."""
        while len(self._threads) < self._num_threads and not self._is_closing and self._next_want() is not None:
            thread = threading.Thread(target=self._decode_ahead, name="penstock-video", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _next_want(self) -> WantedFrame | None:
        return next(filter(self._is_for_threads, self._wanted.soonest(_LOOKED_AT)), None)

    def _is_for_threads(self, want: WantedFrame) -> bool:
        if want.clip in self._failed or (want.clip, want.frame) in self._kept or self._open.is_busy(want.clip):
            return False
        return want.turn <= self._wanted.now + self._keeping.most_ahead and self._kept.would_keep(want.turn)

    def _decode_ahead(self) -> None:
        try:
            while True:
                with self._changed:
                    want = None if self._is_closing else self._next_want()
                if want is None:
                    return
                try:
                    self._decode_want(want)
                except PenstockError:  # its reader is told
                    with self._changed:
                        self._failed.add(want.clip)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()

    def _is_still_wanted(self, want: WantedFrame) -> bool:
        with self._changed:
            is_open = self._wanted.next_use(want.clip, want.frame) <= want.turn
            return is_open and (want.clip, want.frame) not in self._kept and self._kept.would_keep(want.turn)

    def _decode_want(self, want: WantedFrame) -> None:
        begun_ns = perf_counter_ns()
        held = self._open.hold(want.clip)
        try:
            number = held.first + want.frame
            if not self._is_still_wanted(want):  # another thread was quicker, or the one that reads
                return
            if number < len(held.file.index):
                self._decode(want.clip, held, np.array([number]), {}, want.turn)
            if self._is_still_wanted(want):  # there is no such frame: its reader sees to it
                with self._changed:
                    self._failed.add(want.clip)
        finally:
            self._open.release(held)
            self._row.add({"decode_ns": perf_counter_ns() - begun_ns})
