"""`LeRobotStream`: one robot dataset of a mix, its share, and what its features are called there."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.data.stream import Stream
from penstock.episodes.settings import EpisodeSettings
from penstock.errors import ConfigError
from penstock.units import check_mapping, check_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from penstock.episodes.samples import ImageTransform
    from penstock.episodes.settings import EpisodeFilter
    from penstock.episodes.source import EpisodeSource
    from penstock.reading.transforms import SampleTransform


@cache
def _defaults() -> dict[str, Any]:
    """Return what a dataset by itself is read with."""
    from penstock.episodes.dataset import StreamingLeRobotDataset  # only now: it loads torch

    parameters = inspect.signature(StreamingLeRobotDataset).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


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
        self._given: dict[str, Any] = {
            "repo_id": repo_id,
            "root": root,
            "episodes": episodes,
            "episode_filter": episode_filter,
            "drop_n_first_frames": drop_n_first_frames,
            "drop_n_last_frames": drop_n_last_frames,
            "revision": revision,
            "data_files_root": data_files_root,
            "tolerance_s": tolerance_s,
            "storage_options": storage_options,
        }
        self._episode_pool_size = episode_pool_size
        self.settings({})  # refuse at once what is wrong

    def settings(self, of_mix: Mapping[str, Any]) -> EpisodeSettings:
        """Return all settings of this dataset, with those that the mix decides."""
        given = {**_defaults(), **of_mix, **self._given}
        if self._episode_pool_size is not None:
            given["episode_pool_size"] = self._episode_pool_size
        if self.image_transforms is not None:
            given["image_transforms"] = self.image_transforms
        return EpisodeSettings.of(given)

    def as_stream(self, source: EpisodeSource, transform: SampleTransform) -> Stream:
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
