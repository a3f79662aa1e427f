"""What a user may say of a LeRobot dataset, checked."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

from penstock.episodes.video.choice import BACKENDS
from penstock.errors import ConfigError
from penstock.units import check_whole, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    EpisodeFilter = Callable[[Mapping[str, Any]], bool]

_INSTEAD = {"buffer_size": "episode_pool_size", "rng": "seed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """The arguments of `StreamingLeRobotDataset` that say what is read, and how; its order has others."""

    repo_id: str
    root: str | os.PathLike[str] | None
    episodes: Sequence[int] | None
    image_transforms: Callable[[Any], Any] | None
    delta_timestamps: Mapping[str, Sequence[float]] | None
    keys: Sequence[str] | None
    dtypes: str
    tolerance_s: float
    revision: str | None
    episode_pool_size: int
    pool_bytes: int | float | str | None
    return_uint8: bool
    video_decoder_cache_size: int | None
    video_decode_threads: int | None
    video_locality: str | None
    data_files_root: str | os.PathLike[str] | None
    episode_filter: EpisodeFilter | None
    drop_n_first_frames: int
    drop_n_last_frames: int
    frame_cache_bytes: int | float | str
    cache_limit: int | float | str | None
    storage_options: Mapping[str, Any] | None
    prefetch_videos: bool
    video_backend: str | None
    video_decode_device: str
    buffer_size: int | None
    rng: Any

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> EpisodeSettings:
        """Take these settings out of all arguments."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})

    def __post_init__(self) -> None:
        if not self.repo_id and self.root is None:
            raise ConfigError("a LeRobot dataset needs a root, or a repo_id of the Hugging Face Hub")
        if self.root is not None and self.revision is not None:
            raise ConfigError("revision= belongs to a dataset of the Hub: leave it out with root=")
        if self.video_backend not in (None, *BACKENDS):
            raise ConfigError(
                f"unknown video_backend {self.video_backend!r}: use 'pyav', which is the default and brings FFmpeg"
                " along, or 'torchcodec'"
            )
        if self.dtypes not in ("lerobot", "stored"):
            raise ConfigError(f"unknown dtypes {self.dtypes!r}: use 'lerobot' or 'stored'")
        if self.video_locality not in (None, "gop"):
            raise ConfigError(f"unknown video_locality {self.video_locality!r}: use 'gop', or leave it out")
        if self.video_decode_device != "cpu":
            raise ConfigError(f"video_decode_device={self.video_decode_device!r} is not possible yet: use 'cpu'")
        check_whole("episode_pool_size", self.episode_pool_size, 1)
        check_whole("video_decoder_cache_size", self.video_decoder_cache_size, 1)
        check_whole("video_decode_threads", self.video_decode_threads, 0)
        check_whole("drop_n_first_frames", self.drop_n_first_frames, 0)
        check_whole("drop_n_last_frames", self.drop_n_last_frames, 0)
        for name in ("image_transforms", "episode_filter"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise ConfigError(f"{name}={given!r} must be a function")
        for place, episode in enumerate(() if self.episodes is None else self.episodes):
            check_whole(f"episodes[{place}]", episode, 0)
        if not isinstance(self.tolerance_s, Real) or not self.tolerance_s > 0:
            raise ConfigError(f"tolerance_s={self.tolerance_s!r} must be a number of seconds above 0")
        parse_bytes(self.frame_cache_bytes)
        if self.pool_bytes is not None and not parse_bytes(self.pool_bytes):
            raise ConfigError(f"pool_bytes={self.pool_bytes!r} must be more than 0")
        for name, better in _INSTEAD.items():
            if getattr(self, name) is not None:
                text = f"{name}= has no effect: set {better}= instead"
                warnings.warn(text, DeprecationWarning, stacklevel=5)

    @property
    def place(self) -> str:
        """Where the metadata are: the root if there is one, else a dataset of the Hub."""
        if self.root is not None:
            return os.fspath(self.root)
        return f"hf://datasets/{self.repo_id}" + (f"@{self.revision}" if self.revision else "")

    @property
    def data_place(self) -> str:
        """Where rows and videos are."""
        return self.place if self.data_files_root is None else os.fspath(self.data_files_root)
