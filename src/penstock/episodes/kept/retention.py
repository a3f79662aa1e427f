"""For how long to keep the frames that are decoded with others, so that the fewest are decoded again.

To keep a frame for one sample more has a price, which follows from how much memory there is and how many frames are
mixed. With it, what is best for one group of pictures does not depend on the others: when to decode it, and which
frames to keep each time until the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
