"""What a person may say about the order, what a plan is made of, and what follows from the index alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.errors import ConfigError
from penstock.order.plan import BATCHING_METHODS, BatchingMethod
from penstock.order.weights import StreamWeight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.order.plan import EpochEnd
    from penstock.order.schedule import MixSchedule
    from penstock.types import Int64Array

# Opening bytes that have to be unpacked takes so many times as long as opening others. An order opens half of its
# window for its first batches: unpacking that has to take a second, not a minute.
UNPACKING_COSTS = 32


class NamesFiles(Protocol):
    """What knows the files that shards are parts of."""

    def content_of(self, shards: Int64Array) -> str:
        """Name the files of some shards, as the content of a dataset of these alone."""

    def file_of(self, shard: int) -> str:
        """Return the name of the file of a shard."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamShards:
    """One stream as the order sees it: a name that stays the same over the run, shard lengths, a weight.

    Files of other programs have shards of any size, so these count, too, and names and sizes of the files tell one
    dataset from another. Of a dataset with an index of its own, both are left out: its order is promised for ever.
    """

    name: str
    lengths: Int64Array
    weight: StreamWeight = field(default_factory=StreamWeight)
    sizes: Int64Array | None = (
        None  # bytes of each shard, more if they have to be unpacked: what it costs to have it open
    )
    content: str = ""  # names the files
    stretches: Int64Array | None = None  # ids at which samples begin that are best read in a row; `content` names them
    window: int | None = None  # how many shards are shuffled together, if the stream says so
    files: NamesFiles | None = None  # what `content` names
    joined: Int64Array | None = None  # lengths of shards behind these, which joined when the epoch had begun

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", np.asarray(self.lengths, dtype=np.int64))

    @property
    def num_samples(self) -> int:
        """Count the samples of one pass."""
        return int(self.lengths.sum())

    @property
    def all_lengths(self) -> Int64Array:
        """The lengths of all shards that have ids: of those that joined, too."""
        return self.lengths if self.joined is None else np.concatenate([self.lengths, self.joined])

    def choose_window(self, block_size: int | None, num_lanes: int, num_streams: int) -> int:
        """Choose how many shards of it each lane keeps open."""
        if self.window is not None:
            return self.window
        if block_size is not None:
            return window_of_block(self.lengths, block_size)
        return default_window(self.lengths, num_lanes, num_streams, self.sizes)

    @property
    def fingerprint(self) -> str:
        """Name the shard lengths, and the files if they count: others are other data."""
        named = self.lengths.astype("<i8").tobytes() + self.content.encode()
        return hashlib.blake2b(named, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """Settings of an order; what is None follows from the index.

    `order` names the order of each stream: `native`, or one that a plug-in registered in
    `penstock.order.base.orders`.

    `num_canonical_nodes` sets the lanes: nodes that divide it read only their own part of the data.
    `shuffle_block_size` sets how many samples each lane shuffles among. The batching methods other than
    `random` fix the global batch, and `device_per_stream` the device batch, in samples.
    """

    order: str = "native"
    seed: int = 9176
    shuffle: bool = True
    num_canonical_nodes: int | None = None
    shuffle_block_size: int | None = None
    epoch_size: int | None = None
    epoch_end: EpochEnd = "pad"
    batching_method: BatchingMethod = "random"
    global_batch_size: int | None = None
    device_batch_size: int | None = None
    schedule: MixSchedule | None = None

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name != "seed" and type(value) is int and value < 1:
                raise ConfigError(f"{setting.name}={value} is too small: set it to 1 or more")
        if self.epoch_end not in ("pad", "drop", "trim", "uneven"):
            raise ConfigError(f"unknown epoch_end {self.epoch_end!r}: use pad, drop, trim or uneven")
        if self.batching_method not in BATCHING_METHODS:
            raise ConfigError(
                f"unknown batching_method {self.batching_method!r}: use one of {', '.join(BATCHING_METHODS)}"
            )
        if self.batching_method != "random" and self.global_batch_size is None:
            raise ConfigError(f"batching_method={self.batching_method!r} depends on the global batch: pass batch_size=")
        if self.batching_method != "device_per_stream":
            return
        if self.device_batch_size is None:
            raise ConfigError("batching_method='device_per_stream' depends on the device batch: pass batch_size=")
        if self.global_batch_size is not None and self.global_batch_size % self.device_batch_size:
            raise ConfigError(
                f"a global batch of {self.global_batch_size} is not a multiple of the device batch of"
                f" {self.device_batch_size}: choose sizes that divide evenly"
            )


_MAX_LANES = 64
# With fewer shards in a lane, those that a lane shares with its neighbours cost more than a few percent of
# traffic.
_MIN_SHARDS_PER_LANE = 40
_SHARDS_OPEN = 256
_MIN_WINDOW = 8
# Shards with few samples are likely small: open more of them, until a window holds this many samples.
_MIN_WINDOW_SAMPLES = 1 << 12
_MAX_WINDOW = 1 << 10
# Where shards have any size, all that are open at once, over all lanes and streams, take about this much: as much as
# 256 shards of an MDS dataset do.
_BYTES_OPEN = 16 << 30


def default_lanes(lengths: Sequence[Int64Array], sizes: Sequence[Int64Array | None] = ()) -> int:
    """Cut as many lanes, in powers of two, as leave each at least 40 shards: 1 to 64.

    Where sizes count, no more than can each have some shards of the largest kind open.
    """
    num_shards = sum(int(np.count_nonzero(each)) for each in lengths)
    largest = max((_mean_size(each) for each in sizes if each is not None), default=1)
    lanes = 1
    while lanes < _MAX_LANES and num_shards >= 2 * lanes * _MIN_SHARDS_PER_LANE:
        if 2 * lanes * _MIN_WINDOW * largest > _BYTES_OPEN:
            break
        lanes *= 2
    return lanes


def default_window(lengths: Int64Array, num_lanes: int, num_streams: int, sizes: Int64Array | None = None) -> int:
    """Choose the shards that each lane keeps open of a stream: about 256 over all lanes and streams.

    Where sizes count, it is fewer if these would take too much room.
    """
    window = max(_MIN_WINDOW, _SHARDS_OPEN // num_lanes)
    if (samples := _mean_length(lengths)) * window < _MIN_WINDOW_SAMPLES:
        window = min(_MAX_WINDOW, -(-_MIN_WINDOW_SAMPLES // samples))
    window = max(_MIN_WINDOW // 2, -(-window // num_streams))
    if sizes is None:
        return window
    room = _BYTES_OPEN // (num_lanes * num_streams * _mean_size(sizes))
    return min(window, max(_MIN_WINDOW // 2, room))


def window_of_block(lengths: Int64Array, block_size: int) -> int:
    """Choose the shards that a lane keeps open so that they hold about `block_size` samples."""
    return max(1, round(block_size / _mean_length(lengths)))


def _mean_size(sizes: Int64Array) -> int:
    return max(1, int(np.sum(sizes, dtype=np.int64)) // max(1, len(sizes)))


def _mean_length(lengths: Int64Array) -> int:
    num_shards = int(np.count_nonzero(lengths))
    return max(1, int(np.sum(lengths, dtype=np.int64)) // num_shards) if num_shards else 1
