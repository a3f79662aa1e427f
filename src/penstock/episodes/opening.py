"""From a LeRobot dataset in a folder or a store to what its frames are read with. No row or video is touched yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cache.proxied import open_proxied
from penstock.data.dataset import StreamingDataset
from penstock.data.stream import Stream
from penstock.episodes.decoders import Videos
from penstock.episodes.meta import LeRobotMetadata, load_metadata
from penstock.episodes.samples import PictureOptions
from penstock.episodes.source import EpisodeFiles, EpisodeSource, SampleOptions, choose_frames
from penstock.episodes.windows import parse_windows
from penstock.errors import BadIndexError, ConfigError
from penstock.index.paths import resolve_inside
from penstock.order.pool import pool_size
from penstock.processes import PerProcess
from penstock.spent import reading_inside
from penstock.storage.base import url_scheme
from penstock.storage.local import LocalStore
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.counters import Counters
    from penstock.episodes.settings import EpisodeSettings
    from penstock.types import Int64Array

_MOST_DECODERS = 256


def open_episodes(
    settings: EpisodeSettings,
    counters: Counters,
    windows_of: Callable[[LeRobotMetadata], Mapping[str, Sequence[float]]] | None = None,
) -> EpisodeSource:
    """Read the metadata, and give the source of all frames that the user chose.

    `windows_of` gives the windows in seconds if they depend on the dataset.
    """
    meta = _read_metadata(settings)
    windows = settings.delta_timestamps if windows_of is None else windows_of(meta)
    options = SampleOptions(
        windows=parse_windows(windows, list(meta.schema.features), meta.fps, settings.tolerance_s),
        tolerance_s=settings.tolerance_s,
        pictures=PictureOptions(return_uint8=settings.return_uint8, image_transforms=settings.image_transforms),
    )
    chosen = choose_frames(
        meta.episodes.lengths,
        _choose_episodes(meta, settings),
        settings.drop_n_first_frames,
        settings.drop_n_last_frames,
    )
    files = _open_files(settings, meta, chosen.episodes, _open_videos(settings, len(meta.video_keys), counters))
    return EpisodeSource(meta, chosen, files, options, counters)


def pool_window(source: EpisodeSource, settings: EpisodeSettings) -> int:
    """Say how many episodes are mixed at a time: as many as the user wants, if their rows fit."""
    most_bytes = None if settings.pool_bytes is None else parse_bytes(settings.pool_bytes)
    return pool_size(source.row_sizes, settings.episode_pool_size, most_bytes)


def _read_metadata(settings: EpisodeSettings) -> LeRobotMetadata:
    store = open_proxied(settings.place, settings.storage_options)
    try:
        return load_metadata(store, settings.place)
    finally:
        close = getattr(store, "close", None)
        if close is not None:
            close()


def _choose_episodes(meta: LeRobotMetadata, settings: EpisodeSettings) -> Int64Array:
    """Give the places in the table of the episodes that a user wants, in stored order."""
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
    settings: EpisodeSettings, meta: LeRobotMetadata, episodes: Int64Array, videos: PerProcess[Videos]
) -> EpisodeFiles:
    """Open the rows of some episodes, where they are: one reader of all values, one of each image."""
    table = meta.episodes
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
    rows = read([feature.key for feature in meta.row_features if not feature.is_image])
    return EpisodeFiles(
        rows=rows,
        first_rows=(np.cumsum(counts) - counts)[file_of.reshape(-1)] + table.first_rows[episodes],
        images={key: read([key], image_decoder="array") for key in meta.image_keys},
        videos=videos,
        video_path=partial(_fetched_path, rows) if folder is None else partial(_path_in, folder),
        fetch_video=partial(_fetch_ahead, rows) if folder is None and settings.prefetch_videos else None,
    )


def _stream_of(settings: EpisodeSettings, names: tuple[str, ...]) -> Stream:
    """Give a stream of the data files, below the root of the dataset, so that it also fetches what lies beside them."""
    stream = Stream(remote=settings.data_place, format="parquet", storage_options=settings.storage_options)
    stream.patterns = names
    return stream


def _folder_of(place: str) -> Path | None:
    """Give the folder of this machine that a place is; None: it is in a store."""
    scheme = url_scheme(place)
    if scheme is None:
        return Path(place).expanduser()
    return LocalStore.from_url(place).root if scheme == "file" else None


def _path_in(folder: Path, name: str) -> str:
    return str(resolve_inside(folder, name))


def _fetched_path(rows: StreamingDataset, name: str) -> str:
    with reading_inside():
        return str(rows.fetch(name))


def _fetch_ahead(rows: StreamingDataset, name: str) -> None:
    rows.fetch(name, ahead=True)


def _open_videos(settings: EpisodeSettings, num_cameras: int, counters: Counters) -> PerProcess[Videos]:
    """Have each process decode with files of its own, as many open as a pool needs."""
    max_open = settings.video_decoder_cache_size
    if max_open is None:
        max_open = min(_MOST_DECODERS, max(1, (settings.episode_pool_size + 1) * num_cameras))
    return PerProcess(partial(_make_videos, max_open, parse_bytes(settings.frame_cache_bytes), counters))


def _make_videos(max_open: int, frame_cache_bytes: int, counters: Counters) -> Videos:
    return Videos(max_open, frame_cache_bytes, counters.row())
