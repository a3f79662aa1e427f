"""The stretches of an order that fits the video: runs of samples that begin with a keyframe."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from penstock._version import __version__
from penstock.cachedir.once import keep_in_files
from penstock.episodes.clips import NOT_KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.episodes.clips import IndexedClips
    from penstock.episodes.source import ChosenFrames
    from penstock.types import Int64Array


_FEWEST_FRAMES = 32
_MANY = 1 << 14


def keep_stretches(edition: str, clips: IndexedClips, chosen: ChosenFrames, lengths: Int64Array) -> Int64Array:
    """Return what `find_stretches` gives; of many episodes it is found once on each node. `edition` names the index."""
    hasher = hashlib.blake2b(f"{__version__} {edition}".encode(), digest_size=16)
    for array in (chosen.episodes, chosen.first_frames, chosen.counts, lengths):
        hasher.update(array.tobytes())
    for camera, spans in clips.videos.items():
        hasher.update(repr((camera, spans.files)).encode() + spans.file_of.tobytes() + spans.begins.tobytes())
    name = hasher.hexdigest()
    return keep_in_files(name, lambda: find_stretches(clips, chosen, lengths), min_values=_MANY, kind="stretches")


def find_stretches(clips: IndexedClips, chosen: ChosenFrames, lengths: Int64Array) -> Int64Array:
    """Return the first samples of stretches, by the keyframes of the camera that has the fewest in each episode."""
    found = [clips.keyframes(camera, chosen.episodes) for camera in clips.videos]
    facts = [chosen.first_frames, chosen.counts, lengths[chosen.episodes]]
    for each in found:
        facts += [each.table_of, each.firsts]
    kinds, kind_of = _count_kinds(facts)  # few: most episodes are cut as others are
    cuts = [_cut_kind(kind, [each.tables for each in found]) for kind in kinds.tolist()]
    sizes = np.array([len(each) for each in cuts], np.int64)
    counts = sizes[kind_of]
    starts = (np.cumsum(sizes) - sizes)[kind_of]
    ids = np.cumsum(chosen.counts) - chosen.counts
    places = np.arange(int(counts.sum())) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    begins: Int64Array = np.concatenate([np.zeros(0, np.int64), *cuts])[places] + np.repeat(ids, counts)
    return begins


def _count_kinds(facts: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return the different rows of some columns, and which of them each row is."""
    order = np.lexsort(facts)
    rows = np.stack(facts, axis=1)[order]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    kind_of = np.empty(len(rows), np.int64)
    kind_of[order] = np.cumsum(is_new) - 1
    return rows[is_new], kind_of


def _cut_kind(kind: Sequence[int], tables: Sequence[Sequence[Int64Array]]) -> Int64Array:
    """Cut an episode; `kind` says which of its frames are chosen, and by camera which table is its, and from where."""
    first_frame, count, length = kind[:3]
    found = []
    for of_camera, table, first in zip(tables, kind[3::2], kind[4::2], strict=True):
        if table != NOT_KNOWN:
            keyframes = of_camera[table] - first
            found.append(keyframes[(keyframes >= 0) & (keyframes < length)])
    return cut(min(found, key=len) - first_frame, count) if found else np.zeros(0, np.int64)


def cut(keyframes: Int64Array, count: int) -> Int64Array:
    """Choose keyframes at which stretches begin: so far apart that going there costs little beside decoding."""
    begins, possible = [0], keyframes.tolist()
    while True:
        place = bisect_left(possible, begins[-1] + _FEWEST_FRAMES)
        if place == len(possible) or possible[place] >= count:
            return np.array(begins, np.int64)
        begins.append(possible[place])
