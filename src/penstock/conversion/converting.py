"""`penstock.convert`: anything that gives rows → a dataset, by named tasks that any engine may run.

Inputs are cut into tasks by arithmetic alone. Each task writes shards and an index of its own, in a folder of its own,
and a task that is run again ends in the same bytes. The joint index comes last, in the order of tasks. So the result
does not depend on the engine, on the number of workers, or on what was killed meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from penstock.cache.proxied import open_proxied
from penstock.conversion.inputs import FunctionsSource, Replayed, as_table
from penstock.conversion.plan import TaskProgress, engine_of, plan_conversion
from penstock.conversion.ray import RayRows
from penstock.errors import CacheError, ConfigError, EmptyDatasetError, NoReadableFilesError, ObjectNotFoundError
from penstock.index.paths import INDEX_NAME
from penstock.publish.dataset_writer import MANIFEST_NAME
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.files.of_any_type import open_files
from penstock.units import checks_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from penstock.conversion.plan import ConvertReport
    from penstock.publish.dataset_writer import SaveFormat
    from penstock.publish.engines import Engine, EngineName
    from penstock.publish.materialise import PartsTarget
    from penstock.sources.transforms import AnySourceTransform


_ARCHIVES = (".tar", ".tar.gz", ".tgz")


class ConvertOptions(TypedDict, total=False):
    """What a conversion makes of its inputs: all that its files depend on.

    Attributes:
        format: `"mds"`, `"parquet"`, `"arrow"`, `"jsonl"` or `"webdataset"`.
        columns: Encodings of MDS columns; by default, those that fit the first samples.
        transform: A function of a sample that returns a sample, several or None; a transform, or several joined with
            `>>`, also of whole batches.
        compression: Such as `"zstd"` or `"zstd:7"`.
        hashes: Digests to record for MDS shards, such as `["xxh64"]`.
        size_limit: The size of a shard, before compression; `"64mb"` by default.
        splits: Shares by name, such as `{"train": 0.98, "val": 0.02}`; each split is a dataset in a folder of its name.
            A row stays in its split when data are added.
        split_by: The column that decides; rows of equal values stay together. By default the place of the row.
        seed: Makes other splits, and another order.
        shuffle: Write rows in a random order over all inputs, in two passes; of MDS.
        shuffle_memory: About how much memory of a worker that may take.
        on_error: `"raise"`, or `"skip"` to leave out and list rows that are damaged or that the transform fails on.
        input_format: How files are read, if their names do not tell: `"parquet"`, `"json"`, `"csv"`, …
        task_size: About how many stored bytes a task reads; by default those of eight shards, or of
            fewer if that made few tasks. A conversion that is begun again keeps it.
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
    shuffle: bool
    shuffle_memory: int | str
    on_error: Literal["raise", "skip"]
    input_format: str | None
    task_size: int | str | None
    storage_options: Mapping[str, Any] | None


@checks_call
def convert(
    inputs: Any,
    out: str | os.PathLike[str],
    *,
    engine: EngineName | Engine = "local",
    workers: int | None = None,
    resume: bool = True,
    overwrite: bool = False,
    task: tuple[int, int] | None = None,
    finish: bool = False,
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
            `Dataset` of the Hugging Face library; a table of Spark or a dataset of Ray, which then run the tasks; an
            iterable of samples; functions of which each returns one.
        out: A folder or a URL.
        engine: `"local"` (processes of this machine), `"ray"`, `"dask"`, `"spark"`, or an object with the method `run`
            of these.
        workers: How many tasks run at a time; by default one for each processor.
        resume: Go on with what an earlier run of the same conversion has made.
        overwrite: Replace a conversion with other options.
        task: `(number, count)` runs only every count-th task, for job arrays.
        finish: Only join what such runs have made; a task that is missing is an error.
        dry_run: Write nothing; the report has the number of tasks, the columns and first samples.
        progress: Show a line of progress, on a terminal.
        **options: What is made: `format`, `columns`, `transform`, `splits` and more, see `ConvertOptions`.
    """
    began = time.monotonic()
    source = source_of(inputs, options.pop("input_format", None), options.get("storage_options"))
    hows: dict[str, Any] = {"overwrite": overwrite, "shows_samples": dry_run, "open_parts": _open_parts}
    work = plan_conversion(source, os.fspath(out), **hows, **options)  # type: ignore[misc]
    if dry_run:
        return work.report(samples=work.first_samples)
    if work.first_pass is not None and (task is not None or finish):
        raise ConfigError("shuffle=True has two passes, which a job array cannot tell apart: use an engine")
    runner = engine_of(engine, workers, work)
    num_found = work.begin(resume=resume, overwrite=overwrite, is_array=task is not None or finish)
    line = TaskProgress(work.num_tasks, is_shown=progress)
    with closing(line):
        if finish:
            work.target.finish(work.num_tasks)
        elif task is None:
            work.run(runner, line.note)
        else:
            for number in range(task[0], work.num_tasks, task[1]):
                line.note(work.target.make(work.tasks, number, waits=True))
    report = work.report(is_whole=task is None, elapsed_s=time.monotonic() - began, num_found=num_found)
    _check_rows(report)
    return report


def _check_rows(report: ConvertReport) -> None:
    if report.is_whole and not report.num_rows:
        left_out = (
            f": all {report.num_rejected:,} rows were left out, see {report.rejected[0]}" if report.rejected else ""
        )
        raise EmptyDatasetError(f"there is no sample in {report.out}{left_out}", path=report.out)


def _open_parts(target: PartsTarget) -> tuple[Any, Sequence[int]]:
    """Open a dataset that was written in parts, by row; return it with the rows of each part."""
    manifest = target.read(MANIFEST_NAME)
    if manifest is None:
        raise CacheError(f"the sorted rows in {target.shown} were removed: convert again")
    if target.folder is not None:
        from penstock.data.local import LocalDataset  # workers that do not shuffle start sooner

        return LocalDataset(target.folder), manifest["rows_of_parts"]
    from penstock.data.dataset import StreamingDataset  # it loads torch, if that is installed

    options = target.settings.storage_options
    return StreamingDataset(remote=target.url, shuffle=False, storage_options=options), manifest["rows_of_parts"]


def source_of(
    inputs: Any, file_format: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> ShardedSource:
    """Return the rows of anything that can be converted, as a source."""
    if isinstance(inputs, ShardedSource) or hasattr(inputs, "as_source"):
        return as_source(inputs)
    if callable(inputs):
        return FunctionsSource([inputs])
    names = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if isinstance(names, list | tuple) and names:
        if all(isinstance(name, str | os.PathLike) for name in names):
            return _stored([os.fspath(name) for name in names], file_format, storage_options)
        if all(callable(each) for each in names):
            return FunctionsSource(names)
    if type(inputs).__module__.startswith("pyspark.sql"):
        from penstock.conversion.spark import SparkRows  # it plans conversions itself

        return SparkRows(inputs)
    if type(inputs).__module__.startswith("ray.data"):
        return RayRows(inputs)
    table = as_table(inputs)
    if table is not None:
        return table
    if isinstance(names, list | tuple) and names and not isinstance(names[0], Mapping):
        raise ConfigError(
            f"inputs= holds a {type(names[0]).__name__}: pass a list of samples, each a dict, or of files"
        )
    if isinstance(inputs, Iterable) and not isinstance(inputs, bytes | dict):
        return FunctionsSource([Replayed(inputs) if iter(inputs) is inputs else inputs.__iter__], fingerprint=None)
    raise ConfigError(
        f"cannot convert a {type(inputs).__name__}: pass files, a source or dataset, a table, an iterable of samples,"
        " or functions that return one"
    )


def _stored(names: list[str], file_format: str | None, options: Mapping[str, Any] | None) -> ShardedSource:
    """Open files, or a dataset with an index."""
    is_archive = file_format == "webdataset" or any(name.endswith(_ARCHIVES) for name in names)
    if is_archive or (len(names) == 1 and file_format in (None, "mds") and _has_index(names[0], options)):
        from penstock.data.dataset import StreamingDataset  # it loads torch, if that is installed

        given: Any = names[0] if len(names) == 1 else names
        return StreamingDataset(remote=given, shuffle=False, storage_options=options).as_source()
    try:
        return open_files(names, file_format, options)
    except NoReadableFilesError as error:
        raise NoReadableFilesError(f"{error.message}, nor is there an {INDEX_NAME}", **error.facts) from error


def _has_index(name: str, options: Mapping[str, Any] | None) -> bool:
    if any(character in name for character in "*?[") or name.startswith("hf:"):
        return False
    store = open_proxied(name, options)
    try:
        store.stat(INDEX_NAME)
    except (ObjectNotFoundError, NotADirectoryError):
        return False
    return True
