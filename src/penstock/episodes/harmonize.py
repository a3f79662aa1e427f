"""Makes the samples of different robots alike: the same keys in the same order, and zeros for what a robot lacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.info import ALWAYS, NUMBER_DTYPES
from penstock.errors import ConfigError
from penstock.extras import require
from penstock.reading.sample_rng import SampleRng

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.episodes.info import Feature
    from penstock.episodes.samples import SampleOptions
    from penstock.types import Sample

_CHANNELS_FIRST = ("channel", "channels")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOfMix:
    """One entry of the samples of a mix: what it looks like where there is one, and who has none."""

    key: str
    feature: Feature  # of the first dataset that has it
    own_keys: tuple[str | None, ...]  # what each dataset calls it
    width: int | None  # of its window, if it has one
    pictures: SampleOptions  # of that dataset

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its values; pictures have their channels first, and one of a window stands alone."""
        feature, width = self.feature, self.width
        shape = feature.shape if feature.shape != (1,) else ()
        if feature.is_camera and not _has_channels_first(feature):
            shape = (shape[-1], *shape[:-1])
        is_alone = width is None or (feature.is_camera and width == 1)
        return shape if is_alone or width is None else (width, *shape)


def _has_channels_first(feature: Feature) -> bool:
    if isinstance(feature.names, list | tuple) and feature.names:
        return feature.names[0] in _CHANNELS_FIRST
    return feature.shape[0] in (1, 3) and feature.shape[-1] not in (1, 3)


def join_keys(
    features: Sequence[Mapping[str, Feature]],
    name_in_mix: Sequence[Callable[[str], str | None]],
    widths: Mapping[str, int],
    pictures: Sequence[SampleOptions],
    wanted: Sequence[str] | None,
) -> dict[str, KeyOfMix]:
    """Lay the features of all datasets side by side, by what they are called in the mix."""
    own: dict[str, list[str | None]] = {}
    for number, (of_dataset, named) in enumerate(zip(features, name_in_mix, strict=True)):
        for key in of_dataset:
            name = key if key in ALWAYS else named(key)
            if name is not None:
                own.setdefault(name, [None] * len(features))[number] = key
    for name in {*(wanted or ()), *widths} - own.keys():
        raise ConfigError(f"no dataset of the mix has {name!r}: they have {', '.join(own)}", key=name)
    chosen = [name for name in own if wanted is None or name in wanted or name in ALWAYS]
    first = {name: next(number for number, key in enumerate(own[name]) if key is not None) for name in chosen}
    return {
        name: KeyOfMix(
            key=name,
            feature=features[first[name]][str(own[name][first[name]])],
            own_keys=tuple(own[name]),
            width=widths.get(name),
            pictures=pictures[first[name]],
        )
        for name in chosen
    }


def check_alike(key: KeyOfMix, features: Sequence[Mapping[str, Feature]], urls: Sequence[str]) -> None:
    """Refuse a key whose values cannot stand in one batch, because two datasets have them in different shapes."""
    found: tuple[str, str] | None = None
    for of_dataset, own, url in zip(features, key.own_keys, urls, strict=True):
        if own is None:
            continue
        feature = of_dataset[own]
        kind = "picture" if feature.is_camera else feature.sample_dtype
        looks = f"{kind} of shape {list(replace(key, feature=feature, width=None).shape)}"
        if found is not None and found[0] != looks:
            raise ConfigError(
                f"{key.key!r} is a {found[0]} in {found[1]}, but a {looks} in {url}: rename or leave out one of them in"
                " keys=, or make them alike with image_transforms= or sample_transform=",
                key=key.key,
            )
        found = looks, url


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeSamples:
    """Turns samples of one dataset into those of the mix. It goes to workers, so it holds plain values only."""

    number: int  # of the dataset in the mix
    keys: Mapping[str, KeyOfMix]
    transform: Callable[[Sample], Any] | None = None
    _black: dict[str, Any] = field(default_factory=dict)  # the shape and dtype of missing pictures, by key

    def __call__(self, sample: Sample) -> Any:
        """Return a sample of this dataset as one of the mix."""
        torch = require("torch", extra="torch", purpose="samples of robot episodes")
        made: Sample = {}
        for name, key in self.keys.items():
            own = key.own_keys[self.number]
            if own is None:
                made[name] = self._pad(torch, key)
                continue
            # A window of one picture is that picture, whether it comes from a video or from the rows.
            is_window = key.feature.is_camera and key.width == 1 and getattr(sample[own], "ndim", 0) == 4
            made[name] = sample[own][0] if is_window else sample[own]
        for name, key in self.keys.items():
            if key.width is not None:
                own = key.own_keys[self.number]
                made[f"{name}_is_pad"] = (
                    torch.ones(key.width, dtype=torch.bool) if own is None else sample[f"{own}_is_pad"]
                )
        for name, key in self.keys.items():
            if None in key.own_keys:
                made[f"{name}_is_missing"] = torch.tensor(key.own_keys[self.number] is None)
        made["task"] = sample["task"]
        made["dataset_index"] = torch.tensor(self.number)
        return made if self.transform is None else self.transform(made)

    def _pad(self, torch: Any, key: KeyOfMix) -> Any:
        """Return zeros in the shape that the others have."""
        feature = key.feature
        if feature.is_camera:
            if key.key not in self._black:
                self._black[key.key] = _picture_like(torch, key)
            return _zeros(torch, *self._black[key.key])
        if feature.dtype in NUMBER_DTYPES:
            return torch.zeros(key.shape, dtype=getattr(torch, feature.sample_dtype))
        return "" if key.width is None else [""] * key.width


def _zeros(torch: Any, shape: Sequence[int], dtype: Any) -> Any:
    """Return black; torch itself would have a pool of threads make it."""
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).reshape(shape)


def _picture_like(torch: Any, key: KeyOfMix) -> tuple[Any, Any]:
    """Return in what shape and type the dataset that has this picture gives it, after its transform."""
    dtype = torch.uint8 if key.pictures.return_uint8 else torch.float32
    if key.feature.is_deep:
        dtype = torch.uint16 if key.feature.depth is None else torch.float32
    picture = _zeros(torch, key.shape, dtype)
    if key.pictures.image_transforms is not None:
        given = {"rng": SampleRng().begin(0)} if key.pictures.draws else {}
        picture = key.pictures.image_transforms(picture, **given)
    return picture.shape, picture.dtype
