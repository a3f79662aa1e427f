"""The stretches of an order that fits the video: runs of samples that begin with a keyframe."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from penstock._version import __version__
from penstock.cachedir.once import keep_in_files
from penstock.episodes.wanted import ClipKey

if TYPE_CHECKING:
    from penstock.episodes.clips import IndexedClips
    from penstock.episodes.source import ChosenFrames
    from penstock.types import Int64Array


_FEWEST_FRAMES = 32
_MANY = 1 << 14


def keep_stretches(edition: str, clips: IndexedClips, chosen: ChosenFrames, lengths: Int64Array) -> Int64Array:
    """Give what `find_stretches` gives; of many episodes it is found once on each node. `edition` names the index."""
    hasher = hashlib.blake2b(f"{__version__} {edition}".encode(), digest_size=16)
    for array in (chosen.episodes, chosen.first_frames, chosen.counts, lengths):
        hasher.update(array.tobytes())
    for camera, spans in clips.videos.items():
        hasher.update(repr((camera, spans.files)).encode() + spans.file_of.tobytes() + spans.begins.tobytes())
    name = hasher.hexdigest()
    return keep_in_files(name, lambda: find_stretches(clips, chosen, lengths), min_values=_MANY, kind="stretches")


def find_stretches(clips: IndexedClips, chosen: ChosenFrames, lengths: Int64Array) -> Int64Array:
    """Give the samples at which stretches begin, by the keyframes of the camera that has the fewest in each episode."""
    ids = np.cumsum(chosen.counts) - chosen.counts
    begins = [np.zeros(0, np.int64)]
    for episode, first_id, first_frame, count in zip(
        chosen.episodes.tolist(), ids.tolist(), chosen.first_frames.tolist(), chosen.counts.tolist(), strict=True
    ):
        found = [clips.keyframes(ClipKey(camera, episode), int(lengths[episode])) for camera in clips.videos]
        keyframes = min((each for each in found if each is not None), key=len, default=None)
        if keyframes is not None:
            begins.append(first_id + cut(keyframes - first_frame, count))
    return np.concatenate(begins)


def cut(keyframes: Int64Array, count: int) -> Int64Array:
    """Choose keyframes at which stretches begin: so far apart that going there costs little beside decoding."""
    begins, possible = [0], keyframes.tolist()
    while True:
        place = bisect_left(possible, begins[-1] + _FEWEST_FRAMES)
        if place == len(possible) or possible[place] >= count:
            return np.array(begins, np.int64)
        begins.append(possible[place])
