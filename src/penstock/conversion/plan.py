"""What a conversion is going to do, who does it, and what is seen of it.

Inputs are cut into tasks by arithmetic alone. Each task writes shards and an index of its own, in a folder of its own,
and a task that is run again ends in the same bytes. The joint index comes last, in the order of tasks. So the result
does not depend on the engine, on the number of workers, or on what was killed meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import pickle
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.conversion.inputs import FunctionsSource
from penstock.conversion.rows import FitsColumns, Piece, TaskRows, as_chain
from penstock.conversion.shuffle import KEY, SortedParts, StoredSplit
from penstock.conversion.tasks import VERSION, ConvertTarget, ConvertTasks, SplitsTarget, rejected_name
from penstock.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError, OutputExistsError
from penstock.extras import require
from penstock.publish.dataset_writer import SaveSettings
from penstock.publish.engines import ENGINES, ProcessPool, ThisProcess
from penstock.publish.materialise import PLAN_LOCK, PLAN_NAME, PartDone, PartsTarget, materialise
from penstock.publish.mds_files import infer_columns
from penstock.publish.sizes import PROBE_ROWS
from penstock.sources.base import TransformedShardedSource
from penstock.sources.cutting import find_cuts, plan_cuts, share_of
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.found import fingerprint_of
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.sources.shard_info import Cut
from penstock.sources.split_rule import split_rule
from penstock.status_line import StatusLine, progress_line
from penstock.storage.url_names import join_url
from penstock.units import check_whole, format_bytes, format_count, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.publish.dataset_writer import SaveFormat
    from penstock.publish.engines import Engine, EngineName
    from penstock.sources.base import ShardedSource
    from penstock.sources.shard_info import ShardInfo
    from penstock.sources.transforms import AnySourceTransform, AnyTransform
    from penstock.types import Sample

    OpenParts: TypeAlias = Callable[[PartsTarget], tuple[Any, Sequence[int]]]

_SHARDS_OF_TASK = 8
_ENOUGH_TASKS = 64  # for workers to share
_PARTS_OF_MEMORY = 4  # samples of Python take more than their bytes
SHUFFLE_FOLDER = "_shuffle"
_SHOWN_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport:
    """What a conversion has made.

    Attributes:
        out: The folder or URL.
        num_rows: Samples in all splits.
        num_bytes: What all shards take, as they are stored.
        num_tasks: Tasks; `num_found` of them were done by earlier runs.
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
class Conversion:
    """All that a conversion is going to do."""

    root: PartsTarget
    options: Mapping[str, Any]  # all that files depend on beside the rows
    tasks: ConvertTasks
    outputs: Mapping[str, ConvertTarget]  # by the name of the split
    columns: Mapping[str, str] | None
    first_samples: Sequence[Sample]
    first_pass: Conversion | None = None  # what puts rows in random order, if they are

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return len(self.tasks.cuts)

    @property
    def target(self) -> PartsTarget:
        """Where tasks write to."""
        if "" in self.outputs:
            return self.outputs[""]
        return SplitsTarget(self.root.url, self.root.settings, outputs=tuple(self.outputs.values()))

    @property
    def make_task(self) -> Callable[[int], PartDone | None]:
        """A function that makes a task by its number, for engines that have the rows."""
        return partial(self.target.make, self.tasks, waits=True)

    def begin(self, *, resume: bool, overwrite: bool, is_array: bool = False) -> int:
        """Refuse a place where something else lies, write down what is made there, and count the tasks done.

        The jobs of an array have the same rows; otherwise rows without a fingerprint may be others than before.
        """
        is_known = is_array or (self.first_pass or self).tasks.source.fingerprint is not None
        with self.root.hold(PLAN_LOCK, waits=True):
            found = self.root.read(PLAN_NAME)
            if found is None and (names := self.root.names()):
                raise OutputExistsError(
                    f"{self.root.shown} is not empty, there is {names[0]!r}: choose another place", path=self.root.shown
                )
            if found is not None and overwrite:
                for output in self.outputs.values():
                    output.remove()
                self.root.remove()
            elif found is not None and not (resume and is_known):
                how = "go on with resume=True, or" if is_known else "nothing tells whether its rows are these, so"
                raise OutputExistsError(
                    f"{self.root.shown} has a conversion already: {how} replace it with overwrite=True",
                    path=self.root.shown,
                )
            elif found is not None:
                self._check_same(found.get("options", {}))
            plan = {"version": VERSION, "options": dict(self.options)}
            self.root.write(PLAN_NAME, json.dumps(plan, indent=1).encode())
        target = self.target
        num_found = sum(1 for number in range(self.num_tasks) if target.find(number) is not None)
        if num_found < self.num_tasks:
            for output in self.outputs.values():
                output.remove_joint()
        return num_found

    def run(self, runner: Engine, note: Callable[[PartDone], None]) -> None:
        """Have all tasks run that are not done, and join them."""
        if self.first_pass is not None and any(self.target.find(number) is None for number in range(self.num_tasks)):
            self.first_pass.begin(resume=True, overwrite=False)
            self.first_pass.run(runner, lambda _: None)
        materialise(self.tasks, self.target, runner, note)
        if self.first_pass is not None and self.first_pass.root.names():
            self.first_pass.root.remove()

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
        for name, output in self.outputs.items():
            done = [part for number in range(self.num_tasks) if (part := output.find(number)) is not None]
            rows[name] = sum(part.num_rows for part in done)
            num_bytes += sum(part.num_bytes for part in done)
        listing = (self.first_pass or self).tasks
        for number in range(len(listing.cuts)) if listing.rejects_to is not None else ():
            with suppress(ObjectNotFoundError):
                lines = self.root.read_bytes(rejected_name(number)).count(b"\n")
                rejected += lines
                files += [join_url(self.root.shown, rejected_name(number))] if lines else []
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
    shuffle: bool = False,
    shuffle_memory: int | str = "1gb",
    on_error: Literal["raise", "skip"] = "raise",
    task_size: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    shows_samples: bool = False,
    open_parts: OpenParts | None = None,  # by row, with the number of rows of each part
) -> Conversion:
    """Cut a source into tasks, and learn the columns; nothing is written. `open_parts` opens what a shuffle sorted."""
    settings = SaveSettings(format, size_limit, None, compression, hashes=hashes, storage_options=storage_options)
    _check(format, on_error, shuffle=shuffle)
    rule = None if splits is None else split_rule(splits, split_by, seed)
    source, chain = _files_below(source, () if transform is None else tuple(as_chain(transform)))
    root = PartsTarget(out, settings)
    known = {} if overwrite else (root.read(PLAN_NAME) or {}).get("options", {})
    infos = _infos(source)
    num_bytes = known.get("task_size") if task_size is None else max(1, parse_bytes(task_size))
    learns = num_bytes is None or format != "mds" or not (columns or known.get("columns")) or shows_samples or shuffle
    first, swell, made = _look(source, chain, infos, skips=on_error == "skip") if learns else ([], 1.0, 0.0)
    part_bytes = max(1, parse_bytes(shuffle_memory) // _PARTS_OF_MEMORY) if shuffle else sys.maxsize
    num_bytes = num_bytes or _task_size(settings.max_bytes, part_bytes, swell, made)
    cuts = plan_cuts(infos, num_bytes, partial(find_cuts, source), most_parts=None)
    num_sorted = known.get("shuffle") or max(math.ceil(made / part_bytes), min(_ENOUGH_TASKS, len(cuts)))
    options: dict[str, Any] = {
        **{name: value for name, value in settings.key.items() if value is not None},
        "transform": None if transform is None else as_chain(transform).fingerprint(),
        "splits": None if rule is None else [*rule],
        "task_size": num_bytes,
        "on_error": on_error,
        "shuffle": num_sorted if shuffle else None,
        "seed": seed if shuffle else None,
    }
    found = getattr(source, "columns", None) if format == "mds" else None
    settings, told = _with_columns(settings, columns, {"columns": found, **known}, first)
    if on_error == "skip":
        chain = (*chain, FitsColumns(settings.columns, settings.schema, drops_extra=settings.drops_extra))
    tasks = ConvertTasks(source, cuts, _keys_of(source, cuts), chain, rule, root if on_error == "skip" else None)
    before = None
    if shuffle:
        before = _first_pass(join_url(out, SHUFFLE_FOLDER), tasks, settings, seed)
        tasks, settings = _second_pass(before, num_sorted, open_parts), replace(settings, drops_extra=True)
    outputs = {
        name: ConvertTarget(join_url(out, name) if name else out, settings, {}, tasks.task_names)
        for name in (("",) if rule is None else rule.names)
    }
    return Conversion(root, options | told, tasks, outputs, told.get("columns"), first, before)


def _check(form: str, on_error: str, *, shuffle: bool) -> None:
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r} is unknown: use 'raise' or 'skip'")
    if shuffle and form != "mds":
        raise ConfigError(f"shuffle=True writes MDS, not {form}: convert to MDS, and then that to {form}")


def _files_below(
    source: ShardedSource, chain: tuple[AnyTransform, ...]
) -> tuple[ShardedSource, tuple[AnyTransform, ...]]:
    """Return what a source reads, which can be cut, with all that is applied to it."""
    if source.is_endless:
        raise ConfigError("the source never ends, so it cannot be converted: use LimitedShardedSource")
    while isinstance(source, TransformedShardedSource):
        chain, source = (*source.transforms, *chain), source.source
    if isinstance(source, HuggingFaceShardedSource) and source.file_source is not None:
        source = source.file_source
    return source, chain


def _first_pass(url: str, tasks: ConvertTasks, settings: SaveSettings, seed: int) -> Conversion:
    """Plan the datasets of sorted rows that the tasks of a conversion write."""
    columns = {**(settings.columns or {}), KEY: "uint64"}
    settings = replace(settings, columns=columns, compression=None, hashes=())
    tasks = replace(tasks, order_key=seed)
    target = ConvertTarget(url, settings, {}, tasks.task_names)
    return Conversion(PartsTarget(url, settings), {}, tasks, {"": target}, columns, ())


def _second_pass(before: Conversion, num_tasks: int, open_parts: OpenParts | None) -> ConvertTasks:
    """Plan the tasks that each join some keys of all that the first pass writes."""
    tasks = before.tasks
    if open_parts is None:
        raise ConfigError("shuffle=True is for penstock.convert: write the rows first, and convert these")
    source = SortedParts(partial(open_parts, before.outputs[""]), num_tasks, _digest("".join(tasks.task_names)))
    cuts = [Cut(number, number + 1) for number in range(num_tasks)]
    splits = None if tasks.splits is None else StoredSplit(tasks.splits.names)
    return ConvertTasks(source, cuts, _keys_of(source, cuts), (), splits)


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


def _infos(source: ShardedSource) -> list[ShardInfo | None]:
    source.shard_lengths()  # what tells them is read of many files at a time
    return [source.get_shard_info(name) for name in source.shard_names]


def _look(
    source: ShardedSource, transforms: Sequence[AnyTransform], infos: Sequence[ShardInfo | None], *, skips: bool
) -> tuple[list[Sample], float, float]:
    """Return first samples, how much larger they are than what is stored, and about how large all will be."""
    first, made_of = _first_samples(source, transforms, skips=skips)
    return first, *_unpacked(infos, first, made_of)


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


def _task_size(shard_bytes: int, most_bytes: int, swell: float, made: float) -> int:
    """Return how many stored bytes a task reads: what makes eight shards, or fewer if there would be few tasks."""
    made_by_task = min(max(shard_bytes, made / _ENOUGH_TASKS), _SHARDS_OF_TASK * shard_bytes, most_bytes)
    return max(1, int(made_by_task / swell))


def _unpacked(
    infos: Sequence[ShardInfo | None], first: Sequence[Sample], made_of: tuple[int, int]
) -> tuple[float, float]:
    """Return how many bytes become of a stored one, and of all of them: as the first samples take when pickled."""
    shard, rows = infos[made_of[0]], made_of[1]
    swell = 1.0
    if shard is not None and shard.num_rows and shard.byte_size:
        with suppress(Exception):  # what does not pickle
            swell = max(len(pickle.dumps(first)) / rows * shard.num_rows / shard.byte_size, 0.01)
    return swell, swell * sum(share_of(info, 1) for info in infos)


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
    tasks = (work.first_pass or work).tasks
    if hasattr(tasks.source, "own_engine"):  # rows that lie with an engine
        own: Engine = tasks.source.own_engine()
        return own
    if engine == "local":
        count = min(workers or os.cpu_count() or 1, len(tasks.cuts))
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
    if engine not in ENGINES:
        raise ConfigError(f"engine={engine!r} is unknown: use 'local', {', '.join(map(repr, ENGINES))} or an object")
    return ENGINES[engine](workers or os.cpu_count() or 1)


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
