"""What all datasets of robot episodes answer: how many there are, what was counted, where to go on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from penstock.counters import Stats, StreamStats, WorkerStats
from penstock.data.dataset import StreamingDataset
from penstock.episodes.counters import clip_stats, latency_ms
from penstock.episodes.decoders import COUNTED
from penstock.order.state_fields import COUNT, check_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.counters import Counters, LoopStats
    from penstock.episodes.source import EpisodeSource

_Counts = TypeVar("_Counts", StreamStats, WorkerStats, "EpisodeStats")
_KIND = "a dataset of robot episodes"
# What the readers of rows and images count, because they open and fetch the files.
_FROM_ROWS = ("cache_hits", "cache_waits", "downloads", "downloaded_bytes", "downloads_again")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """In how many milliseconds samples were read and decoded: half of them, and so on; None: there were none yet."""

    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStats(Stats):
    """What `stats()` of a robot dataset or its loader returns.

    docs/episodes.md explains the fields that other datasets do not have.
    """

    video: Mapping[str, Any] = field(default_factory=dict)  # as `video_decoder_cache_stats()` gives it
    latency: LatencyStats = field(default_factory=LatencyStats)


def _add(counts: _Counts, others: StreamStats | None) -> _Counts:
    if others is None:
        return counts
    return replace(counts, **{name: getattr(counts, name) + getattr(others, name) for name in _FROM_ROWS})


class RobotDataset(StreamingDataset):
    """Frames of robot episodes, of one dataset or several. A subclass sets the two attributes."""

    _sources: Sequence[EpisodeSource]  # of its streams, in their order
    _episode_counters: Counters

    @property
    def num_frames(self) -> int:
        """The number of frames that are samples, over all ranks."""
        return sum(source.spans.num_samples for source in self._sources)

    @property
    def num_episodes(self) -> int:
        """The number of chosen episodes."""
        return sum(len(source.chosen.episodes) for source in self._sources)

    def video_decoder_cache_stats(self) -> dict[str, Any]:
        """Return how often video files were found open, and how many frames were decoded and used, over all workers."""
        total: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        for counts in self._episode_counters.read():
            total.update({name: counts.numbers[name] for name in COUNTED})
        asked = total["hits"] + total["misses"]
        decode_s = total.pop("decode_ns") / 1e9
        streams = range(len(self._sources))
        fetched = [clip_stats(of.numbers, stream) for of in self._episode_counters.read() for stream in streams]
        open_here = [source.files.videos.made for source in self._sources]
        return {
            **total,
            "bytes_fetched": sum(each.downloaded_bytes for each in fetched),
            "hit_rate": total["hits"] / asked if asked else None,
            "size": sum(videos.num_open for videos in open_here if videos is not None),
            "seconds_decoding": decode_s,
        }

    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[False] = ...) -> EpisodeStats: ...
    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[True]) -> dict[str, float]: ...
    def stats(self, *, by_worker: bool = False, flat: bool = False) -> EpisodeStats | dict[str, float]:
        """Count what this rank has read, fetched, decoded and waited for, in this process and in all workers.

        Args:
            by_worker: Give the counts of each worker, too.
            flat: Give numbers by dotted name, for loggers, instead of an object with named fields.
        """
        counted = self.count(by_worker=by_worker)
        return counted.flat() if flat else counted

    def count(self, *, loop: LoopStats | None = None, by_worker: bool = False) -> EpisodeStats:
        """Return the counts of this rank, with those of a training loop."""
        base = super().count(loop=loop, by_worker=by_worker)
        whole = EpisodeStats(**{each.name: getattr(base, each.name) for each in fields(base)})
        of_streams, workers = [], dict(base.workers)
        for stream, source in zip(base.streams, self._sources, strict=True):
            for reader in (source.files.rows, *source.files.images.values()):
                inside = reader.count(by_worker=bool(base.workers))
                stream, whole = _add(stream, inside), replace(_add(whole, inside), node=inside.node)
                workers = {name: _add(of, inside.workers.get(name)) for name, of in workers.items()}
            of_streams.append(stream)
        latencies: Counter[str] = Counter()
        for counts in self._episode_counters.read():
            latencies.update(counts.numbers)
            name = "main" if counts.worker is None else str(counts.worker)
            for number, stream in enumerate(of_streams):
                found = clip_stats(counts.numbers, number)  # of videos
                whole, of_streams[number] = _add(whole, found), _add(stream, found)
                if name in workers:
                    workers[name] = _add(workers[name], found)
        percentiles = {f"p{share}_ms": latency_ms(latencies, share / 100) for share in (50, 95, 99)}
        return replace(
            whole,
            streams=tuple(of_streams),
            workers=workers,
            video=self.video_decoder_cache_stats(),
            latency=LatencyStats(**percentiles),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of this class or of a loader, from an epoch and a number of samples, or from LeRobot's.

        `{"epoch": …, "samples": …}` counts samples over all ranks since the beginning of the epoch.
        `{"batches_consumed": …, "batch_size": …}` counts batches of each rank in the next epoch, on as many ranks as
        there are now.
        """
        super().load_state_dict(self._state_from_counts(state))

    def _state_from_counts(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete a state of two numbers, which training loops count themselves; return any other as it is."""
        if not isinstance(state, dict):
            return state
        if set(state) == {"epoch", "samples"}:
            check_fields(state, {"epoch": COUNT, "samples": COUNT}, _KIND)
            epoch, samples = state["epoch"], state["samples"]
        elif "batches_consumed" in state:
            counted = {"batch_size": self.batch_size, **state}
            check_fields(counted, {"batches_consumed": COUNT, "batch_size": COUNT}, _KIND)
            epoch, num_ranks = self.next_epoch, self.run.seat().world.num_ranks
            samples = counted["batches_consumed"] * counted["batch_size"] * num_ranks
        else:
            return state
        return {**self.run.describe_order(), "epoch": epoch, "position": min(samples, int(self.epoch_size))}
