"""`StreamingLeRobotMix`: frames of several robot datasets, by weights, as one dataset."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.episodes.base import RobotDataset
from penstock.episodes.counters import open_episode_counters
from penstock.episodes.harmonize import AlikeSamples, check_alike, join_keys
from penstock.episodes.info import ALWAYS
from penstock.episodes.opening import lanes_of_pool, open_episodes, pool_window
from penstock.errors import ConfigError
from penstock.order.base import STRETCHES
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.counters import Counters
    from penstock.data.stream import Stream
    from penstock.episodes.harmonize import KeyOfMix
    from penstock.episodes.meta import LeRobotMetadata
    from penstock.episodes.samples import ImageTransform
    from penstock.episodes.settings import LeRobotStream
    from penstock.episodes.source import EpisodeSource
    from penstock.order.plan import EpochEnd
    from penstock.order.schedule import MixSchedule
    from penstock.reading.transforms import SampleTransform


# Arguments of a mix that hold for each of its datasets.
_OF_EACH = (
    "image_transforms",
    "return_uint8",
    "episode_pool_size",
    "video_decoder_cache_size",
    "video_decode_threads",
    "video_locality",
    "video_backend",
    "cache_limit",
    "prefetch_videos",
)


def open_mix(
    streams: Sequence[LeRobotStream],
    shared: Mapping[str, Any],
    counters: Counters,
    *,
    delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    keys: Sequence[str] | None = None,
    round_to_frames: bool = False,
) -> tuple[list[Stream], list[EpisodeSource], dict[str, KeyOfMix]]:
    """Read the metadata of all datasets, with the settings that they share, and lay them side by side."""
    windows, settings = dict(delta_timestamps or {}), [stream.settings(shared) for stream in streams]
    sources = [
        open_episodes(of_stream, counters, partial(_windows_of, stream, windows, round_to_frames), number)
        for number, (stream, of_stream) in enumerate(zip(streams, settings, strict=True))
    ]
    if any(of_stream.video_locality is not None for of_stream in settings):
        _check_videos(sources)
    of_mix = _join_keys(streams, sources, windows, keys)
    made = []
    for number, (stream, source, of_stream) in enumerate(zip(streams, sources, settings, strict=True)):
        made.append(stream.as_stream(source, _transform_of(stream, source, number, of_mix)))
        made[-1].window = pool_window(source, of_stream)
    return made, sources, of_mix


def _transform_of(
    stream: LeRobotStream, source: EpisodeSource, number: int, keys: Mapping[str, KeyOfMix]
) -> SampleTransform:
    """Return what makes samples of a dataset alike those of the others, and calls functions that draw."""
    alike, own = AlikeSamples(number=number, keys=keys, transform=stream.sample_transform), stream.sample_transform
    drawing = source.drawing_transform(replace(alike, transform=None), *filter(None, [own]))
    return drawing or alike


def _check_videos(sources: Sequence[EpisodeSource]) -> None:
    """Refuse an order that fits the video where there is none: frames of an episode would come one after the other."""
    for source in sources:
        if source.stretches is None:
            raise ConfigError(
                f"video_locality= is not possible in this mix, since {source.meta.url} has no video: leave it out"
            )


def _windows_of(
    stream: LeRobotStream, windows: Mapping[str, Sequence[float]], is_rounded: bool, meta: LeRobotMetadata
) -> dict[str, list[float]]:
    """Return the windows of one dataset, by its own names, in seconds; of those that it has."""
    features = list(meta.schema)
    stream.check_keys([key for key in features if key not in ALWAYS], meta.url)
    found = {}
    for key in features:
        name = key if key in ALWAYS else stream.name_in_mix(key)
        if name is not None and name in windows:
            seconds = np.asarray(windows[name], np.float64)
            found[key] = (np.rint(seconds * meta.fps) / meta.fps if is_rounded else seconds).tolist()
    return found


def _join_keys(
    streams: Sequence[LeRobotStream],
    sources: Sequence[EpisodeSource],
    windows: Mapping[str, Sequence[float]],
    wanted: Sequence[str] | None,
) -> dict[str, KeyOfMix]:
    features = [source.meta.schema for source in sources]
    keys = join_keys(
        features,
        [stream.name_in_mix for stream in streams],
        {name: len(seconds) for name, seconds in windows.items()},
        [source.options for source in sources],
        wanted,
    )
    makes_alike = any(stream.sample_transform is not None for stream in streams)
    for key in keys.values():
        is_resized = key.feature.is_camera and any(source.options.image_transforms is not None for source in sources)
        if not makes_alike and not is_resized:
            check_alike(key, features, [source.meta.url for source in sources])
    return keys


class StreamingLeRobotMix(RobotDataset):
    """Several robot datasets, mixed by weights.

        mix = StreamingLeRobotMix(
            [
                LeRobotStream(root="/data/arm", proportion=0.7),
                LeRobotStream(root="s3://bucket/hand", proportion=0.3, keys={"cam": "observation.images.top"}),
            ],
            delta_timestamps={"action": [0.0, 0.1, 0.2]},
        )

    All samples have the same keys. What a dataset does not have is zeros, and `<key>_is_missing` says so for each key
    that not all have; of windows, `<key>_is_pad` is true throughout. `dataset_index` tells the datasets apart.
    Proportions, ranks, workers and states are those of a `StreamingDataset` of several streams: exact over every 4,096
    samples, like drawn at random in a batch, the same on any number of ranks.

    Args:
        streams: The datasets.
        delta_timestamps: Windows by key of the mix: offsets in seconds, whatever the rate of each dataset.
        keys: Which keys of the mix samples have, besides the numbers of frames; by default all that any dataset has.
        round_to_frames: Take the nearest frame where an offset is no multiple of 1/fps of a dataset; otherwise it is an
            error.
        image_transforms: Your function, called on the picture, or window of pictures, of each camera; one with an
            argument `rng` gets a generator that draws the same after a resume, on any world.
        return_uint8: Give pictures as bytes from 0 to 255, instead of float32 from 0 to 1.
        episode_pool_size: How many episodes of each dataset are mixed at a time.
        pool_bytes: Mix fewer at a time if the rows of so many, of all datasets, could take more than this.
        seed: Seed of the order.
        shuffle: Mix frames of the pools; without it they come in stored order.
        epoch_size: How many samples an epoch has; by default as many as the datasets have together.
        schedule: Proportions that change during the run, in place of weights.
        rank: The rank of this process, if the launcher does not set it; pass `world_size`, too.
        world_size: The number of ranks.
        batch_size: Samples per batch on each rank. A `StreamingDataLoader` sets it for you.
        epoch_end: What happens if the ranks cannot share the frames equally: `pad`, `drop`, `trim` or `uneven`.
        on_error: What happens if a frame cannot be read: `raise` an error, or `skip`: another one takes its place.
        allow_mix_change: Allow loading a state that was made with other weights or other datasets.
        video_decoder_cache_size: How many video files of each dataset each process keeps open; by default those of a
            pool.
        video_decode_threads: How many threads decode ahead of your loop, for each dataset; by default as many as there
            are processors, up to 8, and none in the workers of a loader, which decode themselves.
        video_locality: `gop` gives an order in which frames that are decoded together leave within a short time, so
            that each is decoded once; all datasets need videos for it. By default all frames of a pool are in uniformly
            random order.
        frame_cache_bytes: How much memory each process may use for frames that were decoded with others, until a sample
            wants them; the datasets get equal parts of it.
        cache_limit: How much disk the cache of this node may use for rows and videos of each dataset, such as "100gb".
        prefetch_videos: Have the videos of the next episodes fetched before they are wanted.
        video_backend: What decodes videos: `pyav`, which is the default, or `torchcodec`.
    """

    def __init__(
        self,
        streams: Sequence[LeRobotStream],
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        keys: Sequence[str] | None = None,
        round_to_frames: bool = False,
        image_transforms: ImageTransform | None = None,
        return_uint8: bool = False,
        episode_pool_size: int = 64,
        pool_bytes: int | float | str | None = None,
        seed: int = 42,
        shuffle: bool = True,
        epoch_size: int | float | str | None = None,
        schedule: MixSchedule | Mapping[str, Any] | Sequence[tuple[int, Sequence[float]]] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        batch_size: int | None = None,
        epoch_end: EpochEnd = "pad",
        on_error: Literal["raise", "skip"] = "raise",
        allow_mix_change: bool = False,
        video_decoder_cache_size: int | None = None,
        video_decode_threads: int | None = None,
        video_locality: Literal["gop"] | None = None,
        frame_cache_bytes: int | float | str = "256mb",
        cache_limit: int | float | str | None = None,
        prefetch_videos: bool = True,
        video_backend: Literal["pyav", "torchcodec"] | None = None,
    ) -> None:
        if not streams:
            raise ConfigError("a mix needs at least one LeRobotStream")
        shared: dict[str, Any] = {name: value for name, value in locals().items() if name in _OF_EACH}
        shared["frame_cache_bytes"] = parse_bytes(frame_cache_bytes) // len(streams)  # memory is divided
        if pool_bytes is not None:
            shared["pool_bytes"] = max(1, parse_bytes(pool_bytes) // len(streams))
        self._episode_counters = open_episode_counters(len(streams))
        made, self._sources, self._keys = open_mix(
            streams,
            shared,
            self._episode_counters,
            delta_timestamps=delta_timestamps,
            keys=keys,
            round_to_frames=round_to_frames,
        )
        smallest_pool = min(stream.settings(shared).episode_pool_size for stream in streams)
        super().__init__(
            streams=made,
            order="episode_pool" if video_locality is None else STRETCHES,
            shuffle=shuffle,
            shuffle_seed=seed,
            num_canonical_nodes=1 if video_locality is None else lanes_of_pool(smallest_pool),
            epoch_size=epoch_size,
            schedule=schedule,
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
            epoch_end=epoch_end,
            on_error=on_error,
            allow_mix_change=allow_mix_change,
        )

    def __repr__(self) -> str:
        places = ", ".join(repr(meta.url) for meta in self.metas)
        return f"<{type(self).__name__} of {self.num_frames:,} frames in {self.num_episodes:,} episodes of {places}>"

    @property
    def metas(self) -> tuple[LeRobotMetadata, ...]:
        """What each dataset says of itself, with its statistics."""
        return tuple(source.meta for source in self._sources)

    @property
    def features(self) -> dict[str, Any]:
        """What each sample has: dtype, shape and names by key, as the first dataset that has it declares it."""
        return {
            name: {"dtype": key.feature.dtype, "shape": list(key.feature.shape), "names": key.feature.names}
            for name, key in self._keys.items()
        }
