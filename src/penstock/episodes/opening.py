"""From a LeRobot dataset in a folder or a store to what its frames are read with. No row or video is touched yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cache.cache import Cache
from penstock.cache.proxied import lend_proxied
from penstock.data.dataset import StreamingDataset
from penstock.data.ranks import is_worker
from penstock.data.stream import Stream
from penstock.data.stream_files import FilesOfStream, cached_stream
from penstock.episodes.clips import FetchedClips, LocalClips, clips_request, keep_stretches
from penstock.episodes.counters import clip_counts
from penstock.episodes.decoders import Videos
from penstock.episodes.episode_table import choose_frames
from penstock.episodes.meta import LeRobotMetadata, load_metadata
from penstock.episodes.samples import SampleOptions, parse_windows
from penstock.episodes.source import EpisodeReaders, EpisodeSource
from penstock.episodes.upcoming import Keeping
from penstock.episodes.video.pyav import PyavBackend
from penstock.errors import BadIndexError, ConfigError
from penstock.order.pool import pool_size
from penstock.processes import PerProcess, num_processors
from penstock.reading.sample_rng import takes_rng
from penstock.storage.base import url_scheme
from penstock.storage.local import LocalStore
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.cache.stats import CacheCounts
    from penstock.counters import Counters
    from penstock.episodes.episode_table import ChosenFrames, VideoSpans
    from penstock.episodes.open_clips import ClipLocator
    from penstock.episodes.settings import EpisodeSettings
    from penstock.episodes.video.backend import VideoBackend
    from penstock.types import Int64Array

_MOST_DECODERS = 256
_MOST_THREADS = 8
_MOST_LANES = 8


def open_episodes(
    settings: EpisodeSettings,
    counters: Counters,
    windows_of: Callable[[LeRobotMetadata], Mapping[str, Sequence[float]]] | None = None,
    stream: int = 0,
) -> EpisodeSource:
    """Read the metadata, and give the source of all frames that the user chose.

    `windows_of` gives the windows in seconds if they depend on the dataset; `stream` is its number in a mix.
    """
    meta = _read_metadata(settings).chosen(settings.keys, is_stored=settings.dtypes == "stored")
    windows = settings.delta_timestamps if windows_of is None else windows_of(meta)
    options = SampleOptions(
        windows=parse_windows(windows, list(meta.schema), meta.fps, settings.tolerance_s),
        tolerance_s=settings.tolerance_s,
        return_uint8=settings.return_uint8,
        image_transforms=settings.image_transforms,
        draws=settings.image_transforms is not None and takes_rng(settings.image_transforms),
    )
    chosen = choose_frames(
        meta.episodes.lengths,
        _choose_episodes(meta, settings),
        settings.drop_n_first_frames,
        settings.drop_n_last_frames,
    )
    if not chosen.counts.any():
        longest = int(meta.episodes.lengths[chosen.episodes].max())
        raise ConfigError(
            f"no frame of {meta.url} is left: its longest episode has {longest} frames; lower drop_n_first_frames= or"
            " drop_n_last_frames="
        )
    files = _open_files(settings, meta, chosen, options, counters, stream)
    return EpisodeSource(meta, chosen, files, options, counters)


def pool_window(source: EpisodeSource, settings: EpisodeSettings) -> int:
    """Return how many episodes are mixed at a time: as many as the user wants, if their rows fit."""
    most_bytes = None if settings.pool_bytes is None else parse_bytes(settings.pool_bytes)
    return pool_size(source.row_sizes, settings.episode_pool_size, most_bytes)


def lanes_of_pool(pool_size: int) -> int:
    """Choose how many lanes frames are divided among: ranks that divide them decode only what they need themselves."""
    return min(_MOST_LANES, 1 << (pool_size.bit_length() - 1))


def _read_metadata(settings: EpisodeSettings) -> LeRobotMetadata:
    with lend_proxied(settings.place, settings.storage_options) as store:
        return load_metadata(store, settings.place)


def _choose_episodes(meta: LeRobotMetadata, settings: EpisodeSettings) -> Int64Array:
    """Return the places in the table of the episodes that a user wants, in stored order."""
    numbers = meta.episodes.numbers
    chosen = np.arange(len(numbers), dtype=np.int64)
    if settings.episodes is not None:
        wanted = np.unique(np.asarray(list(settings.episodes), dtype=np.int64))
        missing = np.setdiff1d(wanted, numbers)
        if len(missing):
            raise ConfigError(f"episode {int(missing[0])} does not exist: {meta.url} has {len(numbers)} episodes")
        chosen = np.searchsorted(numbers, wanted).astype(np.int64)
    if settings.episode_filter is not None:
        keeps = [bool(settings.episode_filter(meta.episodes[int(place)])) for place in chosen]
        chosen = chosen[np.array(keeps, np.bool_)]
    if not len(chosen):
        raise ConfigError(f"no episode of {meta.url} is left: loosen episodes= or episode_filter=")
    return chosen


def _open_files(
    settings: EpisodeSettings,
    meta: LeRobotMetadata,
    chosen: ChosenFrames,
    options: SampleOptions,
    counters: Counters,
    stream: int,
) -> EpisodeReaders:
    """Open the rows of some episodes, where they are: one reader of all values, one of each image; and the videos."""
    table, episodes = meta.episodes, chosen.episodes
    used, file_of = np.unique(table.data_file_of[episodes], return_inverse=True)
    counts = table.rows_of_files[used]
    names = tuple(table.data_files[file] for file in used.tolist())

    def read(columns: list[str], **options: Any) -> StreamingDataset:
        rows = StreamingDataset(
            streams=[_stream_of(settings, names)], columns=columns, cache_limit=settings.cache_limit, **options
        )
        if rows.num_samples != int(counts.sum()):
            raise BadIndexError(
                f"the data files of {meta.url} have {rows.num_samples} rows, but its episodes have"
                f" {int(counts.sum())} frames",
                path=meta.url,
            )
        return rows

    folder = _folder_of(settings.data_place)
    is_local, by_gop = folder is not None, settings.video_locality == "gop"
    spans = {key: table.videos[key].of_files(np.unique(table.videos[key].file_of[episodes])) for key in meta.video_keys}
    of_clips = clip_counts(counters, stream)
    clips = _open_clips(settings, spans, of_clips) if spans and (not is_local or by_gop) else None
    locator = LocalClips(table.videos, folder, is_shared=not by_gop) if folder is not None else clips
    backend = settings.make_backend() if meta.video_keys else PyavBackend()
    keeping = _plan_keeping(settings, meta, chosen, options, backend)
    return EpisodeReaders(
        rows=read([feature.key for feature in meta.row_features if not feature.is_image]),
        first_rows=(np.cumsum(counts) - counts)[file_of.reshape(-1)] + table.first_rows[episodes],
        images={key: read([key], image_decoder="array") for key in meta.image_keys},
        videos=_open_videos(settings, meta, locator or LocalClips({}, Path()), backend, keeping, counters),
        fetched=None if is_local else clips,
        samples_ahead=2 * keeping.samples_kept if by_gop else int(keeping.most_ahead),
        stretches=keep_stretches(clips, chosen, table.lengths) if by_gop and clips else None,
        pool_samples=settings.episode_pool_size * int(chosen.counts.mean()),
    )


def _open_clips(settings: EpisodeSettings, videos: Mapping[str, VideoSpans], counts: CacheCounts) -> FetchedClips:
    """Have the video files indexed, once a node: where each episode begins, and where its keyframes are."""
    files = FilesOfStream(settings.data_place, clips_request(videos))
    stream = Stream(remote=settings.data_place, storage_options=settings.storage_options)
    stream.apply_default({})
    limit = None if settings.cache_limit is None else parse_bytes(settings.cache_limit)
    cache = Cache([cached_stream(stream, files)], limit_bytes=limit, counts=counts)
    return FetchedClips(videos, cache, cache.open_index(0), settings.prefetch_videos)


def _plan_keeping(
    settings: EpisodeSettings,
    meta: LeRobotMetadata,
    chosen: ChosenFrames,
    options: SampleOptions,
    backend: VideoBackend,
) -> Keeping:
    """Return of how many samples all decoded pictures can be kept."""
    widths = [len(options.windows.get(key, [0])) for key in meta.video_keys]
    sizes = [meta.schema[key].num_pixels * backend.pixel_bytes for key in meta.video_keys]
    sample_bytes = sum(width * size for width, size in zip(widths, sizes, strict=True))
    num_kept = int(parse_bytes(settings.frame_cache_bytes) / max(1, sample_bytes))
    if settings.video_locality == "gop":  # more would have to go before its time
        return Keeping(max(1, 3 * num_kept // 4), num_kept)
    num_frames = int(min(settings.episode_pool_size, len(chosen.counts)) * chosen.counts.mean() * len(widths))
    # About as far as it can be worth to keep anything.
    return Keeping(max(1, 4 * num_kept), num_kept, max(1, num_frames // max(1, sum(widths))))


def _stream_of(settings: EpisodeSettings, names: tuple[str, ...]) -> Stream:
    """Return a stream of the data files, below the root of the dataset, so that files beside them are fetched, too."""
    stream = Stream(remote=settings.data_place, format="parquet", storage_options=settings.storage_options)
    stream.patterns = names
    return stream


def _folder_of(place: str) -> Path | None:
    """Return the folder of this machine that a place is; None: it is in a store."""
    scheme = url_scheme(place)
    if scheme is None:
        return Path(place).expanduser()
    return LocalStore.from_url(place).root if scheme == "file" else None


def _open_videos(
    settings: EpisodeSettings,
    meta: LeRobotMetadata,
    locator: ClipLocator,
    backend: VideoBackend,
    keeping: Keeping,
    counters: Counters,
) -> PerProcess[Videos]:
    """Have each process decode with files of its own, as many open as a pool needs."""
    max_open = settings.video_decoder_cache_size
    if max_open is None:
        max_open = min(_MOST_DECODERS, max(1, (settings.episode_pool_size + 1) * len(meta.video_keys)))
    make = partial(
        Videos,
        locator,
        backend,
        max_open=max_open,
        frame_cache_bytes=parse_bytes(settings.frame_cache_bytes),
        keeping=keeping,
    )
    return PerProcess(partial(_make_videos, make, settings.video_decode_threads, counters))


def _make_videos(make: Callable[..., Videos], num_threads: int | None, counters: Counters) -> Videos:
    if num_threads is None:
        num_threads = 0 if is_worker() else min(_MOST_THREADS, num_processors())
    return make(num_threads=num_threads, row=counters.row())
