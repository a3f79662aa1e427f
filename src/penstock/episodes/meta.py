"""Everything under `meta/` of a LeRobot dataset, v3.0 or v2.1: rate, features, episodes, tasks and statistics."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from penstock.episodes.episode_table import EpisodeTable, check_numbers, table_of_episodes, table_of_files
from penstock.episodes.feature_stats import join_stats
from penstock.episodes.info import ALWAYS, INFO_NAME, DatasetInfo, parse_info, parse_json
from penstock.errors import BadIndexError, ConfigError, ObjectNotFoundError
from penstock.extras import require
from penstock.storage.base import shown_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.episodes.info import Feature
    from penstock.storage.base import Store

_EPISODES = "meta/episodes/"
_TASK_NAMES = ("task", "__index_level_0__")  # what newer and older writers call the index of the frame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeRobotMetadata(DatasetInfo):
    """What a LeRobot dataset says of itself, under the names that its users know.

    `info` is `meta/info.json` as it is, `features` is its part of that name, `episodes[3]` is a dict, `tasks[0]` a
    string; `stats` is None if there are none.
    """

    url: str  # of the dataset, without secrets
    episodes: EpisodeTable
    tasks: Mapping[int, str]
    stats: Mapping[str, Any] | None

    @property
    def features(self) -> Mapping[str, Any]:
        """What each frame has: dtype, shape and names by key."""
        features: Mapping[str, Any] = self.info["features"]
        return features

    @property
    def row_features(self) -> list[Feature]:
        """The features that are columns of the data files."""
        return [feature for feature in self.schema.values() if not feature.is_video]

    @property
    def robot_type(self) -> str | None:
        """The name of the robot."""
        return self.info.get("robot_type")

    @property
    def total_episodes(self) -> int:
        """The number of episodes."""
        return len(self.episodes)

    @property
    def total_tasks(self) -> int:
        """The number of tasks."""
        return len(self.tasks)

    @property
    def names(self) -> dict[str, Any]:
        """What the values of each feature are called, by key."""
        return {key: feature.names for key, feature in self.schema.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each feature in one frame, by key."""
        return {key: feature.shape for key, feature in self.schema.items()}

    @property
    def total_frames(self) -> int:
        """The number of frames of all episodes."""
        return int(self.episodes.lengths.sum())

    def chosen(self, keys: Sequence[str] | None, *, is_stored: bool) -> LeRobotMetadata:
        """Return the same for samples of some features, or all, and the numbers of frames."""
        features = self.schema
        for key in [key for key in keys or () if key not in features]:
            text = f"keys= names {key!r}, which {self.url} does not have: it has {', '.join(features)}"
            raise ConfigError(text, key=key)
        names = [name for name in features if keys is None or name in keys or name in ALWAYS]
        info = {**self.info, "features": {name: self.features[name] for name in names}}
        kept = {name: replace(features[name], is_stored=is_stored) for name in names}
        return replace(self, schema=kept, info=info)

    def get_task_index(self, task: str) -> int | None:
        """Return the number of a task; None if the dataset has no such task."""
        return next((number for number, text in self.tasks.items() if text == task), None)

    def get_data_file_path(self, ep_index: int) -> str:
        """Name the data file of an episode, relative to the dataset."""
        return str(self.episodes[ep_index]["data_file"])

    def get_video_file_path(self, ep_index: int, vid_key: str) -> str:
        """Name the video file of an episode and a camera, relative to the dataset."""
        return str(self.episodes[ep_index][f"videos/{vid_key}/file"])


class TasksColumn(Sequence[list[str]]):
    """The tasks of each episode, as they were read: a million lists would take seconds."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, episode: Any) -> Any:
        found = self._column[episode]
        return (found if isinstance(found, list) else found.as_py()) or []


def load_metadata(store: Store, url: str) -> LeRobotMetadata:
    """Read what a dataset says of itself from its folder in a store."""
    shown = shown_url(url).rstrip("/")
    try:
        data = store.read(INFO_NAME)
    except ObjectNotFoundError as error:
        raise BadIndexError(
            f"{shown} is no LeRobot dataset: it has no {INFO_NAME}; pass root= the folder above"
            " it, or repo_id= the name of a dataset of the Hub",
            path=shown,
        ) from error
    info = parse_info(data, f"{shown}/{INFO_NAME}")
    is_v3 = info.version[0] >= 3
    tasks = _read_tasks(store, shown) if is_v3 else _read_task_lines(store, shown)
    stats = None
    with suppress(ObjectNotFoundError):
        stats = parse_json(store.read(key := "meta/stats.json"), f"{shown}/{key}")
    if stats is None and not is_v3:
        stats = _read_stats_lines(store, shown)
    episodes = _read_episodes(store, info, shown) if is_v3 else _read_episode_lines(store, info, shown)
    if not len(episodes):
        raise BadIndexError(f"{shown} has no episodes", path=shown)
    known = {each.name: getattr(info, each.name) for each in fields(info)}
    return LeRobotMetadata(**known, url=shown, episodes=episodes, tasks=tasks, stats=stats)


# --- v3.0 ---------------------------------------------------------------------------------------------------


def _open_parquet(data: bytes, where: str) -> Any:
    parquet = require("pyarrow.parquet", extra="video", purpose="reading a LeRobot dataset")
    arrow = require("pyarrow", extra="video", purpose="reading a LeRobot dataset")
    try:
        return parquet.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    except arrow.ArrowInvalid as error:
        raise BadIndexError(f"{where} is not a Parquet file: {error}", file=where) from error


def _read_episodes(store: Store, info: DatasetInfo, shown: str) -> EpisodeTable:
    """Read all files of `meta/episodes`, without the statistics of each episode, which are most of their bytes."""
    arrow = require("pyarrow", extra="video", purpose="reading a LeRobot dataset")
    keys = sorted(found.key for found in store.list(_EPISODES) if found.key.endswith(".parquet"))
    where = f"{shown}/{_EPISODES.rstrip('/')}"
    if not keys:
        raise BadIndexError(f"{where} has no Parquet files", path=where)
    wanted = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index"}
    wanted |= {"data/chunk_index", "data/file_index"}
    for key in info.video_keys:
        wanted |= {f"videos/{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")}
    tables = []
    for key in keys:
        file = _open_parquet(store.read(key), f"{shown}/{key}")
        try:
            tables.append(file.read(columns=[name for name in file.schema_arrow.names if name in wanted]))
        except (arrow.ArrowInvalid, OSError) as error:
            raise BadIndexError(f"{shown}/{key} cannot be read: {error}", file=key) from error
    try:
        table = arrow.concat_tables(tables, promote_options="permissive")
    except (arrow.ArrowInvalid, arrow.ArrowTypeError) as error:
        raise BadIndexError(f"the files of {where} do not have the same columns: {error}", path=where) from error
    columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names if name != "tasks"}
    columns["tasks"] = TasksColumn(table["tasks"] if "tasks" in table.column_names else [[]] * len(table))
    return table_of_files(columns, info, where)


def _read_tasks(store: Store, shown: str) -> dict[int, str]:
    """Read the tasks by their number; the strings are the index of a pandas frame, which has one of two names."""
    key = "meta/tasks.parquet"
    where = f"{shown}/{key}"
    table = _open_parquet(store.read(key), where).read()
    name = next((name for name in _TASK_NAMES if name in table.column_names), None)
    if name is None or "task_index" not in table.column_names:
        raise BadIndexError(f"{where} must have the columns task_index and task", file=where)
    numbers = check_numbers({"task_index": table["task_index"].to_numpy()}, "task_index", where)
    return dict(zip(numbers.tolist(), map(str, table[name].to_pylist()), strict=True))


# --- v2.1 and v2.0 --------------------------------------------------------------------------------------------


def _read_lines(store: Store, key: str, shown: str) -> list[dict[str, Any]]:
    where = f"{shown}/{key}"
    lines = enumerate(store.read(key).split(b"\n"), start=1)
    rows = [parse_json(line, f"{where}, line {number}") for number, line in lines if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise BadIndexError(f"{where} has lines that are not JSON objects", file=where)
    return rows


def _read_episode_lines(store: Store, info: DatasetInfo, shown: str) -> EpisodeTable:
    key = "meta/episodes.jsonl"
    rows = _read_lines(store, key, shown)
    rows.sort(key=lambda row: row.get("episode_index", 0))
    columns = {name: [row.get(name) for row in rows] for name in ("episode_index", "length")}
    return table_of_episodes({**columns, "tasks": [row.get("tasks") or [] for row in rows]}, info, f"{shown}/{key}")


def _read_stats_lines(store: Store, shown: str) -> dict[str, Any] | None:
    """Join the statistics of all episodes, which v2.1 keeps for each of them."""
    key = "meta/episodes_stats.jsonl"
    try:
        rows = _read_lines(store, key, shown)
    except ObjectNotFoundError:
        return None
    try:
        return join_stats([row["stats"] for row in rows])
    except (KeyError, TypeError, ValueError) as error:
        raise BadIndexError(f"{shown}/{key} has statistics that cannot be joined: {error!r}", file=key) from error


def _read_task_lines(store: Store, shown: str) -> dict[int, str]:
    key = "meta/tasks.jsonl"
    rows = _read_lines(store, key, shown)
    columns = {"task_index": [row.get("task_index") for row in rows]}
    numbers = check_numbers(columns, "task_index", f"{shown}/{key}")
    return dict(zip(numbers.tolist(), (str(row.get("task")) for row in rows), strict=True))
