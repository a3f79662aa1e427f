"""Records of episodes, such as samples of an MDS dataset, become a LeRobot dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.episodes.writing.schema import ADDED
from penstock.episodes.writing.writer import LeRobotWriter
from penstock.errors import BadSampleError, ColumnTypeError, ColumnValueError, MissingColumnError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.data.dataset import StreamingDataset
    from penstock.types import Sample

_ROWS_AT_ONCE = 64


def convert_to_lerobot(
    records: Iterable[Sample] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    fps: float,
    episode_key: str = "episode_index",
    task_key: str = "task",
    task: str | None = None,
    keys: Mapping[str, str] | None = None,
    **settings: Any,
) -> int:
    """Write records to a LeRobot dataset of version 3.0, and return the number of its episodes.

        convert_to_lerobot("s3://bucket/mds", "data/arm", fps=30, keys={"top": "observation.images.top", "a": "action"})

    A record is one frame, if it has `episode_key`: frames with the same value, one after the other, are an episode. Or
    a record is a whole episode: each value is an array or list with one entry for each frame, or a single text or
    number that holds for all of them.

    Args:
        records: Any iterable of dicts, such as a dataset, or the path or URL of a dataset to read.
        out: A folder that does not exist or is empty, or a URL of any store.
        fps: Frames per second.
        episode_key: What the number or name of the episode is called in the record of a frame.
        task_key: What the task is called in a record.
        task: The task of records that have none.
        keys: Which entries of a record to write, and the feature that each becomes; by default all, as they are called.
        settings: Anything else that `LeRobotWriter` takes: `features`, `robot_type`, `video_codec`, …
    """
    with LeRobotWriter(out, fps=fps, **settings) as writer:
        episode: Any = None
        seen: set[Any] = set()
        for number, record in enumerate(_records(records)):
            try:
                if not isinstance(record, Mapping):
                    raise ColumnTypeError(f"a record must be a dict, got {type(record).__name__}")
                if episode_key not in record:
                    if episode is not None:
                        raise MissingColumnError("it has no number of an episode, as the records before it have")
                    frames = cut_into_frames(_renamed(record, keys, task_key), record.get(task_key, task), task_key)
                    writer.write_episode(frames)
                    continue
                name = _plain(record[episode_key])
                if name != episode:
                    _check_new(name, seen)
                    if episode is not None:
                        writer.save_episode()
                    episode = name
                writer.add_frame(_renamed(record, keys, task_key, episode_key), _task(record.get(task_key, task)))
            except BadSampleError as error:
                facts = {**error.facts, "record": number}
                raise type(error)(f"record {number}: {error.message}", **facts) from error
        if episode is not None:
            writer.save_episode()
    return writer.num_episodes


def cut_into_frames(episode: Mapping[str, Any], task: Any, task_key: str = "task") -> list[dict[str, Any]]:
    """Turn the record of an episode into its frames; whatever has no entry for each frame holds for all of them."""
    columns = {key: value for key, value in episode.items() if _is_column(value)}
    lengths = {key: len(value) for key, value in columns.items()}
    if not lengths:
        raise MissingColumnError("it has neither an episode number nor an array or list with an entry for each frame")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key!r} {length}" for key, length in lengths.items())
        raise ColumnValueError(f"its entries are for different numbers of frames: {told}")
    num_frames = next(iter(lengths.values()))
    tasks = [_task(each) for each in task] if _is_column(task) else [_task(task)] * num_frames
    if len(tasks) != num_frames:
        raise ColumnValueError(f"it has {len(tasks)} entries of {task_key!r} for {num_frames} frames", column=task_key)
    constant = {key: value for key, value in episode.items() if key not in columns}
    return [
        {**constant, **{key: value[place] for key, value in columns.items()}, "task": tasks[place]}
        for place in range(num_frames)
    ]


def _records(given: Iterable[Any] | str | os.PathLike[str]) -> Iterator[Any]:
    """Return records in stored order."""
    from penstock.data.dataset import StreamingDataset  # only now: it loads torch, which writing does without

    if isinstance(given, str | os.PathLike):
        with StreamingDataset(remote=os.fspath(given)) as dataset:
            yield from _stored(dataset)
    elif isinstance(given, StreamingDataset):
        yield from _stored(given)
    else:
        yield from given


def _stored(dataset: StreamingDataset) -> Iterator[Any]:
    for begin in range(0, dataset.num_samples, _ROWS_AT_ONCE):
        yield from dataset[begin : begin + _ROWS_AT_ONCE]


def _renamed(record: Mapping[str, Any], keys: Mapping[str, str] | None, *left_out: str) -> dict[str, Any]:
    """Return what is written of a record, under its new names; the columns that every dataset has are made anew."""
    if keys is None:
        return {key: value for key, value in record.items() if key not in left_out and key not in ADDED}
    for key in keys:
        if key not in record:
            raise MissingColumnError(f"{key!r} is missing, which keys= names", column=key)
    return {new: record[key] for key, new in keys.items()}


def _is_column(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0


def _plain(value: Any) -> Any:
    """Return an episode's name as something that can be compared."""
    name = value if isinstance(value, str) else np.asarray(value).reshape(-1).tolist()
    return name if isinstance(name, str) else tuple(name)


def _task(value: Any) -> str | None:
    return None if value is None else str(value)


def _check_new(name: Any, seen: set[Any]) -> None:
    if name in seen:
        shown = name if isinstance(name, str) else ", ".join(map(str, name))
        raise ColumnValueError(f"episode {shown} comes again after others: sort the records by episode")
    seen.add(name)
