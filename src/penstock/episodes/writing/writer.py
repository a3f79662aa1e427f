"""`LeRobotWriter`: frames of robot episodes in, a LeRobot v3.0 dataset out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from penstock.episodes.feature_stats import join_stats
from penstock.episodes.info import DEFAULT_PATHS, INFO_NAME
from penstock.episodes.writing.episode import EpisodeInProgress
from penstock.episodes.writing.files import ParquetFiles, VideoCoding, VideoFiles, table_of
from penstock.episodes.writing.schema import ADDED, check_frame, declare_features, infer_features
from penstock.errors import BadSampleError, ColumnTypeError, ConfigError, OutputExistsError, WriterClosedError
from penstock.extras import require
from penstock.publish.target import LOCK_NAME, open_target
from penstock.units import check_whole, checks_making

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from typing_extensions import Self

    from penstock.types import Sample

_VERSION = "v3.0"
_EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODES_AT_ONCE = 200  # rows of `meta/episodes` in a row group


@checks_making
class LeRobotWriter:
    """Writes a LeRobot dataset of version 3.0: several episodes in each file, videos, statistics and tasks.

        with LeRobotWriter("data/arm", fps=30) as writer:
            for frames in recordings:
                for frame in frames:
                    writer.add_frame({"action": …, "observation.images.top": …}, task="lift the cube")
                writer.save_episode()

    Readers see the whole dataset or none of it: a folder appears when it is complete, and in a store `meta/info.json`
    comes last. If an exception leaves the `with` block, nothing is published. Frames are encoded as they come, so only
    the rows and the encoded video of one episode are in memory. Use a writer from one thread only.

    Args:
        out: A folder that does not exist or is empty, or a URL of any store.
        fps: Frames per second, of all rows and cameras.
        features: What each frame holds: `{"action": {"dtype": "float32", "shape": [7]}, …}`, where pictures have the
            dtype `video` or `image` and the shape `[height, width, channels]`. By default the first frame tells.
        robot_type: The name of the robot.
        use_videos: Whether pictures, if features are read off the first frame, become videos or images in the rows.
        data_files_size_in_mb: A data file gets no further episodes beyond this size.
        video_files_size_in_mb: The same for video files.
        chunks_size: How many files a folder holds.
        video_codec: `h264`, `hevc` or `av1`.
        gop: Frames from one keyframe to the next; with few of them, single frames are quick to decode.
        crf: Quality of the videos by the scale of their codec: less is better, and larger.
        storage_options: Credentials and settings of the store, under the names that fsspec uses.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        fps: float,
        features: Mapping[str, Any] | None = None,
        robot_type: str | None = None,
        use_videos: bool = True,
        data_files_size_in_mb: float = 100,
        video_files_size_in_mb: float = 200,
        chunks_size: int = 1000,
        video_codec: Literal["h264", "hevc", "av1"] = "h264",
        gop: int = 2,
        crf: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
            raise ConfigError(f"fps={fps!r} must be a positive number")
        check_whole("chunks_size", chunks_size, 1)
        check_whole("gop", gop, 1)
        check_whole("crf", crf, 0)
        for name, size in (("data", data_files_size_in_mb), ("video", video_files_size_in_mb)):
            if not size > 0:
                raise ConfigError(f"{name}_files_size_in_mb={size!r} must be more than 0")
        self._coding = VideoCoding.of(video_codec, gop, crf, fps)
        self._fps, self._robot_type, self._pictures = fps, robot_type, "video" if use_videos else "image"
        self._limits = {"data": data_files_size_in_mb, "video": video_files_size_in_mb}
        self._chunks_size = chunks_size
        self._features = None if features is None else declare_features(features)
        # Readers list the folder of episodes: nothing of a writer that was killed may be in it.
        self._target = open_target(
            out, storage_options, entry=INFO_NAME, owns=lambda name: name.startswith("meta/episodes/")
        )
        if self._target.is_taken:
            self._target.close()
            raise OutputExistsError(
                f"{self._target.shown} is not empty: remove what is there, or write to another place",
                path=self._target.shown,
            )
        self._data_path, self._video_path = DEFAULT_PATHS[3]
        self._data = ParquetFiles(self._target.folder, self._data_path, data_files_size_in_mb, chunks_size)
        self._episodes = ParquetFiles(self._target.folder, _EPISODES_PATH, data_files_size_in_mb, chunks_size)
        self._videos: dict[str, VideoFiles] = {}
        self._episode: EpisodeInProgress | None = None
        self._rows: list[dict[str, Any]] = []  # of meta/episodes, not written yet
        self._tasks: dict[str, int] = {}
        self._stats: dict[str, Any] = {}
        self._is_closed = False
        self.num_episodes = self.num_frames = 0

    @property
    def features(self) -> dict[str, Any]:
        """What each frame holds, as `info.json` describes it."""
        found: dict[str, Any] = {}
        for key, feature in {**(self._features or {}), **ADDED}.items():
            found[key] = {"dtype": feature.dtype, "shape": list(feature.shape), "names": feature.names}
            if feature.is_video:
                found[key]["info"] = self._coding.describe(feature)
        return found

    def add_frame(self, frame: Sample, task: str | None = None) -> None:
        """Add the next frame of this episode. Its task is `task`, or `frame["task"]`.

        If a frame does not fit, the error says which feature is wrong, and you can continue with another one.
        """
        self._check_open()
        try:
            if not isinstance(frame, Mapping):
                raise ColumnTypeError(f"a frame must be a dict of features, got {type(frame).__name__}")
            values = {key: value for key, value in frame.items() if key != "task"}
            task = frame.get("task") if task is None else task
            if not isinstance(task, str):
                raise ColumnTypeError(f"a frame needs a task, which is a string, got {task!r:.60}", column="task")
            if self._features is None:
                self._features = infer_features(values, self._pictures)
            checked = check_frame(values, self._features)
        except BadSampleError as error:
            number = 0 if self._episode is None else self._episode.num_frames
            where = f"frame {number} of episode {self.num_episodes}"
            facts = {**error.facts, "episode": self.num_episodes, "frame": number}
            raise type(error)(f"{where}: {error.message}", **facts) from error
        if self._episode is None:
            self._episode = EpisodeInProgress(self._features, self._coding)
        self._episode.add(checked, task)

    def save_episode(self) -> None:
        """End this episode; the next frame begins another one. If it cannot be stored, the writer is closed."""
        self._check_open()
        episode, self._episode = self._episode, None
        if episode is None:
            raise ConfigError(f"episode {self.num_episodes} has no frames: add some before save_episode()")
        try:
            self._store(episode)
        except BaseException:
            self.abort()  # some of its files may have the episode and others not
            raise

    def _store(self, episode: EpisodeInProgress) -> None:
        for task in episode.tasks:
            self._tasks.setdefault(task, len(self._tasks))
        columns = {**episode.columns, **episode.added(self._fps, self.num_episodes, self.num_frames, self._tasks)}
        stored = {key: feature for key, feature in {**episode.features, **ADDED}.items() if not feature.is_video}
        table = table_of(columns, stored)
        self._data.make_room(table.nbytes)
        self._data.add(table)
        stats = episode.stats(columns)
        self._stats = join_stats([self._stats, stats]) if self._stats else stats
        self._describe_episode(episode, self._write_videos(episode), stats)
        self.num_episodes += 1
        self.num_frames += episode.num_frames

    def discard_episode(self) -> None:
        """Forget the frames of this episode."""
        self._episode = None

    def write_episode(self, frames: Iterable[Sample], task: str | None = None) -> None:
        """Write a whole episode."""
        for frame in frames:
            self.add_frame(frame, task)
        self.save_episode()

    def finish(self) -> None:
        """Publish the dataset. The writer is closed afterwards, whatever happens."""
        if self._is_closed:
            return
        try:
            if self._episode is not None:
                raise ConfigError(
                    f"the {self._episode.num_frames} frames after episode {self.num_episodes - 1} are not saved: call"
                    " save_episode() or discard_episode() before the writer ends"
                )
            if not self.num_episodes:
                raise ConfigError("no episode was written: a dataset needs at least one")
            self._write_rows()
            self._close_files()
            info = self._write_meta()
            files = (path for path in self._target.folder.rglob("*") if path.is_file())
            names = {path.relative_to(self._target.folder).as_posix() for path in files} - {LOCK_NAME}
            self._target.keep(sorted(names))
            self._target.publish(info, names)
        finally:
            self.abort()

    def abort(self) -> None:
        """Stop without publishing anything."""
        self._is_closed = True
        self._episode = None
        self._close_files()
        self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        else:
            self.abort()

    def _check_open(self) -> None:
        if self._is_closed:
            raise WriterClosedError("this writer has finished: make a new one, for another place")

    # --- What lies where ------------------------------------------------------------------------------------------

    def _write_videos(self, episode: EpisodeInProgress) -> dict[str, Any]:
        """Write the videos of an episode, and say where they are."""
        spans: dict[str, Any] = {}
        for key, encoder in episode.encoders.items():
            files = self._videos.get(key)
            if files is None:
                where = (self._target.folder, self._video_path, self._limits["video"], self._chunks_size)
                files = self._videos[key] = VideoFiles(episode.features[key], self._coding, *where)
            begin, end = files.add(encoder.finish(), episode.num_frames)
            spans[f"videos/{key}/chunk_index"] = files.chunk
            spans[f"videos/{key}/file_index"] = files.file
            spans[f"videos/{key}/from_timestamp"] = begin
            spans[f"videos/{key}/to_timestamp"] = end
        return spans

    def _describe_episode(self, episode: EpisodeInProgress, spans: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
        row = {
            "episode_index": self.num_episodes,
            "tasks": episode.tasks,
            "length": episode.num_frames,
            "data/chunk_index": self._data.chunk,
            "data/file_index": self._data.file,
            "dataset_from_index": self.num_frames,
            "dataset_to_index": self.num_frames + episode.num_frames,
            **spans,
            **{f"stats/{key}/{name}": value for key, each in stats.items() for name, value in each.items()},
        }
        self._rows.append(row)
        if len(self._rows) == _EPISODES_AT_ONCE:
            self._write_rows()

    def _write_rows(self) -> None:
        """Write what is known of the last episodes."""
        if not self._rows:
            return
        arrow = require("pyarrow", extra="video", purpose="writing robot episodes")
        table = arrow.Table.from_pylist(self._rows)
        self._episodes.make_room(table.nbytes)
        for name, number in (("chunk_index", self._episodes.chunk), ("file_index", self._episodes.file)):
            table = table.append_column(f"meta/episodes/{name}", arrow.array([number] * len(table), arrow.int64()))
        self._episodes.add(table)
        self._rows.clear()

    def _write_meta(self) -> bytes:
        """Write what is known of all episodes, and return what says that they are there."""
        meta = self._target.folder / "meta"
        parquet = require("pyarrow.parquet", extra="video", purpose="writing robot episodes")
        parquet.write_table(_table_of_tasks(self._tasks), meta / "tasks.parquet")
        (meta / "stats.json").write_text(json.dumps(self._stats, indent=1))
        info = {
            "codebase_version": _VERSION,
            "robot_type": self._robot_type,
            "total_episodes": self.num_episodes,
            "total_frames": self.num_frames,
            "total_tasks": len(self._tasks),
            "chunks_size": self._chunks_size,
            "data_files_size_in_mb": self._limits["data"],
            "video_files_size_in_mb": self._limits["video"],
            "fps": self._fps,
            "splits": {"train": f"0:{self.num_episodes}"},
            "data_path": self._data_path,
            "video_path": self._video_path if self._videos else None,
            "features": self.features,
        }
        return json.dumps(info, indent=2).encode()

    def _close_files(self) -> None:
        self._data.close()
        self._episodes.close()
        for videos in self._videos.values():
            videos.close()


def _table_of_tasks(tasks: Mapping[str, int]) -> Any:
    """Make the frame of tasks: their texts are its index, as pandas understands it."""
    arrow = require("pyarrow", extra="video", purpose="writing robot episodes")
    kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": stored, "metadata": None}
        for name, (kind, stored) in kinds.items()
    ]
    described = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    table = arrow.table({"task_index": arrow.array(tasks.values(), arrow.int64()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(described)})
