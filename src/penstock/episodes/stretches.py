"""The stretches of an order that fits the video: runs of samples that begin with a keyframe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.episodes.wanted import ClipKey

if TYPE_CHECKING:
    from penstock.episodes.clips import IndexedClips
    from penstock.episodes.source import ChosenFrames
    from penstock.types import Int64Array


_FEWEST_FRAMES = 32


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
    begins = [0]
    for keyframe in keyframes.tolist():
        if keyframe - begins[-1] >= _FEWEST_FRAMES and keyframe < count:
            begins.append(keyframe)
    return np.array(begins, np.int64)
