"""Where the video of an episode is: within a file of this machine, or fetched from a store as a clip of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.formats.mp4.format import CUTS, Look, clip_of
from penstock.index.paths import resolve_inside
from penstock.wire.settings import FilesRequest

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.cache.cache import Cache
    from penstock.episodes.episode_table import VideoSpans
    from penstock.episodes.wanted import ClipKey
    from penstock.index.model import Index
    from penstock.reading.source import Closable
    from penstock.types import Int64Array


@dataclass(frozen=True, slots=True)
class LocatedClip:
    """A file that holds the video of an episode."""

    path: str
    lease: Closable | None = None  # keeps the file in place


class ClipLocator(Protocol):
    """Finds the videos of episodes. It is sent to workers."""

    @property
    def clip_bytes(self) -> float:
        """How much of the cache a clip takes, on average; 0: none."""
        ...

    def name(self, clip: ClipKey) -> str:
        """Name the file, as the dataset does."""
        ...

    def begin_s(self, clip: ClipKey) -> float:
        """Say at which second of that file the episode begins."""
        ...

    def begin_in_clip_s(self, clip: ClipKey) -> float:
        """Say at which second of the file that is opened the episode begins."""
        ...

    def decoder(self, clip: ClipKey) -> Hashable:
        """Name the decoder: clips of one name share one."""
        ...

    def locate(self, clip: ClipKey) -> LocatedClip:
        """Say where it is, waiting for it if it has to be fetched."""
        ...


@dataclass(frozen=True)
class LocalClips:
    """Videos in a folder of this machine, read where they lie."""

    folder: Path
    videos: Mapping[str, VideoSpans]
    is_shared: bool = True  # whether episodes of a file share a decoder; not if each is decoded in its order
    clip_bytes: float = 0.0

    def name(self, clip: ClipKey) -> str:
        """Name the file."""
        return str(resolve_inside(self.folder, self.videos[clip.camera].path(clip.episode)))

    def begin_s(self, clip: ClipKey) -> float:
        """Say where the episode begins."""
        return float(self.videos[clip.camera].begins[clip.episode])

    def begin_in_clip_s(self, clip: ClipKey) -> float:
        """Say where the episode begins."""
        return self.begin_s(clip)

    def decoder(self, clip: ClipKey) -> Hashable:
        """Name the decoder."""
        return (clip.camera, int(self.videos[clip.camera].file_of[clip.episode])) if self.is_shared else clip

    def locate(self, clip: ClipKey) -> LocatedClip:
        """Say where it is."""
        return LocatedClip(self.name(clip))


@dataclass(frozen=True)
class IndexedClips:
    """The clips that a scan cut files into, one for each episode; a file that cannot be cut is one for all of it."""

    index: Index
    videos: Mapping[str, VideoSpans]

    @cached_property
    def shards(self) -> Mapping[str, Int64Array]:
        """The number of the shard that holds each episode, by camera."""
        by_file: dict[str, list[int]] = {}
        for number, info in enumerate(self.index.shards):
            span = info.parts[0].span
            by_file.setdefault("" if span is None else span.basename, []).append(number)
        return {camera: self._shards_of(spans, by_file) for camera, spans in self.videos.items()}

    def _shards_of(self, spans: VideoSpans, by_file: Mapping[str, Sequence[int]]) -> Int64Array:
        shards = np.zeros(len(spans.file_of), np.int64)
        by_begin = np.lexsort([spans.begins, spans.file_of])
        ends = np.searchsorted(spans.file_of[by_begin], np.arange(len(spans.files) + 1))
        for file, name in enumerate(spans.files):
            episodes = by_begin[ends[file] : ends[file + 1]]
            numbers = by_file[name]
            if len(numbers) == len(episodes):
                shards[episodes] = numbers
                continue
            begins = [self._begin_s(number) - _HALF_A_MILLIONTH for number in numbers]
            shards[episodes] = np.array(numbers)[
                np.maximum(0, np.searchsorted(begins, spans.begins[episodes], side="right") - 1)
            ]
        return shards

    def _begin_s(self, number: int) -> float:
        info = self.index.shards[number]
        return clip_of(info).begin / Look.of(info.layout, info.name).timescale if info.details else 0.0

    def begin_in_clip(self, clip: ClipKey) -> float:
        """Give the second of the clip's own file at which the episode begins."""
        info = self.index.shards[int(self.shards[clip.camera][clip.episode])]
        begin = float(self.videos[clip.camera].begins[clip.episode])
        if not info.details:
            return begin
        return begin - clip_of(info).shift / Look.of(info.layout, info.name).timescale

    def keyframes(self, clip: ClipKey, num_frames: int) -> Int64Array | None:
        """Give the frames of an episode that are decoded without others; None: only whoever reads the packets knows."""
        info = self.index.shards[int(self.shards[clip.camera][clip.episode])]
        if not info.details:
            return None
        index = clip_of(info).index(Look.of(info.layout, info.name).timescale)
        first = int(index.nearest(self.videos[clip.camera].begins[clip.episode : clip.episode + 1])[0][0])
        keyframes = index.keyframes - first
        return keyframes[(keyframes >= 0) & (keyframes < num_frames)]


_HALF_A_MILLIONTH = 5e-7


@dataclass(frozen=True)
class FetchedClips:
    """Videos in a store: the bytes of an episode are fetched into the cache, once a node, and stay while it is read."""

    cache: Cache
    clips: IndexedClips
    expects: bool = field(default=True)  # whether clips are fetched before they are wanted

    @cached_property
    def clip_bytes(self) -> float:
        """How much a clip takes on average."""
        sizes = self.clips.index.columns.raw_sizes
        return float(sizes.sum()) / max(1, len(sizes))

    def name(self, clip: ClipKey) -> str:
        """Name the file."""
        return self.clips.videos[clip.camera].path(clip.episode)

    def begin_s(self, clip: ClipKey) -> float:
        """Say where the episode begins."""
        return float(self.clips.videos[clip.camera].begins[clip.episode])

    def begin_in_clip_s(self, clip: ClipKey) -> float:
        """Say where the episode begins in its own file."""
        return self.clips.begin_in_clip(clip)

    def decoder(self, clip: ClipKey) -> Hashable:
        """Name the decoder: each clip has its own."""
        return clip

    def locate(self, clip: ClipKey) -> LocatedClip:
        """Fetch the clip, and keep it in place."""
        number = int(self.clips.shards[clip.camera][clip.episode])
        lease = self.cache.lease(0, number, f"the video of episode {clip.episode}")
        return LocatedClip(str(lease.paths[0]), lease)

    def expect(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Have the videos of some episodes fetched: which, and in how many batches they are wanted, soonest first."""
        numbers: dict[int, int] = {}
        for episode, ahead in wanted:
            for shards in self.clips.shards.values():
                numbers.setdefault(int(shards[episode]), ahead)
        self.cache.expect([(0, number, ahead) for number, ahead in numbers.items()])


def clips_request(videos: Mapping[str, VideoSpans]) -> FilesRequest:
    """Ask for the clips of all episodes: which files there are, and where each is cut."""
    cuts: dict[str, list[int]] = {}
    for spans in videos.values():
        micros = np.round(spans.begins * 1e6).astype(np.int64)
        for file, begin in zip(spans.file_of.tolist(), micros.tolist(), strict=True):
            if file >= 0:
                cuts.setdefault(spans.files[file], []).append(begin)
    several = {name: sorted(begins) for name, begins in cuts.items() if begins != [0]}
    return FilesRequest(patterns=tuple(sorted(cuts)), format="mp4", settings={CUTS: several})
