"""What `stats()` gives: the counts of this rank, of all its loaders' workers, under names that stay."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from penstock.cache.stats import COUNTED as COUNTED_BY_CACHE
from penstock.counters import Counters
from penstock.data.seat import worker_number
from penstock.reading.readers import COUNTED, COUNTED_BY_STREAM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.counters import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """What was read of one stream, and what its cache did."""

    samples: int = 0  # read in passes: workers read ahead of what the training loop has taken
    bytes: int = 0  # of these samples as they are stored, unpacked, by the average of their stream
    cache_hits: int = 0  # how often a shard was opened that was there
    cache_waits: int = 0  # how often one was opened that had to be waited for
    downloads: int = 0  # files that were fetched because this rank wanted them, before others on its node did
    downloaded_bytes: int = 0  # as they came from the store, and of samples that were fetched by themselves
    downloads_again: int = 0  # of the downloads: of what had been fetched before, and was removed to make room


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats(StreamStats):
    """The same of all streams, and what the time of one worker went to; or the sum over several."""

    skipped: int = 0  # samples that could not be read, with `on_error="skip"`
    seconds_reading: float = 0.0  # opening shards that are there, taking stored values out of them
    seconds_waiting: float = 0.0  # for shards, or parts of them, that are not there
    seconds_decoding: float = 0.0  # making values of what is stored
    seconds_transforming: float = 0.0  # in your `sample_transform`, `batch_transform` or `get_item`
    seconds_collating: float = 0.0  # making batches of samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStats:
    """How the training loop fared that takes batches from a `StreamingDataLoader`."""

    batches: int = 0  # that it took
    seconds_starting: float = 0.0  # that it waited for the first batch of each pass
    seconds_waiting: float = 0.0  # that it waited for all others
    seconds_training: float = 0.0  # from getting a batch to asking for the next one
    waiting_share: float | None = None  # of the time after the first batch of each pass; None: there was none yet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """What the fetcher of this node did since its start, for all processes of this user, and what it does now."""

    downloads: int = 0
    bytes: int = 0  # that came from stores, whatever for
    bytes_twice: int = 0  # of them, those that were read alone before their shard came as a whole
    retries: int = 0
    errors: int = 0
    evictions: int = 0  # files that were removed to make room
    evicted_bytes: int = 0
    in_flight: int = 0  # files that are being fetched now
    queued: int = 0
    pieces_in_flight: int = 0
    concurrency: int = 0  # pieces that it fetches at a time
    bytes_per_s: float = 0.0
    groups: int = 0  # datasets, in whatever process, that it fetches for
    directories: Mapping[str, int] = field(default_factory=dict)  # bytes in each cache directory, or on their way to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(WorkerStats):
    """What `stats()` of a dataset or loader returns: sums over all workers of this rank, since the dataset was opened.

    docs/waiting.md explains each field. `loader.stats(flat=True)` returns the same as a dict of plain numbers.
    """

    streams: tuple[StreamStats, ...] = ()
    workers: Mapping[str, WorkerStats] = field(default_factory=dict)  # with `by_worker=True`: "0", "1", …, and "main"
    loop: LoopStats | None = None  # None: a loader other than `StreamingDataLoader` hides it
    uncounted_bytes: int = (
        0  # that tables and copies of indexes take in its cache folders besides what `cache_limit` counts
    )
    node: NodeStats = field(default_factory=NodeStats)  # zeros as long as nothing had to be fetched

    def flat(self) -> dict[str, float]:
        """Return all numbers by dotted name, such as `loop.waiting_share`; those of streams if there are several."""
        return dict(_flatten(self))


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float):
        yield name, value
        return
    if is_dataclass(value):
        parts = {each.name: getattr(value, each.name) for each in fields(value) if each.name != "directories"}
    elif isinstance(value, dict):
        parts = value
    elif isinstance(value, tuple) and len(value) > 1:
        parts = {str(number): part for number, part in enumerate(value)}
    else:
        return
    for part, inside in parts.items():
        yield from _flatten(inside, f"{name}.{part}" if name else part)


# --- From counters --------------------------------------------------------------------------------------------

_OF_STREAM = (*COUNTED_BY_STREAM, *COUNTED_BY_CACHE)
_NAMES = {"hits": "cache_hits", "waits": "cache_waits"}


def open_counters(num_streams: int) -> Counters:
    """Begin to count for a dataset of so many streams, in this process and in its workers."""
    by_stream = [f"{stream}.{name}" for stream in range(num_streams) for name in _OF_STREAM]
    return Counters([*COUNTED, *by_stream], worker_number)


def make_stats(
    counts: Sequence[Counts],
    num_streams: int,
    *,
    node: Mapping[str, Any] | None = None,
    loop: LoopStats | None = None,
    by_worker: bool = False,
) -> Stats:
    """Add up what was counted."""
    total = {name: sum(of.numbers[name] for of in counts) for name in counts[0].numbers} if counts else {}
    workers = {"main" if of.worker is None else str(of.worker): of.numbers for of in counts} if by_worker else {}
    return Stats(
        **_of_worker(total, num_streams),
        streams=tuple(StreamStats(**_of_stream(total, stream)) for stream in range(num_streams)),
        workers={name: WorkerStats(**_of_worker(numbers, num_streams)) for name, numbers in workers.items()},
        loop=loop,
        uncounted_bytes=(node or {}).get("uncounted_bytes", 0),
        node=NodeStats(**{each.name: node[each.name] for each in fields(NodeStats)}) if node else NodeStats(),
    )


def _of_stream(numbers: Mapping[str, int], stream: int) -> dict[str, int]:
    return {
        _NAMES.get(name, name): numbers.get(f"{stream}.{name}", 0) for name in _OF_STREAM if not name.endswith("_ns")
    }


def _of_worker(numbers: Mapping[str, int], num_streams: int) -> dict[str, Any]:
    by_stream = [_of_stream(numbers, stream) for stream in range(num_streams)]
    seconds = [name.removesuffix("_ns") for name in COUNTED if name.endswith("_ns")]
    return {
        **{name: sum(of[name] for of in by_stream) for name in by_stream[0]},
        "skipped": numbers.get("skipped", 0),
        **{f"seconds_{name}": numbers.get(f"{name}_ns", 0) / 1e9 for name in seconds},
    }
