"""How many samples each stream gives to an epoch, and which of each shard, when streams are cut short or repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError
from penstock.order.mosaic.ids import PIECE, IdArray, dtype_for
from penstock.order.weights import StreamWeight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.order.mosaic.rules import MosaicRules
    from penstock.types import Int64Array


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
        alone = (
            int(weight.repeat * size) if weight.repeat is not None else size if weight.choose is None else weight.choose
            for size, weight in pairs
        )
        choose = np.fromiter(alone, np.int64)
        proportions = _normalise(choose.astype(np.float64))
    for stream_id, (size, chosen) in enumerate(zip(sizes.tolist(), choose.tolist(), strict=True)):
        if chosen and not size:
            raise ConfigError(f"stream {stream_id} should give {chosen} samples, but it is empty: leave it out")
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


def _normalise(amounts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = amounts.sum()
    if total <= 0:
        raise ConfigError("all streams together give no samples to an epoch: raise a proportion, repeat or choose")
    return np.asarray(amounts / total, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicShards:
    """The shards of one stream: how many samples each holds and the id of each one's first."""

    sizes: Int64Array
    first_ids: Int64Array

    @property
    def num_samples(self) -> int:
        """Count the samples of the stream."""
        return int(self.sizes.sum())

    @property
    def end_id(self) -> int:
        """Return the id after the last sample of the stream."""
        return int((self.first_ids + self.sizes).max(initial=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """An epoch before shuffling: the sizes of its shuffle units, and the id at each position.

    Units are never empty. `ids` is None where every position is its own id.
    """

    units: Int64Array
    ids: IdArray | None

    @property
    def num_samples(self) -> int:
        """Count the samples of the epoch."""
        return int(self.units.sum())


def lay_shards(shard_sizes: Sequence[Sequence[int]]) -> tuple[MosaicShards, ...]:
    """Number the samples through all shards of all streams in order."""
    streams = []
    first_id = 0
    for sizes_of_stream in shard_sizes:
        sizes = np.asarray(sizes_of_stream, np.int64)
        first_ids = first_id + np.cumsum(sizes) - sizes
        streams.append(MosaicShards(sizes=sizes, first_ids=first_ids))
        first_id += int(sizes.sum())
    return tuple(streams)


def resample(streams: Sequence[MosaicShards], choose: Sequence[int], rules: MosaicRules, epoch: int) -> Sampled:
    """Draw the epoch's samples of these streams, one stream after the other."""
    if all(chosen == shards.num_samples for shards, chosen in zip(streams, choose, strict=True)):
        return _take_everything(streams)
    is_balanced, seed = rules.sampling_method == "balanced", rules.shuffle_seed
    draws = np.random.default_rng(seed + epoch if is_balanced else seed)
    ids = np.empty(sum(choose), dtype_for(max(shards.end_id for shards in streams)))
    units: list[int] = []
    begin = 0
    for shards, chosen in zip(streams, choose, strict=True):
        if rules.is_release_0_5:
            counts = _count_per_shard_0_5(shards.sizes, chosen, draws)
        else:
            granularity, anew = rules.sampling_granularity, rules.draws_anew
            counts = choose_per_shard(
                shards.sizes, chosen, granularity=granularity, seed=seed, epoch=epoch, draws_anew=anew
            )
        for size, first_id, count in zip(
            shards.sizes.tolist(), shards.first_ids.tolist(), counts.tolist(), strict=True
        ):
            if count:
                units += _units_of_shard(size, count)
                _fill_shard(ids[begin : begin + count], size, first_id, draws)
                begin += count
    return Sampled(units=np.array(units, np.int64), ids=ids)


def choose_per_shard(
    sizes: Int64Array, choose: int, *, granularity: int, seed: int, epoch: int, draws_anew: bool
) -> Int64Array:
    """Split `choose` samples over shards: whole passes, then random runs of `granularity` samples."""
    num_samples = int(sizes.sum())
    passes, left = divmod(choose, num_samples) if num_samples else (0, 0)
    counts: Int64Array = sizes * passes
    if not left:
        return counts
    picks_per_shard = -(-sizes // granularity)
    pick_ends = np.cumsum(picks_per_shard)
    order = np.random.default_rng(seed + epoch if draws_anew else seed).permutation(int(pick_ends[-1]))
    last_sizes = sizes - (picks_per_shard - 1) * granularity
    for begin in range(0, len(order), PIECE):
        picks = order[begin : begin + PIECE]
        shard_ids = np.searchsorted(pick_ends, picks, side="right")
        is_last = picks == pick_ends[shard_ids] - 1
        taken = np.cumsum(np.where(is_last, last_sizes[shard_ids], granularity))
        np.add.at(counts, shard_ids, np.diff(np.minimum(taken, left), prepend=0))
        left -= min(left, int(taken[-1]))
        if not left:
            break
    return counts


def _units_of_shard(size: int, count: int) -> list[int]:
    if not size:
        raise ConfigError("an empty shard was drawn to give a sample: leave empty shards out of the index")
    passes, rest = divmod(count, size)
    return [size] * passes + [rest] * bool(rest)


def _fill_shard(ids: IdArray, size: int, first_id: int, draws: np.random.Generator) -> None:
    passes, rest = divmod(len(ids), size)
    if passes:
        ids[: passes * size].reshape(passes, size)[:] = np.arange(first_id, first_id + size)
    if rest:
        ids[passes * size :] = np.sort(first_id + draws.choice(size, rest, replace=False))


def _take_everything(streams: Sequence[MosaicShards]) -> Sampled:
    units = np.concatenate([shards.sizes for shards in streams])
    # Streams that follow one another from id 0 need no table; a stream taken alone may begin anywhere.
    first_ids = np.concatenate([shards.first_ids for shards in streams])
    begin = int(first_ids[0]) if len(first_ids) else 0
    ids = None
    if begin:
        end = begin + int(units.sum())
        ids = np.arange(begin, end, dtype=dtype_for(end))
    return Sampled(units=units[units > 0], ids=ids)


def _count_per_shard_0_5(sizes: Int64Array, choose: int, draws: np.random.Generator) -> Int64Array:
    num_samples = int(sizes.sum())
    if choose == num_samples:
        return sizes
    counts = sizes * choose // num_samples
    missing = choose - int(counts.sum())
    counts[draws.choice(len(sizes), missing, replace=False)] += 1
    return counts
