"""What a user may say of a LeRobot dataset, by itself or in a mix, checked."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

from penstock.data.stream import Stream
from penstock.episodes.video.pyav import PyavBackend
from penstock.episodes.video.torchcodec import TorchcodecBackend
from penstock.errors import ConfigError
from penstock.units import check_mapping, check_whole, parse_bytes
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.episodes.samples import ImageTransform
    from penstock.episodes.video.backend import VideoBackend
    from penstock.reading.source import Source
    from penstock.reading.transforms import SampleTransform

    EpisodeFilter = Callable[[Mapping[str, Any]], bool]

BACKENDS: dict[str, type[VideoBackend]] = {"pyav": PyavBackend, "torchcodec": TorchcodecBackend}
_INSTEAD = {"buffer_size": "episode_pool_size", "rng": "seed"}
# Arguments of a stream of a mix that say what is read of its dataset.
_OF_STREAM = (
    "repo_id",
    "root",
    "episodes",
    "episode_filter",
    "drop_n_first_frames",
    "drop_n_last_frames",
    "revision",
    "data_files_root",
    "tolerance_s",
    "storage_options",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """The arguments of `StreamingLeRobotDataset` that say what is read, and how; its order has others.

    Their defaults are those of its signature, for the datasets of a mix.
    """

    repo_id: str = ""
    root: str | os.PathLike[str] | None = None
    episodes: Sequence[int] | None = None
    image_transforms: Callable[[Any], Any] | None = None
    delta_timestamps: Mapping[str, Sequence[float]] | None = None
    keys: Sequence[str] | None = None
    dtypes: str = "lerobot"
    tolerance_s: float = 1e-4
    revision: str | None = None
    episode_pool_size: int = 64
    pool_bytes: int | float | str | None = None
    return_uint8: bool = False
    video_decoder_cache_size: int | None = None
    video_decode_threads: int | None = None
    video_locality: str | None = None
    data_files_root: str | os.PathLike[str] | None = None
    episode_filter: EpisodeFilter | None = None
    drop_n_first_frames: int = 0
    drop_n_last_frames: int = 0
    frame_cache_bytes: int | float | str = "256mb"
    cache_limit: int | float | str | None = None
    storage_options: Mapping[str, Any] | None = None
    prefetch_videos: bool = True
    video_backend: str | None = None
    video_decode_device: str = "cpu"
    buffer_size: int | None = None
    rng: Any = None

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
        if self.root is None and os.path.isdir(self.repo_id):  # noqa: PTH112  it is no path
            warn_user(
                f"{self.repo_id!r} is looked up on the Hugging Face Hub, and not in the folder of that name: pass root="
                " to read that"
            )
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

    def make_backend(self) -> VideoBackend:
        """Return what decodes videos."""
        return BACKENDS[self.video_backend or "pyav"]()

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


class LeRobotStream:
    """One robot dataset of a `StreamingLeRobotMix`.

    Args:
        repo_id: The name of the dataset; without `root`, of a dataset of the Hugging Face Hub.
        root: Where the dataset is: a folder, or a URL of any store.
        proportion: Its share of the mix, relative to those of the others.
        repeat: How often its frames come in an epoch; give all streams this, or none.
        choose: How many of its frames come in an epoch; likewise.
        name: The name of the stream in states; by default its number. Give names to streams that you may add or remove.
        keys: What its features are called in the mix: `{"cam_high": "observation.images.top"}`. Others keep their
            names, and those that you map to None are left out.
        episodes: The numbers of the episodes to read; by default all.
        episode_filter: Your function, called with what is known of each episode; it says whether to read it.
        drop_n_first_frames: Leave out so many frames at the beginning of each episode. Windows may reach into them.
        drop_n_last_frames: The same at the end.
        revision: A branch, tag or commit of the Hub.
        data_files_root: Where `data/` and `videos/` are, if they are not with `meta/`.
        episode_pool_size: How many of its episodes are mixed at a time, if not as many as the mix says.
        tolerance_s: How far the frames of its videos may be from the times of their rows.
        image_transforms: Your function for its pictures, in place of that of the mix.
        sample_transform: Your function, called on each of its samples, after its features were renamed.
        storage_options: Credentials and settings of its store, under the names that fsspec uses.
    """

    def __init__(
        self,
        repo_id: str = "",
        root: str | os.PathLike[str] | None = None,
        *,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | float | str | None = None,
        name: str | None = None,
        keys: Mapping[str, str | None] | None = None,
        episodes: Sequence[int] | None = None,
        episode_filter: EpisodeFilter | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        revision: str | None = None,
        data_files_root: str | os.PathLike[str] | None = None,
        episode_pool_size: int | None = None,
        tolerance_s: float = 1e-4,
        image_transforms: ImageTransform | None = None,
        sample_transform: SampleTransform | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_mapping("keys", keys)
        check_whole("episode_pool_size", episode_pool_size, 1)
        self.keys: dict[str, str | None] = dict(keys or {})
        self.name, self.sample_transform, self.image_transforms = name, sample_transform, image_transforms
        self._weights: dict[str, Any] = {"proportion": proportion, "repeat": repeat, "choose": choose}
        self._given = {name: value for name, value in locals().items() if name in _OF_STREAM}
        self._episode_pool_size = episode_pool_size
        self.settings({})  # refuse at once what is wrong

    def settings(self, of_mix: Mapping[str, Any]) -> EpisodeSettings:
        """Return all settings of this dataset, with those that the mix decides."""
        given = {**of_mix, **self._given}
        if self._episode_pool_size is not None:
            given["episode_pool_size"] = self._episode_pool_size
        if self.image_transforms is not None:
            given["image_transforms"] = self.image_transforms
        return EpisodeSettings(**given)

    def as_stream(self, source: Source, transform: SampleTransform) -> Stream:
        """Return the stream of its samples, as the mix wants them."""
        return Stream(source=source, name=self.name, sample_transform=transform, **self._weights)

    def name_in_mix(self, key: str) -> str | None:
        """Describe what a feature is called in the mix; None: it is left out."""
        return self.keys.get(key, key)

    def check_keys(self, features: Sequence[str], where: str) -> None:
        """Refuse names of features that the dataset does not have, and two features under one name."""
        for key in self.keys:
            if key not in features:
                raise ConfigError(
                    f"keys= names {key!r}, which {where} does not have: it has {', '.join(features)}", key=key
                )
        names = [name for name in map(self.name_in_mix, features) if name is not None]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two features of {where} are called {name!r} in the mix: rename one in keys=")

    def __repr__(self) -> str:
        return f"LeRobotStream({self.settings({}).place!r})"
