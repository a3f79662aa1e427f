"""What `stats()` of robot datasets gives, besides what it gives of all datasets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.data.stats import Stats, StreamStats, WorkerStats
from penstock.episodes.counters import clip_stats, latency_ms
from penstock.episodes.decoders import COUNTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.counters import Counters
    from penstock.episodes.source import EpisodeSource

_Counts = TypeVar("_Counts", StreamStats, WorkerStats, "EpisodeStats")
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


def count_videos(counters: Counters, sources: Sequence[EpisodeSource]) -> dict[str, Any]:
    """Sum up what decoders did, over all workers."""
    total: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    for counts in counters.read():
        total.update({name: counts.numbers[name] for name in COUNTED})
    asked = total["hits"] + total["misses"]
    decode_s = total.pop("decode_ns") / 1e9
    fetched = [clip_stats(of.numbers, stream) for of in counters.read() for stream in range(len(sources))]
    open_here = [source.files.videos.made for source in sources]
    return {
        **total,
        "bytes_fetched": sum(each.downloaded_bytes for each in fetched),
        "hit_rate": total["hits"] / asked if asked else None,
        "size": sum(videos.num_open for videos in open_here if videos is not None),
        "seconds_decoding": decode_s,
    }


def count_episodes(base: Stats, counters: Counters, sources: Sequence[EpisodeSource]) -> EpisodeStats:
    """Add what the readers of rows, images and videos counted; `sources` are those of the streams, in their order."""
    of_streams = []
    whole = EpisodeStats(**{each.name: getattr(base, each.name) for each in fields(base)})
    for stream, source in zip(base.streams, sources, strict=True):
        for reader in (source.files.rows, *source.files.images.values()):
            inside = reader.count(by_worker=bool(base.workers))
            stream = _add(stream, inside)
            whole = _add(whole, inside)
            workers = {name: _add(of, inside.workers.get(name)) for name, of in whole.workers.items()}
            whole = replace(whole, workers=workers, node=inside.node)
        of_streams.append(stream)
    whole, of_streams = _add_clips(whole, of_streams, counters)
    latencies: Counter[str] = Counter()
    for counts in counters.read():
        latencies.update(counts.numbers)
    percentiles = {f"p{share}_ms": latency_ms(latencies, share / 100) for share in (50, 95, 99)}
    return replace(
        whole,
        streams=tuple(of_streams),
        video=count_videos(counters, sources),
        latency=LatencyStats(**percentiles),
    )


def _add_clips(
    whole: EpisodeStats, of_streams: list[StreamStats], counters: Counters
) -> tuple[EpisodeStats, list[StreamStats]]:
    """Add what was fetched of videos."""
    workers = dict(whole.workers)
    for counts in counters.read():
        name = "main" if counts.worker is None else str(counts.worker)
        for stream in range(len(of_streams)):
            found = clip_stats(counts.numbers, stream)
            whole, of_streams[stream] = _add(whole, found), _add(of_streams[stream], found)
            if name in workers:
                workers[name] = _add(workers[name], found)
    return replace(whole, workers=workers), of_streams


def _add(counts: _Counts, others: StreamStats | None) -> _Counts:
    if others is None:
        return counts
    return replace(counts, **{name: getattr(counts, name) + getattr(others, name) for name in _FROM_ROWS})
