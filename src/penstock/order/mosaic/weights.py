"""How many samples each stream gives to an epoch, from the weights that the user gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError
from penstock.order.weights import StreamWeight

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShare:
    """What a stream gives to every epoch: `choose` samples, also relative to its size and to the whole."""

    choose: int
    repeat: float
    proportion: float


def share_out(
    stream_sizes: Sequence[int],
    weights: Sequence[StreamWeight],
    *,
    epoch_size: int | None,
    seed: int,
    may_cut_unweighted: bool = True,
) -> tuple[StreamShare, ...]:
    """Turn weights into samples per epoch, exactly `epoch_size` in all where that is given.

    `may_cut_unweighted` says whether streams without any weight may be given an `epoch_size`.
    """
    sizes = np.asarray(stream_sizes, np.int64)
    has_proportions = _has_proportions(weights)
    is_unweighted = all(weight == StreamWeight() for weight in weights)
    if has_proportions:
        given = np.array([weight.proportion for weight in weights], np.float64)
        choose, proportions = _share_by_proportion(given, epoch_size or int(sizes.sum()), seed)
    elif epoch_size is not None and is_unweighted and may_cut_unweighted:
        choose, proportions = _share_by_proportion(sizes.astype(np.float64), epoch_size, seed)
    elif epoch_size is not None:
        raise ConfigError(
            f"epoch_size={epoch_size} needs streams weighted by proportion: leave out epoch_size, or give every"
            " stream a proportion"
        )
    else:
        pairs = zip(stream_sizes, weights, strict=True)
        choose = np.array([_choose_absolutely(size, weight) for size, weight in pairs], np.int64)
        proportions = _normalise(choose.astype(np.float64))
    _check_not_empty(sizes.tolist(), choose.tolist())
    return tuple(
        StreamShare(choose=chosen, repeat=chosen / size if size else 0.0, proportion=proportion)
        for chosen, size, proportion in zip(choose.tolist(), sizes.tolist(), proportions.tolist(), strict=True)
    )


def _has_proportions(weights: Sequence[StreamWeight]) -> bool:
    given = [weight.proportion is not None for weight in weights]
    if any(given) and not all(given):
        raise ConfigError(
            f"stream {given.index(False)} has no proportion, but stream {given.index(True)} has one: give every"
            " stream a proportion, or none"
        )
    return all(given)


def _share_by_proportion(
    proportions: npt.NDArray[np.float64], epoch_size: int, seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    normalised = _normalise(proportions)
    choose = (epoch_size * normalised).astype(np.int64)
    # Truncation leaves fewer than one sample per stream over: they go to streams drawn without replacement.
    missing = epoch_size - int(choose.sum())
    choose[np.random.default_rng(seed).choice(len(choose), missing, replace=False)] += 1
    return choose, normalised


def _choose_absolutely(size: int, weight: StreamWeight) -> int:
    if weight.repeat is not None:
        return int(weight.repeat * size)
    return size if weight.choose is None else weight.choose


def _check_not_empty(sizes: Sequence[int], choose: Sequence[int]) -> None:
    for stream_id, (size, chosen) in enumerate(zip(sizes, choose, strict=True)):
        if chosen and not size:
            raise ConfigError(f"stream {stream_id} should give {chosen} samples, but it is empty: leave it out")


def _normalise(amounts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = amounts.sum()
    if total <= 0:
        raise ConfigError("all streams together give no samples to an epoch: raise a proportion, repeat or choose")
    return np.asarray(amounts / total, np.float64)
