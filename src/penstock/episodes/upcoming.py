"""Which frames the next samples need, and when; and which decoded ones are kept until then, within how many bytes.

To keep a frame for one sample more has a price, which follows from how much memory there is and how many frames are
mixed. With it, what is best for one group of pictures does not depend on the others: when to decode it, and which
frames to keep each time until the next.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence


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

    def soonest(self, most: int) -> Iterator[WantedFrame]:
        """Yield the first wants, of so many, that were not met yet."""
        while self._queue and not self._is_open(self._queue[0]):
            self._queue.popleft()
        return filter(self._is_open, islice(self._queue, most))

    def _is_open(self, want: WantedFrame) -> bool:
        return self.next_use(want.clip, want.frame) <= want.turn


NEVER = math.inf  # wanted at no time that is known


class _Kept(NamedTuple):
    frame: Any
    num_bytes: int
    place: int  # in the order in which they came


class FrameCache:
    """Keeps frames by when they are wanted; of those not known to be wanted, the newest. Not for two threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: dict[Hashable, _Kept] = {}
        self._by_use: list[tuple[float, int, Hashable]] = []  # a heap, what goes first on top; some of it is outdated
        self._numbers = count()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(self, key: Hashable) -> Any:
        """Return a frame, or None if it is not here."""
        found = self._kept.get(key)
        return None if found is None else found.frame

    def would_keep(self, use: float) -> bool:
        """Return whether there is room for a frame that is wanted then, free or taken by what is wanted later."""
        if self.num_bytes < self._limit:
            return True
        self._drop_outdated()
        return bool(self._by_use) and use < -self._by_use[0][0]

    def put(self, key: Hashable, frame: Any, num_bytes: int, use: float = NEVER) -> None:
        """Keep a frame, or go on keeping it for another use; those wanted last of all make room for it."""
        if num_bytes > self._limit:
            return
        self.drop(key)
        place = next(self._numbers)
        self._kept[key] = _Kept(frame, num_bytes, place)
        self.num_bytes += num_bytes
        heapq.heappush(self._by_use, (-use, place, key))
        while self.num_bytes > self._limit:
            self._drop_outdated()
            self.drop(self._by_use[0][2])
        if len(self._by_use) > 2 * len(self._kept) + 64:
            self._by_use = [item for item in self._by_use if self._is_current(item)]
            heapq.heapify(self._by_use)

    def drop(self, key: Hashable) -> None:
        """Keep a frame no longer, if it is here."""
        found = self._kept.pop(key, None)
        if found is not None:
            self.num_bytes -= found.num_bytes

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self._by_use.clear()
        self.num_bytes = 0

    def _is_current(self, item: tuple[float, int, Hashable]) -> bool:
        found = self._kept.get(item[2])
        return found is not None and found.place == item[1]

    def _drop_outdated(self) -> None:
        while self._by_use and not self._is_current(self._by_use[0]):
            heapq.heappop(self._by_use)


_MOST_WANTS = 256  # that are looked at: more cost more time than they save
# What keeping a frame costs at once, in frames that are decoded: to copy it, and to find it again. It is put a little
# high, so that no pass begins with work that pays off at its end only, as it would where groups of pictures are short.
COST_OF_KEEPING = 0.5


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much memory there is for frames, and how many they are kept of.

    Args:
        most_ahead: For how many samples a frame is kept at most.
        samples_kept: Of how many samples all frames fit into the memory.
        samples_mixed: How many samples are in random order; 0: their order fits the video, and frames are wanted soon.
    """

    most_ahead: float = math.inf
    samples_kept: int = 0
    samples_mixed: int = 0

    @property
    def is_for_random_order(self) -> bool:
        """Whether frames that are wanted late are better decoded again."""
        return self.samples_mixed > 0

    def until(self, now: float, num_first: int, group_frames: int, wants: Iterable[tuple[float, int]]) -> float:
        """Return up to which sample frames of a group are kept that is decoded now.

        Args:
            now: The sample that it is decoded for.
            num_first: How many frames are decoded for that one.
            group_frames: How many frames the group has.
            wants: The samples that want more frames of the group, each with how many are decoded to get that frame.
        """
        end = now + self.most_ahead
        if not self.is_for_random_order:
            return end
        soonest = sorted(want for want in wants if want[0] <= end)[:_MOST_WANTS]
        num_kept = best_to_keep(now, num_first, soonest, self._price(group_frames))
        return soonest[num_kept - 1][0] if num_kept else now

    def _price(self, group_frames: int) -> float:
        """Return what it is worth to keep one frame for one sample less, in frames that are decoded.

        Say that whenever a group is decoded, its frames of the next D samples are kept, and it is decoded again for the
        first sample after these that wants it. Then frames of D² / 2 / (D + samples_mixed / group_frames) samples are
        kept on average. This says which D fits the memory; and the price is the one at which no other D is better.
        """
        kept, between = max(1, self.samples_kept), self.samples_mixed / group_frames  # samples that want it
        ahead = kept + math.sqrt(kept * kept + 2 * kept * between)
        wanted = 1 + ahead / between
        num_decoded = group_frames * wanted / (wanted + 1)  # to the last of them
        return num_decoded / (ahead + ahead * ahead / (2 * between))


def best_to_keep(now: float, num_first: int, wants: Sequence[tuple[float, int]], price: float) -> int:
    """Return how many of the next wants to keep frames for, so that these and all later ones cost least.

    Whatever is not kept is decoded again, with as many after it as are kept then: so the best is found from the end.
    To keep a frame costs something at once, and the price for each sample until it is wanted.
    """
    costs = [0.0] * (len(wants) + 1)  # of the wants from here on, if the group is decoded for the first of them
    num_kept = 0
    for number in range(len(wants), -1, -1):
        begin, num_decoded = wants[number - 1] if number else (now, num_first)
        least, keeping, num_kept = num_decoded + costs[number], 0.0, 0
        for last in range(number, len(wants)):
            turn, to_decode = wants[last]
            num_decoded = max(num_decoded, to_decode)
            keeping += COST_OF_KEEPING + price * (turn - begin)
            if keeping >= least:
                break
            cost = num_decoded + keeping + costs[last + 1]
            if cost < least:
                least, num_kept = cost, last + 1 - number
        if number:
            costs[number - 1] = least
    return num_kept
