"""`penstock.convert`: anything that gives rows → a dataset, by named tasks that any engine may run.

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
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from penstock.conversion.inputs import FunctionsSource, source_of
from penstock.conversion.rows import Piece, TaskRows, as_chain, rejected_lines, split_rules
from penstock.errors import ConfigError, EmptyDatasetError, ObjectNotFoundError, OutputExistsError, ResumeError
from penstock.extras import require
from penstock.index.catalog import parse_index
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import INDEX_NAME
from penstock.pipeline.cutting import Cut, find_cuts, plan_cuts
from penstock.publish.dataset_writer import MANIFEST_NAME, SaveSettings, save_samples
from penstock.publish.engines import DaskEngine, ProcessPool, RayEngine, SparkEngine, ThisProcess
from penstock.publish.materialise import PLAN_LOCK, PLAN_NAME, PartDone, PartsTarget, materialise, part_name
from penstock.publish.mds_files import infer_columns
from penstock.publish.merge_index import merge_indexes
from penstock.publish.sizes import PROBE_ROWS
from penstock.publish.target import LEDGER_NAME
from penstock.sources.base import TransformedShardedSource
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.found import fingerprint_of
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.status_line import StatusLine, progress_line
from penstock.storage.url_names import join_url
from penstock.units import check_whole, format_count, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Unpack

    from penstock.conversion.rows import SplitRule
    from penstock.publish.dataset_writer import SaveFormat
    from penstock.publish.engines import Engine
    from penstock.publish.materialise import Tasks
    from penstock.sources.base import ShardedSource
    from penstock.sources.transforms import AnySourceTransform, AnyTransform
    from penstock.types import Sample

VERSION = 1
REJECTED_FOLDER = "_rejected"
_SHARDS_OF_TASK = 8
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


@dataclass(frozen=True, slots=True)
class ConvertTasks:
    """The tasks of a conversion. They pickle without a single row: who runs a task reads its rows where it runs."""

    source: ShardedSource
    cuts: Sequence[Cut]
    keys: Sequence[str]  # of each task, what its samples depend on
    transforms: Sequence[AnyTransform] = ()
    split: SplitRule | None = None
    rejects_to: PartsTarget | None = None  # where rows that are bad are listed; None: they are errors

    @property
    def task_names(self) -> Sequence[str]:
        """Which samples each task makes."""
        return [f"{cut.name}-{key}" for cut, key in zip(self.cuts, self.keys, strict=True)]

    @property
    def fingerprint(self) -> str:
        """All that samples depend on is in the names of tasks."""
        return "convert"

    def open_task(self, number: int) -> TaskRows:
        """Open the samples of a task."""
        reject = None if self.rejects_to is None else partial(_list_rejected, self.rejects_to, number)
        pieces = pieces_of(self.source, self.cuts[number])
        return TaskRows(self.source, pieces, self.transforms, split=self.split, on_rejected=reject)


def pieces_of(source: ShardedSource, cut: Cut) -> list[Piece]:
    """Return the rows of a task, shard by shard."""
    names = source.shard_names[cut.first : cut.end]
    if cut.begin is None:
        return [Piece(name) for name in names]
    return [Piece(names[0], int(cut.begin["row"]), cut.end_row, cut.begin)]


def _list_rejected(target: PartsTarget, number: int, rejected: Sequence[Mapping[str, Any]]) -> None:
    target.write(_rejected_name(number), rejected_lines(rejected))


def _rejected_name(number: int) -> str:
    return f"{REJECTED_FOLDER}/{part_name(number)}.jsonl"


@dataclass(frozen=True, slots=True)
class ConvertTarget(PartsTarget):
    """Where the tasks of a conversion, or of one of its splits, write to. What was made of other rows is made anew."""

    task_names: Sequence[str] = ()

    def find(self, number: int) -> PartDone | None:
        """Return what a task has made of the same rows."""
        manifest = self.read(f"{part_name(number)}/{MANIFEST_NAME}")
        if manifest is None or manifest.get("key", {}).get("fingerprint") != self._key_of(number):
            return None
        return PartDone(number, manifest["num_rows"], sum(file["bytes"] for file in manifest["files"]))

    def run_task(self, tasks: Tasks, number: int) -> PartDone:
        """Make what a task makes, going on where it was left if that was of the same rows."""
        name, key = part_name(number), self._key_of(number)
        before = self.read(f"{name}/{MANIFEST_NAME}") or self.read(f"{name}/{LEDGER_NAME}")
        is_same = before is None or before.get("key", {}).get("fingerprint") == key
        settings = replace(
            self.settings,
            resume=is_same,
            overwrite=not is_same,
            fingerprint=key,
            waits_for_others=True,
            allows_empty=True,
        )
        stats = save_samples(partial(tasks.open_task, number), join_url(self.url, name), settings)
        return PartDone(number, stats.num_examples, stats.total_bytes)

    def finish(self, num_tasks: int) -> None:
        """Join what all tasks have made, in their order; parts of earlier conversions that are left over go."""
        rows, indexes = [], {}
        for number in range(num_tasks):
            done, name = self.find(number), part_name(number)
            if done is None:
                raise ResumeError(f"task {number} of {self.shown} is not done: run it, and finish again")
            rows.append(done.num_rows)
            if self.settings.format == "mds" and done.num_rows:
                key = f"{name}/{INDEX_NAME}"
                indexes[name] = parse_index(self.read_bytes(key), join_url(self.shown, key))
        manifest = {"version": VERSION, "num_rows": sum(rows), "rows_of_parts": rows, **self.about}
        with self.hold(PLAN_LOCK, waits=True):
            self.remove_leftovers(num_tasks)
            if indexes:
                self.write(INDEX_NAME, dump_index(merge_indexes(indexes), is_merged=True))
            self.write(MANIFEST_NAME, json.dumps(manifest, indent=1).encode())

    def _key_of(self, number: int) -> str:
        return f"convert-{self.task_names[number]}"


class ConvertOptions(TypedDict, total=False):
    """What a conversion makes of its inputs: all that its files depend on.

    Attributes:
        format: `"mds"`, `"parquet"`, `"arrow"` or `"jsonl"`.
        columns: Encodings of MDS columns; by default, those that fit the first samples.
        transform: A function of a sample that returns a sample, several or None; a transform, or several joined with
            `>>`, also of whole batches.
        compression: Such as `"zstd"` or `"zstd:7"`.
        hashes: Digests to record for MDS shards, such as `["xxh64"]`.
        size_limit: The size of a shard, before compression; `"64mb"` by default.
        splits: Shares by name, such as `{"train": 0.98, "val": 0.02}`; each split is a dataset in a folder of its name.
            A row stays in its split when data are added.
        split_by: The column that decides; rows of equal values stay together. By default the place of the row.
        seed: Makes other splits.
        on_error: `"raise"`, or `"skip"` to leave out and list rows that are damaged or that the transform fails on.
        input_format: How files are read, if their names do not tell: `"parquet"`, `"json"`, `"csv"`, …
        task_size: About how many stored bytes a task reads; by default those of eight shards.
        storage_options: Credentials and settings of stores.
    """

    format: SaveFormat
    columns: Mapping[str, str] | None
    transform: AnySourceTransform | None
    compression: str | None
    hashes: Sequence[str]
    size_limit: int | str
    splits: Mapping[str, float] | None
    split_by: str | None
    seed: int
    on_error: Literal["raise", "skip"]
    input_format: str | None
    task_size: int | str | None
    storage_options: Mapping[str, Any] | None


def convert(
    inputs: Any,
    out: str | os.PathLike[str],
    *,
    engine: EngineName | Engine = "local",
    workers: int | None = None,
    resume: bool = True,
    overwrite: bool = False,
    task: tuple[int, int] | None = None,
    dry_run: bool = False,
    progress: bool = True,
    **options: Unpack[ConvertOptions],
) -> ConvertReport:
    """Turn anything that gives rows into a dataset, and return what was made.

        penstock.convert("raw/*.parquet", "s3://bucket/train", compression="zstd", workers=8)

    A conversion that is begun again does only what is missing, and ends in the same bytes as one that never stopped,
    with any engine and any number of workers. Files that changed are converted anew; other options over the same `out`
    are refused.

    Args:
        inputs: Files, folders, globs and URLs; a source or a dataset; a table of pandas, Polars or Arrow, or a
            `Dataset` of the Hugging Face library; an iterable of samples; functions of which each returns one.
        out: A folder or a URL.
        engine: `"local"` (processes of this machine), `"ray"`, `"dask"`, `"spark"`, or an object with the method `run`
            of these.
        workers: How many tasks run at a time; by default one for each processor.
        resume: Go on with what an earlier run of the same conversion has made.
        overwrite: Replace a conversion with other options.
        task: `(number, count)` runs only every count-th task, for job arrays; a run without it joins all of them.
        dry_run: Write nothing; the report has the number of tasks, the columns and first samples.
        progress: Show a line of progress, on a terminal.
        **options: What is made: `format`, `columns`, `transform`, `splits` and more, see `ConvertOptions`.
    """
    began = time.monotonic()
    work = plan_conversion(inputs, os.fspath(out), **options)
    if dry_run:
        return work.report(samples=work.first_samples)
    runner = _engine_of(engine, workers, work)
    num_found = work.begin(resume=resume, overwrite=overwrite)
    line = _ProgressLine(work.num_tasks, is_shown=progress)
    with closing(line):
        for split in work.splits:
            if task is None:
                materialise(split.tasks, split.target, runner, line.note)
            else:
                for number in range(task[0], len(split.tasks.cuts), task[1]):
                    line.note(split.target.make(split.tasks, number, waits=True))
    return work.report(is_whole=task is None, elapsed_s=time.monotonic() - began, num_found=num_found)


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
                    lines = split.target.read_bytes(_rejected_name(number)).count(b"\n")
                    rejected += lines
                    files += [join_url(split.target.shown, _rejected_name(number))] if lines else []
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
    inputs: Any,
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
    input_format: str | None = None,
    task_size: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """Cut inputs into tasks, and learn the columns; nothing is written."""
    settings = SaveSettings(format, size_limit, None, compression, hashes=hashes, storage_options=storage_options)
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r} is unknown: use 'raise' or 'skip'")
    rules: Mapping[str, SplitRule | None] = {"": None} if splits is None else split_rules(splits, split_by, seed)
    chain = () if transform is None else tuple(as_chain(transform))
    source = source_of(inputs, input_format, storage_options)
    if source.is_endless:
        raise ConfigError("the source never ends, so it cannot be converted: use LimitedShardedSource")
    while isinstance(source, TransformedShardedSource):  # the files below can be cut
        chain, source = (*source.transforms, *chain), source.source
    if isinstance(source, HuggingFaceShardedSource) and source.file_source is not None:
        source = source.file_source
    num_bytes = _SHARDS_OF_TASK * settings.max_bytes if task_size is None else max(1, parse_bytes(task_size))
    infos = [source.get_shard_info(name) for name in source.shard_names]
    cuts = plan_cuts(infos, num_bytes, partial(find_cuts, source), most_parts=None)
    root = PartsTarget(out, settings)
    options: dict[str, Any] = {
        **{name: value for name, value in settings.key.items() if value is not None},
        "transform": None if transform is None else as_chain(transform).fingerprint(),
        "splits": {name: rule and [*rule] for name, rule in rules.items()},
        "task_size": num_bytes,
        "on_error": on_error,
    }
    first = _first_samples(source, cuts, chain)
    settings, told = _with_columns(settings, columns, (root.read(PLAN_NAME) or {}).get("options", {}), first)
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


def _first_samples(source: ShardedSource, cuts: Sequence[Cut], transforms: Sequence[AnyTransform]) -> list[Sample]:
    for cut in cuts:
        with closing(TaskRows(source, pieces_of(source, cut), transforms, on_rejected=lambda _: None)) as rows:
            if first := rows.take(PROBE_ROWS):
                return first
    raise EmptyDatasetError("there is no sample to convert")


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


def _engine_of(engine: EngineName | Engine, workers: int | None, work: Conversion) -> Engine:
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


class _ProgressLine:
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
