"""From the robot datasets of a mix to streams of samples that are alike. No row or video is touched yet."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.episodes.info import ALWAYS
from penstock.episodes.mixing.harmonize import AlikeSamples, check_alike, join_keys
from penstock.episodes.opening import open_episodes, pool_window
from penstock.errors import ConfigError
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.counters import Counters
    from penstock.data.stream import Stream
    from penstock.episodes.meta import LeRobotMetadata
    from penstock.episodes.mixing.harmonize import KeyOfMix
    from penstock.episodes.mixing.stream import LeRobotStream
    from penstock.episodes.samples import ImageTransform
    from penstock.episodes.source import EpisodeSource


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSettings:
    """The arguments of `StreamingLeRobotMix` that say what is read, and how; its order has others."""

    streams: Sequence[LeRobotStream]
    delta_timestamps: Mapping[str, Sequence[float]] | None
    keys: Sequence[str] | None
    round_to_frames: bool
    image_transforms: ImageTransform | None
    return_uint8: bool
    episode_pool_size: int
    pool_bytes: int | float | str | None
    video_decoder_cache_size: int | None
    video_decode_threads: int | None
    video_locality: str | None
    video_backend: str | None
    frame_cache_bytes: int | float | str
    cache_limit: int | float | str | None
    prefetch_videos: bool

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> MixSettings:
        """Take these settings out of all arguments."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})

    def __post_init__(self) -> None:
        if not self.streams:
            raise ConfigError("a mix needs at least one LeRobotStream")

    @property
    def of_each(self) -> dict[str, Any]:
        """What holds for each dataset: memory is divided among them."""
        shared = {name: getattr(self, name) for name in _OF_EACH}
        shared["frame_cache_bytes"] = parse_bytes(self.frame_cache_bytes) // len(self.streams)
        if self.pool_bytes is not None:
            shared["pool_bytes"] = max(1, parse_bytes(self.pool_bytes) // len(self.streams))
        return shared


class OpenedMix(NamedTuple):
    """The datasets of a mix, and what its samples hold."""

    streams: list[Stream]
    sources: list[EpisodeSource]
    keys: dict[str, KeyOfMix]
    smallest_pool: int  # in episodes, of the pools that the streams have


def open_mix(mix: MixSettings, counters: Counters) -> OpenedMix:
    """Read the metadata of all datasets, and lay them side by side."""
    windows, shared = dict(mix.delta_timestamps or {}), mix.of_each
    sources = [
        open_episodes(
            stream.settings(shared), counters, partial(_windows_of, stream, windows, mix.round_to_frames), number
        )
        for number, stream in enumerate(mix.streams)
    ]
    if mix.video_locality is not None:
        _check_videos(sources)
    keys = _join(mix.streams, sources, windows, mix.keys)
    made, pools = [], []
    for number, (stream, source) in enumerate(zip(mix.streams, sources, strict=True)):
        alike = AlikeSamples(number=number, keys=keys, transform=stream.sample_transform)
        made.append(stream.as_stream(source, alike))
        made[-1].window = pool_window(source, stream.settings(shared))
        pools.append(stream.settings(shared).episode_pool_size)
    return OpenedMix(made, sources, keys, min(pools))


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
    features = list(meta.schema.features)
    stream.check_keys([key for key in features if key not in ALWAYS], meta.url)
    found = {}
    for key in features:
        name = key if key in ALWAYS else stream.name_in_mix(key)
        if name is not None and name in windows:
            seconds = np.asarray(windows[name], np.float64)
            found[key] = (np.rint(seconds * meta.fps) / meta.fps if is_rounded else seconds).tolist()
    return found


def _join(
    streams: Sequence[LeRobotStream],
    sources: Sequence[EpisodeSource],
    windows: Mapping[str, Sequence[float]],
    wanted: Sequence[str] | None,
) -> dict[str, KeyOfMix]:
    features = [source.meta.schema.features for source in sources]
    keys = join_keys(
        features,
        [stream.name_in_mix for stream in streams],
        {name: len(seconds) for name, seconds in windows.items()},
        [source.options.pictures for source in sources],
        wanted,
    )
    makes_alike = any(stream.sample_transform is not None for stream in streams)
    for key in keys.values():
        is_resized = key.feature.is_camera and any(
            source.options.pictures.image_transforms is not None for source in sources
        )
        if not makes_alike and not is_resized:
            check_alike(key, features, [source.meta.url for source in sources])
    return keys
