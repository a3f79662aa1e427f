"""What a conversion is going to do, who does it, and what is seen of it.

Inputs are cut into tasks by arithmetic alone. Each task writes shards and an index of its own, in a folder of its own,
and a task that is run again ends in the same bytes. The joint index comes last, in the order of tasks. So the result
does not depend on the engine, on the number of workers, or on what was killed meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from penstock.conversion.inputs import FunctionsSource
from penstock.conversion.rows import FitsColumns, Piece, TaskRows, as_chain, split_rules
from penstock.conversion.tasks import VERSION, ConvertTarget, ConvertTasks, rejected_name
from penstock.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError, OutputExistsError
from penstock.extras import require
from penstock.publish.dataset_writer import SaveSettings
from penstock.publish.engines import DaskEngine, ProcessPool, RayEngine, SparkEngine, ThisProcess
from penstock.publish.materialise import PLAN_LOCK, PLAN_NAME, PartDone, PartsTarget
from penstock.publish.mds_files import infer_columns
from penstock.publish.sizes import PROBE_ROWS
from penstock.sources.base import TransformedShardedSource
from penstock.sources.cutting import find_cuts, plan_cuts, share_of
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.found import fingerprint_of
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.status_line import StatusLine, progress_line
from penstock.storage.url_names import join_url
from penstock.units import check_whole, format_bytes, format_count, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.conversion.rows import SplitRule
    from penstock.publish.dataset_writer import SaveFormat
    from penstock.publish.engines import Engine
    from penstock.sources.base import ShardedSource
    from penstock.sources.cutting import Cut
    from penstock.sources.shard_info import ShardInfo
    from penstock.sources.transforms import AnySourceTransform, AnyTransform
    from penstock.types import Sample

_SHARDS_OF_TASK = 8
_ENOUGH_TASKS = 64  # for workers to share
_SHOWN_SAMPLES = 3
EngineName = Literal["local", "ray", "dask", "spark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport:
    """What a conversion has made.

    Attributes:
        out: The folder or URL.
        num_rows: Samples in all splits.
        num_bytes: What all shards take, as they are stored.
        num_tasks: Tasks in all splits; `num_found` of them were done by earlier runs.
        splits: Samples of each split; of a conversion without splits, of the one that has no name.
        columns: The encodings of columns, or None for formats that have a schema of their own.
        num_rejected: Rows that were left out by `on_error="skip"`; they are listed in `rejected`.
        rejected: The files that list them.
        is_whole: Whether all tasks are done and joined.
        elapsed_s: How long it took.
        samples: Of a dry run, the first ones.
    """

    out: str
    num_rows: int
    num_bytes: int
    num_tasks: int
    num_found: int
    splits: Mapping[str, int]
    columns: Mapping[str, str] | None
    num_rejected: int
    rejected: tuple[str, ...]
    is_whole: bool
    elapsed_s: float
    samples: tuple[Sample, ...] = ()

    def __str__(self) -> str:
        splits = "".join(f"; {name}: {rows:,}" for name, rows in self.splits.items() if name)
        rejected = (
            f"\n{format_count(self.num_rejected, 'row')} left out, listed in {', '.join(self.rejected)}"
            if self.num_rejected
            else ""
        )
        return (
            f"{format_count(self.num_rows, 'sample')} in {self.out}, {format_bytes(self.num_bytes)}, by"
            f" {format_count(self.num_tasks, 'task')} ({self.num_found} done before){splits}{rejected}"
        )


# --- The plan ---


@dataclass(frozen=True, slots=True)
class Split:
    """One dataset that is made: its tasks, and where they write to."""

    name: str
    tasks: ConvertTasks
    target: ConvertTarget


@dataclass(frozen=True, slots=True)
class Conversion:
    """All that a conversion is going to do."""

    root: PartsTarget
    options: Mapping[str, Any]  # all that files depend on beside the rows
    splits: Sequence[Split]
    columns: Mapping[str, str] | None
    first_samples: Sequence[Sample]

    @property
    def num_tasks(self) -> int:
        """The number of tasks of all splits."""
        return sum(len(split.tasks.cuts) for split in self.splits)

    def begin(self, *, resume: bool, overwrite: bool) -> int:
        """Refuse a place where something else lies, write down what is made there, and count the tasks done."""
        with self.root.hold(PLAN_LOCK, waits=True):
            found = self.root.read(PLAN_NAME)
            if found is None and (names := self.root.names()):
                raise OutputExistsError(
                    f"{self.root.shown} is not empty, there is {names[0]!r}: choose another place", path=self.root.shown
                )
            if found is not None and overwrite:
                for split in self.splits:
                    split.target.remove()
                self.root.remove()
            elif found is not None and not resume:
                raise OutputExistsError(
                    f"{self.root.shown} has a conversion already: go on with resume=True, or replace it with"
                    " overwrite=True",
                    path=self.root.shown,
                )
            elif found is not None:
                self._check_same(found.get("options", {}))
            plan = {"version": VERSION, "options": dict(self.options)}
            self.root.write(PLAN_NAME, json.dumps(plan, indent=1).encode())
        num_found = 0
        for split in self.splits:
            done = sum(1 for number in range(len(split.tasks.cuts)) if split.target.find(number) is not None)
            if done < len(split.tasks.cuts):
                split.target.remove_joint()
            num_found += done
        return num_found

    def _check_same(self, before: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(self.options))
        other = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if other:
            told = "; ".join(f"{name} was {before.get(name)!r:.200} and is {now.get(name)!r:.200}" for name in other)
            raise OutputExistsError(
                f"{self.root.shown} was converted with other options: {told}. overwrite=True replaces it",
                path=self.root.shown,
            )

    def report(
        self, *, is_whole: bool = False, elapsed_s: float = 0.0, num_found: int = 0, samples: Sequence[Sample] = ()
    ) -> ConvertReport:
        """Return what there is now."""
        rows, num_bytes, rejected, files = {}, 0, 0, []
        for split in self.splits:
            done = [split.target.find(number) for number in range(len(split.tasks.cuts))]
            rows[split.name] = sum(part.num_rows for part in done if part is not None)
            num_bytes += sum(part.num_bytes for part in done if part is not None)
            for number in range(len(done)) if split.tasks.rejects_to is not None else ():
                with suppress(ObjectNotFoundError):
                    lines = split.target.read_bytes(rejected_name(number)).count(b"\n")
                    rejected += lines
                    files += [join_url(split.target.shown, rejected_name(number))] if lines else []
        return ConvertReport(
            out=self.root.shown,
            num_rows=sum(rows.values()),
            num_bytes=num_bytes,
            num_tasks=self.num_tasks,
            num_found=num_found,
            splits=rows,
            columns=self.columns,
            num_rejected=rejected,
            rejected=tuple(files),
            is_whole=is_whole,
            elapsed_s=elapsed_s,
            samples=tuple(samples[:_SHOWN_SAMPLES]),
        )


def plan_conversion(
    source: ShardedSource,
    out: str,
    *,
    format: SaveFormat = "mds",  # noqa: A002  what users call it
    columns: Mapping[str, str] | None = None,
    transform: AnySourceTransform | None = None,
    compression: str | None = None,
    hashes: Sequence[str] = (),
    size_limit: int | str = "64mb",
    splits: Mapping[str, float] | None = None,
    split_by: str | None = None,
    seed: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
    task_size: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Cut a source into tasks, and learn the columns; nothing is written."""
    settings = SaveSettings(format, size_limit, None, compression, hashes=hashes, storage_options=storage_options)
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r} is unknown: use 'raise' or 'skip'")
    rules: Mapping[str, SplitRule | None] = {"": None} if splits is None else split_rules(splits, split_by, seed)
    chain = () if transform is None else tuple(as_chain(transform))
    if source.is_endless:
        raise ConfigError("the source never ends, so it cannot be converted: use LimitedShardedSource")
    while isinstance(source, TransformedShardedSource):  # the files below can be cut
        chain, source = (*source.transforms, *chain), source.source
    if isinstance(source, HuggingFaceShardedSource) and source.file_source is not None:
        source = source.file_source
    root = PartsTarget(out, settings)
    known = {} if overwrite else (root.read(PLAN_NAME) or {}).get("options", {})
    source.shard_lengths()  # what tells them is read of many files at a time
    infos = [source.get_shard_info(name) for name in source.shard_names]
    first, made_of = _first_samples(source, chain, skips=on_error == "skip")
    num_bytes = known.get("task_size") if task_size is None else max(1, parse_bytes(task_size))
    if num_bytes is None:
        num_bytes = _task_size(infos, settings.max_bytes, first, made_of)
    cuts = plan_cuts(infos, num_bytes, partial(find_cuts, source), most_parts=None)
    options: dict[str, Any] = {
        **{name: value for name, value in settings.key.items() if value is not None},
        "transform": None if transform is None else as_chain(transform).fingerprint(),
        "splits": {name: rule and [*rule] for name, rule in rules.items()},
        "task_size": num_bytes,
        "on_error": on_error,
    }
    settings, told = _with_columns(settings, columns, known, first)
    if on_error == "skip":
        chain = (*chain, FitsColumns(settings.columns, settings.schema, drops_extra=settings.drops_extra))
    keys, made = _keys_of(source, cuts), []
    for name, rule in rules.items():
        url = join_url(out, name) if name else out
        rejects_to = PartsTarget(url, settings) if on_error == "skip" else None
        tasks = ConvertTasks(source, cuts, keys, chain, rule, rejects_to)
        made.append(Split(name, tasks, ConvertTarget(url, settings, {}, tasks.task_names)))
    return Conversion(root, options | told, made, told.get("columns"), first)


def _with_columns(
    settings: SaveSettings, columns: Mapping[str, str] | None, known: Mapping[str, Any], first: list[Sample]
) -> tuple[SaveSettings, dict[str, Any]]:
    """Fix the columns that all tasks write: those that are given, of the run before, or of the first samples."""
    if settings.format == "mds":
        chosen = dict(columns or known.get("columns") or infer_columns(first))
        return replace(settings, columns=chosen, drops_extra=columns is not None), {"columns": chosen}
    if settings.format in ("parquet", "arrow"):
        schema, told = _schema_of(known.get("schema"), first)
        return replace(settings, schema=schema), {"schema": told}
    return settings, {}


def _first_samples(
    source: ShardedSource, transforms: Sequence[AnyTransform], *, skips: bool
) -> tuple[list[Sample], tuple[int, int]]:
    """Return some samples, with the number of their shard and of its rows that they were made of."""
    rejected: list[Mapping[str, Any]] = []
    for number, name in enumerate(source.shard_names):
        noted = rejected.extend if skips else None
        with closing(TaskRows(source, [Piece(name)], transforms, on_rejected=noted)) as rows:
            if first := rows.take(PROBE_ROWS):
                return first, (number, rows.state_dict()["row"] or PROBE_ROWS)
    bad = f": {rejected[0]['where']} was left out because of {rejected[0]['error']}" if rejected else ""
    raise EmptyDatasetError(f"there is no sample to convert{bad}")


def _task_size(
    infos: Sequence[ShardInfo | None], shard_bytes: int, first: Sequence[Sample], made_of: tuple[int, int]
) -> int:
    """Return how many stored bytes a task reads: what makes eight shards, or fewer if there would be few tasks.

    Stored rows may be compressed: how much the first of them take when pickled tells what becomes of the others.
    """
    shard, rows = infos[made_of[0]], made_of[1]
    swell = 1.0
    if shard is not None and shard.num_rows and shard.byte_size:
        with suppress(Exception):  # what does not pickle
            swell = max(len(pickle.dumps(first)) / rows * shard.num_rows / shard.byte_size, 0.01)
    made = swell * sum(share_of(info, 1) for info in infos)
    return max(1, int(min(max(shard_bytes, made / _ENOUGH_TASKS), _SHARDS_OF_TASK * shard_bytes) / swell))


def _schema_of(known: str | None, first: list[Sample]) -> tuple[Any, str]:
    """Return the schema that all tasks write, and as text."""
    pa = require("pyarrow", extra="parquet", purpose="writing Parquet and Arrow")
    if known is not None:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(known))), known
    schema = pa.Table.from_pylist(first).schema
    return schema, base64.b64encode(schema.serialize()).decode()


def _keys_of(source: ShardedSource, cuts: Sequence[Cut]) -> list[str]:
    """Return of each task what its rows depend on: its own files, or, of other sources, all of the source."""
    if not isinstance(source, FileShardedSource):
        return [_digest(source.fingerprint)] * len(cuts)
    files, settings = source.files, (type(source).__name__, *source.reading)
    return [_digest(fingerprint_of(files[cut.first : cut.end], *settings)) for cut in cuts]


def _digest(text: str | None) -> str:
    return hashlib.sha256(repr(text).encode()).hexdigest()[:16]


# --- Who runs it, and what is seen of it ---


def engine_of(engine: EngineName | Engine, workers: int | None, work: Conversion) -> Engine:
    """Return what runs the tasks of a conversion."""
    check_whole("workers", workers, 1)
    if not isinstance(engine, str):
        return engine
    tasks = work.splits[0].tasks
    if engine == "local":
        count = min(workers or os.cpu_count() or 1, max(len(split.tasks.cuts) for split in work.splits))
        is_here = isinstance(tasks.source, FunctionsSource) and tasks.source.fingerprint is None
        if count == 1 or is_here:
            return ThisProcess()
        try:
            pickle.dumps(tasks)
        except Exception as error:
            raise ConfigError(
                f"processes cannot be given these inputs or this transform ({error}): define functions at the top of a"
                " module, or use workers=1"
            ) from error
        return ProcessPool(count)
    engines: dict[str, Callable[[int], Engine]] = {"ray": RayEngine, "dask": DaskEngine, "spark": SparkEngine}
    if engine not in engines:
        raise ConfigError(f"engine={engine!r} is unknown: use 'local', {', '.join(map(repr, engines))} or an object")
    return engines[engine](workers or os.cpu_count() or 1)


class TaskProgress:
    """Shows which part of all tasks is done, how fast it goes, and how long it may still take."""

    def __init__(self, num_tasks: int, *, is_shown: bool) -> None:
        line = StatusLine()
        self._num_tasks, self._line = num_tasks, line if is_shown and line.is_terminal else None
        self._began = time.monotonic()
        self._done = self._rows = self._bytes = 0

    def note(self, part: PartDone | None) -> None:
        """Show that one more task is done."""
        if part is None:
            return
        self._done += 1
        self._rows += part.num_rows
        self._bytes += part.num_bytes
        elapsed = time.monotonic() - self._began
        left = elapsed / self._done * (self._num_tasks - self._done)
        if self._line is not None and self._line.is_due():
            words = progress_line(self._rows, self._bytes, elapsed)
            tasks = f"{self._done} of {format_count(self._num_tasks, 'task')}"
            self._line.show(f"converting: {tasks}, {words}, {left:,.0f} s left", "")

    def close(self) -> None:
        """End the line."""
        if self._line is not None:
            self._line.show(f"converted: {format_count(self._done, 'task')}, {self._rows:,} samples", "\n")
