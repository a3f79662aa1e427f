"""Where the frames of each episode are: its rows in data files, its spans in video files. One array per column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock.episodes.info import fill_path
from penstock.errors import BadIndexError, SampleIndexError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from penstock.episodes.info import DatasetInfo
    from penstock.types import Int64Array

_MAX_FRAMES = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class VideoSpans:
    """Of one camera: the file of each episode, by number and by name, and the second where the episode begins in it."""

    files: tuple[str, ...]
    file_of: Int64Array
    begins: npt.NDArray[np.float64]

    def path(self, episode: int) -> str:
        """Name the file of an episode."""
        return self.files[int(self.file_of[episode])]

    def of_files(self, files: Int64Array) -> VideoSpans:
        """Return the same without all other files; their episodes keep their places, and have no file."""
        place = np.full(len(self.files) + 1, -1)
        place[files] = np.arange(len(files))
        return VideoSpans(tuple(self.files[file] for file in files.tolist()), place[self.file_of], self.begins)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeTable:
    """All episodes of a dataset, in order.

    `table[3]` is one as a dict, by the names that LeRobot uses; `table["length"]` is one of the values of all.
    """

    numbers: Int64Array
    lengths: Int64Array
    from_indices: Int64Array  # the `index` of each episode's first frame
    tasks: Sequence[Sequence[str]]
    data_files: tuple[str, ...]
    data_file_of: Int64Array
    first_rows: Int64Array  # of each episode in its data file
    videos: Mapping[str, VideoSpans]

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, episode: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, episode: str) -> list[Any]: ...
    def __getitem__(self, episode: int | str) -> dict[str, Any] | list[Any]:
        if isinstance(episode, str):
            return self._column(episode)
        if not -len(self) <= episode < len(self):
            raise SampleIndexError(f"episode {episode} does not exist: the dataset has {len(self)}", episode=episode)
        begin, length = int(self.from_indices[episode]), int(self.lengths[episode])
        row: dict[str, Any] = {
            "episode_index": int(self.numbers[episode]),
            "tasks": list(self.tasks[episode]),
            "length": length,
            "dataset_from_index": begin,
            "dataset_to_index": begin + length,
            "data_file": self.data_files[self.data_file_of[episode]],
        }
        for key, spans in self.videos.items():
            row[f"videos/{key}/file"] = spans.path(episode)
            row[f"videos/{key}/from_timestamp"] = float(spans.begins[episode])
        return row

    def _column(self, name: str) -> list[Any]:
        """Return one of the values of all episodes, as a table of the Hub does."""
        columns = {
            "episode_index": self.numbers,
            "length": self.lengths,
            "dataset_from_index": self.from_indices,
            "dataset_to_index": self.from_indices + self.lengths,
        }
        if name in columns:
            return list(columns[name].tolist())
        if name in self[0]:
            return [row[name] for row in self]
        raise SampleIndexError(f"episodes have no {name!r}, but {', '.join(self[0])}", column=name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[episode] for episode in range(len(self)))

    @property
    def rows_of_files(self) -> Int64Array:
        """How many rows each data file has."""
        return np.bincount(self.data_file_of, self.lengths, len(self.data_files)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenFrames:
    """Which frames are samples: some episodes, without so many frames at either end of each."""

    episodes: Int64Array  # places in the table of episodes
    first_frames: Int64Array
    counts: Int64Array


def choose_frames(lengths: Int64Array, episodes: Int64Array, drop_first: int = 0, drop_last: int = 0) -> ChosenFrames:
    """Choose the frames of some episodes, but the first and the last ones of each."""
    counts = np.maximum(0, lengths[episodes] - drop_first - drop_last)
    return ChosenFrames(episodes=episodes, first_frames=np.full_like(counts, drop_first), counts=counts)


def table_of_files(columns: Mapping[str, Any], info: DatasetInfo, where: str) -> EpisodeTable:
    """Make the table of a v3.0 dataset from the columns of `meta/episodes`: many episodes in each file."""

    def numbers(name: str) -> Int64Array:
        return check_numbers(columns, name, where)

    lengths, begins = numbers("length"), numbers("dataset_from_index")
    if "dataset_to_index" in columns and (numbers("dataset_to_index") - begins != lengths).any():
        raise BadIndexError(f"{where} has episodes whose length is not that of their range of indices", file=where)
    data_files, file_of = _files_of(
        numbers("data/chunk_index"), numbers("data/file_index"), begins, info.data_path, where, video_key=""
    )
    videos = {}
    for key in info.video_keys:
        if info.video_path is None:
            raise BadIndexError(f"{where} has the video {key!r}, but meta/info.json does not say where", key=key)
        chunks, files = numbers(f"videos/{key}/chunk_index"), numbers(f"videos/{key}/file_index")
        seconds = check_seconds(columns, f"videos/{key}/from_timestamp", where)
        names, video_of = _files_of(chunks, files, begins, info.video_path, where, video_key=key)
        videos[key] = VideoSpans(names, video_of, seconds)
    return EpisodeTable(
        numbers=_check_order(numbers("episode_index"), where),
        lengths=lengths,
        from_indices=begins,
        tasks=columns["tasks"],
        data_files=data_files,
        data_file_of=file_of,
        first_rows=_first_rows(begins, lengths, file_of, len(data_files), where),
        videos=videos,
    )


def table_of_episodes(columns: Mapping[str, Any], info: DatasetInfo, where: str) -> EpisodeTable:
    """Make the table of a v2.1 dataset: each episode has its own files, which begin with it."""
    episodes = _check_order(check_numbers(columns, "episode_index", where), where)
    lengths = check_numbers(columns, "length", where)

    def files(template: str, video_key: str) -> tuple[str, ...]:
        return tuple(
            fill_path(
                template,
                where,
                episode_chunk=number // info.chunks_size,
                episode_index=number,
                video_key=video_key,
            )
            for number in episodes.tolist()
        )

    each = np.arange(len(episodes), dtype=np.int64)
    if info.video_keys and info.video_path is None:
        raise BadIndexError(f"{where} has videos, but meta/info.json does not say where", file=where)
    return EpisodeTable(
        numbers=episodes,
        lengths=lengths,
        from_indices=np.cumsum(lengths) - lengths,
        tasks=columns["tasks"],
        data_files=files(info.data_path, ""),
        data_file_of=each,
        first_rows=np.zeros_like(lengths),
        videos={
            key: VideoSpans(files(str(info.video_path), key), each, np.zeros(len(episodes))) for key in info.video_keys
        },
    )


def check_numbers(columns: Mapping[str, Any], name: str, where: str) -> Int64Array:
    """Return a column of numbers, none of which is negative or too large to add up."""
    values = _column(columns, name, where)
    if values.dtype.kind not in "iu" or (len(values) and (int(values.min()) < 0 or int(values.max()) > _MAX_FRAMES)):
        raise BadIndexError(f"{where} has values in {name!r} that are not whole numbers from 0 on", column=name)
    return values.astype(np.int64)


def check_seconds(columns: Mapping[str, Any], name: str, where: str) -> npt.NDArray[np.float64]:
    """Return a column of times, all of them finite."""
    values = _column(columns, name, where)
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise BadIndexError(f"{where} has values in {name!r} that are not seconds", column=name)
    return values.astype(np.float64)


def _column(columns: Mapping[str, Any], name: str, where: str) -> npt.NDArray[Any]:
    if name not in columns:
        raise BadIndexError(f"{where} has no column {name!r}", column=name)
    return np.asarray(columns[name])


def _check_order(episodes: Int64Array, where: str) -> Int64Array:
    if (np.diff(episodes) <= 0).any():
        raise BadIndexError(f"{where} does not list its episodes in order", file=where)
    return episodes


def _files_of(
    chunks: Int64Array, files: Int64Array, begins: Int64Array, template: str, where: str, *, video_key: str
) -> tuple[tuple[str, ...], Int64Array]:
    """Name each file once, in the order of what it holds, and number the file of each episode."""
    pairs, first, file_of = np.unique(np.stack([chunks, files], axis=1), axis=0, return_index=True, return_inverse=True)
    by_content = np.argsort(begins[first], kind="stable")
    place = np.empty_like(by_content)
    place[by_content] = np.arange(len(by_content))
    names = tuple(
        fill_path(template, where, chunk_index=chunk, file_index=file, video_key=video_key)
        for chunk, file in pairs[by_content].tolist()
    )
    if len(set(names)) < len(names):
        raise BadIndexError(f"{where} gives two files the same name by {template!r}", template=template)
    return names, place[file_of.reshape(-1)].astype(np.int64)


def _first_rows(begins: Int64Array, lengths: Int64Array, file_of: Int64Array, num_files: int, where: str) -> Int64Array:
    """Find the row of its data file at which each episode begins; files hold whole episodes, without gaps."""
    firsts = np.full(num_files, _MAX_FRAMES, np.int64)
    np.minimum.at(firsts, file_of, begins)
    lasts = np.zeros(num_files, np.int64)
    np.maximum.at(lasts, file_of, begins + lengths)
    rows = np.bincount(file_of, lengths, num_files).astype(np.int64)
    if (lasts - firsts != rows).any():
        raise BadIndexError(f"{where} has a data file whose episodes do not follow each other", file=where)
    return begins - firsts[file_of]
