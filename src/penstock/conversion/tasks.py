"""The tasks of a conversion, and the target that they write to."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.conversion.rows import FitsColumns, Piece, TaskRows, rejected_lines
from penstock.conversion.shuffle import KEY, RowsByKey
from penstock.errors import BadSampleError, ConfigError, ResumeError
from penstock.index.catalog import parse_index
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import INDEX_NAME
from penstock.order.keys import hash_key
from penstock.publish.dataset_writer import MANIFEST_NAME, open_writer
from penstock.publish.materialise import PLAN_LOCK, PartDone, PartsTarget, part_name
from penstock.publish.merge_index import merge_indexes
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.conversion.rows import SplitPlaces
    from penstock.publish.dataset_writer import DatasetWriter, SaveSettings
    from penstock.publish.materialise import Tasks
    from penstock.publish.samples import Samples
    from penstock.sources.base import ShardedSource
    from penstock.sources.shard_info import Cut
    from penstock.sources.transforms import AnyTransform

VERSION = 1
_ROWS_AT_ONCE = 256
REJECTED_FOLDER = "_rejected"


@dataclass(frozen=True, slots=True)
class ConvertTasks:
    """The tasks of a conversion. They pickle without a single row: who runs a task reads its rows where it runs."""

    source: ShardedSource
    cuts: Sequence[Cut]
    keys: Sequence[str]  # of each task, what its samples depend on
    transforms: Sequence[AnyTransform] = ()
    splits: SplitPlaces | None = None
    rejects_to: PartsTarget | None = None  # where rows that are bad are listed; None: they are errors
    order_key: int | None = None  # of rows that are put in random order; None: they stay in theirs

    @property
    def task_names(self) -> Sequence[str]:
        """Which samples each task makes."""
        return [f"{cut.name}-{key}" for cut, key in zip(self.cuts, self.keys, strict=True)]

    @property
    def fingerprint(self) -> str:
        """All that samples depend on is in the names of tasks."""
        return "convert"

    def find_bad_row(self, number: int, settings: SaveSettings) -> None:
        """Read the rows of a task again, and raise at the first that cannot be written."""
        columns = {name: encoding for name, encoding in (settings.columns or {}).items() if name != KEY}
        fits = FitsColumns(columns or None, settings.schema, drops_extra=settings.drops_extra)
        fits.batch_size = 1  # so that it is this row
        with (
            suppress(ConfigError),  # of rows that can be read only once
            closing(replace(self, transforms=(*self.transforms, fits)).open_rows(number)) as rows,
        ):
            while rows.take(_ROWS_AT_ONCE):
                pass

    def open_task(self, number: int) -> Samples:
        """Open the samples of a task."""
        rows = self.open_rows(number)
        if self.order_key is None:
            return rows
        return RowsByKey(rows, self.splits, hash_key("shuffle", self.order_key, self.task_names[number]))

    def open_rows(self, number: int) -> TaskRows:
        """Open the samples of a task of all splits."""
        reject = None if self.rejects_to is None else partial(_list_rejected, self.rejects_to, number)
        return TaskRows(self.source, pieces_of(self.source, self.cuts[number]), self.transforms, on_rejected=reject)


def pieces_of(source: ShardedSource, cut: Cut) -> list[Piece]:
    """Return the rows of a task, shard by shard."""
    names = source.shard_names[cut.first : cut.end]
    if cut.begin is None:
        return [Piece(name) for name in names]
    return [Piece(names[0], int(cut.begin["row"]), cut.end_row, cut.begin)]


def _list_rejected(target: PartsTarget, number: int, rejected: Sequence[Mapping[str, Any]]) -> None:
    target.write(rejected_name(number), rejected_lines(rejected))


def rejected_name(number: int) -> str:
    """Name the list of rows that a task has left out."""
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

    def make(self, tasks: Tasks, number: int, *, waits: bool) -> PartDone | None:
        """Make what a task makes. If a sample cannot be written, the error names the row that it comes from."""
        try:
            return super(ConvertTarget, self).make(tasks, number, waits=waits)
        except BadSampleError:
            if isinstance(tasks, ConvertTasks):
                tasks.find_bad_row(number, self.settings)
            raise

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

    def open_part(self, number: int) -> DatasetWriter:
        """Make a part anew, whatever is there of it."""
        settings = replace(self.settings, overwrite=True, allows_empty=True, fingerprint=self._key_of(number))
        return open_writer(join_url(self.url, part_name(number)), settings)

    def _key_of(self, number: int) -> str:
        return f"convert-{self.task_names[number]}"


@dataclass(frozen=True, slots=True)
class SplitsTarget(ConvertTarget):
    """Where tasks write to that make several datasets of the rows that they read once."""

    outputs: Sequence[ConvertTarget] = ()

    def find(self, number: int) -> PartDone | None:
        """Return what a task has made, if it is whole in all splits."""
        found = [part for output in self.outputs if (part := output.find(number)) is not None]
        if len(found) < len(self.outputs):
            return None
        return PartDone(number, sum(part.num_rows for part in found), sum(part.num_bytes for part in found))

    def _save(self, tasks: Tasks, number: int) -> PartDone:
        """Make a part of all splits anew: it is in the middle of all of them."""
        assert isinstance(tasks, ConvertTasks)  # noqa: S101
        assert tasks.splits is not None  # noqa: S101
        with ExitStack() as stack:
            writers = [stack.enter_context(output.open_part(number)) for output in self.outputs]
            rows = stack.enter_context(closing(tasks.open_rows(number)))
            for split, samples in rows.parted(tasks.splits):
                for sample in samples:
                    writers[split].write(sample)
        done = self.find(number)
        assert done is not None  # noqa: S101
        return done

    def finish(self, num_tasks: int) -> None:
        """Join what all tasks have made, split by split."""
        for output in self.outputs:
            output.finish(num_tasks)
