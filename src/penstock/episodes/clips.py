"""Where the video of an episode is: within a file of this machine, or fetched from a store as a clip of its own.

And where it can be cut: stretches of an order that fits the video are runs of samples that begin with a keyframe.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from penstock._version import __version__
from penstock.cachedir.once import keep_in_files
from penstock.episodes.open_clips import ClipLocator, LocatedClip
from penstock.formats.mp4.format import CUTS, Clip, Look, load_clip
from penstock.index.paths import resolve_inside
from penstock.wire.settings import FilesRequest

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.cache.cache import Cache
    from penstock.episodes.episode_table import ChosenFrames, VideoSpans
    from penstock.episodes.upcoming import ClipKey
    from penstock.index.model import Index
    from penstock.types import Int64Array

NOT_KNOWN = -1
_HALF_A_MILLIONTH = 5e-7
_FEWEST_FRAMES = 32  # of a stretch
_MANY = 1 << 14  # stretches


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeKeyframes:
    """The keyframes of episodes' clips, and where in its clip each episode begins."""

    tables: list[Int64Array]
    table_of: Int64Array  # by episode; NOT_KNOWN: only the packets say
    firsts: Int64Array  # by episode: the frame of its clip


@dataclass(frozen=True)
class LocalClips(ClipLocator):
    """Videos in a folder of this machine, read where they lie."""

    folder: Path
    is_shared: bool = True  # whether episodes of a file share a decoder; not if each is decoded in its order

    def name(self, clip: ClipKey) -> str:
        """Name the file."""
        return str(resolve_inside(self.folder, super().name(clip)))

    def decoder(self, clip: ClipKey) -> Hashable:
        """Name the decoder."""
        return (clip.camera, int(self.videos[clip.camera].file_of[clip.episode])) if self.is_shared else clip

    def locate(self, clip: ClipKey) -> LocatedClip:
        """Return where it is."""
        return LocatedClip(self.name(clip))


@dataclass(frozen=True)
class FetchedClips(ClipLocator):
    """Videos in a store: the bytes of an episode are fetched into the cache, once a node, and stay while it is read.

    A scan cut the files into clips, one for each episode; a file that cannot be cut is one for all of it.
    """

    cache: Cache
    index: Index
    expects: bool = True  # whether clips are fetched before they are wanted

    @property
    def edition(self) -> str:
        """A name that stands for all that the index says."""
        found = self.cache.indexes[0]
        return "" if found is None else found[0]

    @cached_property
    def clip_bytes(self) -> float:
        """How much a clip takes on average."""
        sizes = self.index.columns.raw_sizes
        return float(sizes.sum()) / max(1, len(sizes))

    def locate(self, clip: ClipKey) -> LocatedClip:
        """Fetch the clip, and keep it in place."""
        number = int(self.shards[clip.camera][clip.episode])
        lease = self.cache.lease(0, number, f"the video of episode {clip.episode}")
        return LocatedClip(str(lease.paths[0]), lease)

    def expect(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Have the videos of some episodes fetched: which, and in how many batches they are wanted, soonest first."""
        numbers: dict[int, int] = {}
        for episode, ahead in wanted:
            for shards in self.shards.values():
                numbers.setdefault(int(shards[episode]), ahead)
        self.cache.expect([(0, number, ahead) for number, ahead in numbers.items()])

    @cached_property
    def shards(self) -> Mapping[str, Int64Array]:
        """The number of the shard that holds each episode, by camera."""
        columns = self.index.columns
        number_of = {name: number for number, name in enumerate(columns.objects)}
        return {
            camera: self._shards_of(spans, np.array([number_of[name] for name in spans.files], np.int64))
            for camera, spans in self.videos.items()
        }

    @cached_property
    def _by_object(self) -> tuple[Int64Array, Int64Array]:
        """All shards by the file that they are parts of, and where those of each file begin."""
        object_of, num_objects = self.index.columns.object_of, len(self.index.columns.objects)
        order = np.argsort(object_of, kind="stable")
        return order, np.searchsorted(object_of[order], np.arange(num_objects + 1))

    def _shards_of(self, spans: VideoSpans, objects: Int64Array) -> Int64Array:
        """Return the shard of each episode of a camera; `objects` are the numbers of its files in the index."""
        shards = np.zeros(len(spans.file_of), np.int64)
        episodes = np.lexsort([spans.begins, spans.file_of])
        episodes = episodes[np.searchsorted(spans.file_of[episodes], 0) :]  # some may have no file
        files = spans.file_of[episodes]
        order, starts = self._by_object
        first_shard, num_shards = starts[objects], starts[objects + 1] - starts[objects]
        num_episodes = np.bincount(files, minlength=len(spans.files))
        place = np.arange(len(episodes)) - (np.cumsum(num_episodes) - num_episodes)[files]
        is_plain = (num_episodes == num_shards)[files]
        shards[episodes[is_plain]] = order[(first_shard[files] + place)[is_plain]]
        for file in np.flatnonzero(num_episodes != num_shards).tolist():  # it is one shard, or episodes share some
            numbers = order[first_shard[file] : first_shard[file] + num_shards[file]]
            found = [self._clip(number) for number in numbers.tolist()]
            begins = [(each[0].begin / each[1] if each else 0.0) - _HALF_A_MILLIONTH for each in found]
            mine = episodes[files == file]
            shards[mine] = numbers[np.maximum(0, np.searchsorted(begins, spans.begins[mine], side="right") - 1)]
        return shards

    @cached_property
    def _timescales(self) -> dict[int, int]:
        return {}  # by layout, of which there are few

    def _clip(self, number: int) -> tuple[Clip, int] | None:
        """Return what the index says of a shard, and how many ticks a second has; None: it is a whole file."""
        columns = self.index.columns
        details = columns.details_of(number)
        if not details:
            return None
        layout = columns.layout_of(number)
        timescale = self._timescales.get(id(layout))
        if timescale is None:
            timescale = self._timescales[id(layout)] = Look.of(layout, "the video").timescale
        return load_clip(details, "a video"), timescale

    def begin_in_clip_s(self, clip: ClipKey) -> float:
        """Return where the episode begins in its own file."""
        found = self._clip(int(self.shards[clip.camera][clip.episode]))
        return self.begin_s(clip) if found is None else self.begin_s(clip) - found[0].shift / found[1]

    def keyframes(self, camera: str, episodes: Int64Array) -> EpisodeKeyframes:
        """Return the frames of episodes that are decoded without others; many episodes have the same ones."""
        columns = self.index.columns
        found: dict[tuple[int, bytes, bytes], int] = {}
        examples: list[int] = []
        table_of: list[int] = []
        shifts: list[int] = []
        for shard in self.shards[camera][episodes].tolist():
            details = columns.details_of(shard)
            if not details:
                table_of.append(NOT_KNOWN)
                shifts.append(0)
                continue
            table = found.setdefault((id(columns.layout_of(shard)), *Clip.same_tables(details)), len(found))
            if table == len(examples):
                examples.append(shard)
            table_of.append(table)
            shifts.append(Clip.shift_of(details))
        tables, firsts = np.array(table_of, np.int64), np.zeros(len(episodes), np.int64)
        keyframes, order = [], np.argsort(tables, kind="stable")
        ends = np.searchsorted(tables[order], np.arange(len(examples)), side="right").tolist()
        begins, all_shifts = self.videos[camera].begins[episodes], np.array(shifts, np.int64)
        for shard, first, end in zip(examples, [int(np.sum(tables == NOT_KNOWN)), *ends], ends, strict=False):
            clip, timescale = cast("tuple[Clip, int]", self._clip(shard))
            index = replace(clip, shift=0).index(timescale)
            mine = order[first:end]
            firsts[mine] = index.nearest(begins[mine] - all_shifts[mine] / timescale)[0]
            keyframes.append(index.keyframes)
        return EpisodeKeyframes(keyframes, tables, firsts)


def clips_request(videos: Mapping[str, VideoSpans]) -> FilesRequest:
    """Ask for the clips of all episodes: which files there are, and where each is cut."""
    cuts: dict[str, list[int]] = {}
    for spans in videos.values():
        order = np.lexsort([spans.begins, spans.file_of])
        micros = np.round(spans.begins[order] * 1e6).astype(np.int64).tolist()
        starts = np.searchsorted(spans.file_of[order], np.arange(len(spans.files) + 1)).tolist()
        for file, name in enumerate(spans.files):
            if starts[file + 1] > starts[file]:
                cuts.setdefault(name, []).extend(micros[starts[file] : starts[file + 1]])
    several = {name: sorted(begins) for name, begins in cuts.items() if begins != [0]}
    return FilesRequest(patterns=tuple(sorted(cuts)), format="mp4", settings={CUTS: several})


def keep_stretches(clips: FetchedClips, chosen: ChosenFrames, lengths: Int64Array) -> Int64Array:
    """Return what `find_stretches` gives; of many episodes it is found once on each node."""
    hasher = hashlib.blake2b(f"{__version__} {clips.edition}".encode(), digest_size=16)
    for array in (chosen.episodes, chosen.first_frames, chosen.counts, lengths):
        hasher.update(array.tobytes())
    for camera, spans in clips.videos.items():
        hasher.update(repr((camera, spans.files)).encode() + spans.file_of.tobytes() + spans.begins.tobytes())
    name = hasher.hexdigest()
    return keep_in_files(name, lambda: find_stretches(clips, chosen, lengths), min_values=_MANY, kind="stretches")


def find_stretches(clips: FetchedClips, chosen: ChosenFrames, lengths: Int64Array) -> Int64Array:
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
