"""Which frames the next samples need, and when: what a pass has announced and not read yet."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.episodes.kept.frame_cache import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class ClipKey(NamedTuple):
    """The video of one camera in one episode."""

    camera: str
    episode: int  # its place in the table


class WantedFrame(NamedTuple):
    """A frame that a sample needs: which sample, counted from the beginning of the pass, and which frame."""

    turn: int
    clip: ClipKey
    frame: int


class WantedFrames:
    """The frames that are wanted, by clip, each with the samples that want it, soonest first. Not for two threads."""

    def __init__(self) -> None:
        self._uses: dict[ClipKey, dict[int, list[int]]] = {}  # few each, so a list: a deque takes ten times its room
        self._queue: deque[WantedFrame] = deque()
        self.num_samples = 0  # that were announced
        self.is_known = False  # whether anything was announced: if not, any frame may be wanted
        self.now = 0  # the last sample that has got a frame

    def clear(self) -> None:
        """Forget all."""
        self._uses.clear()
        self._queue.clear()
        self.num_samples = self.now = 0
        self.is_known = False

    @property
    def is_done(self) -> bool:
        """Whether all that was announced has come."""
        return self.is_known and not self._uses

    def add_sample(self, wants: Iterable[tuple[ClipKey, Iterable[int]]]) -> None:
        """Note what one more sample needs."""
        turn, self.num_samples = self.num_samples, self.num_samples + 1
        self.is_known = True
        for clip, frames in wants:
            uses = self._uses.setdefault(clip, {})
            for frame in frames:
                times = uses.get(frame)
                if times is None:
                    uses[frame] = [turn]
                elif times[-1] != turn:
                    times.append(turn)
                else:
                    continue
                self._queue.append(WantedFrame(turn, clip, frame))

    def next_use(self, clip: ClipKey, frame: int) -> float:
        """Return the sample that wants a frame next."""
        uses = self._uses.get(clip)
        times = None if uses is None else uses.get(frame)
        return times[0] if times else NEVER

    def use(self, clip: ClipKey, frame: int) -> float:
        """Note that a sample has got a frame, and give the one that wants it next."""
        uses = self._uses.get(clip)
        times = None if uses is None else uses.get(frame)
        if uses is None or times is None:
            return NEVER
        self.now = max(self.now, times.pop(0))
        if times:
            return times[0]
        del uses[frame]
        if not uses:
            del self._uses[clip]
        return NEVER

    def first(self, is_wanted: Callable[[WantedFrame], bool], most: int) -> WantedFrame | None:
        """Return the first want that was not met yet and that a function accepts, looking at so many at most."""
        while self._queue and not self._is_open(self._queue[0]):
            self._queue.popleft()
        open_wants = (want for want in islice(self._queue, most) if self._is_open(want))
        return next(filter(is_wanted, open_wants), None)

    def _is_open(self, want: WantedFrame) -> bool:
        return self.next_use(want.clip, want.frame) <= want.turn
