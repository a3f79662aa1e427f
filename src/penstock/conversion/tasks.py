"""The tasks of a conversion, and the target that they write to."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.conversion.rows import FitsColumns, Piece, TaskRows, rejected_lines
from penstock.errors import BadSampleError, ResumeError
from penstock.index.catalog import parse_index
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import INDEX_NAME
from penstock.publish.dataset_writer import MANIFEST_NAME
from penstock.publish.materialise import PLAN_LOCK, PartDone, PartsTarget, part_name
from penstock.publish.merge_index import merge_indexes
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.conversion.rows import SplitRule
    from penstock.publish.dataset_writer import SaveSettings
    from penstock.publish.materialise import Tasks
    from penstock.sources.base import ShardedSource
    from penstock.sources.cutting import Cut
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

    def find_bad_row(self, number: int, settings: SaveSettings) -> None:
        """Read the rows of a task again, and raise at the first that cannot be written."""
        fits = FitsColumns(settings.columns, settings.schema, drops_extra=settings.drops_extra)
        fits.batch_size = 1  # so that it is this row
        with closing(replace(self, transforms=(*self.transforms, fits)).open_task(number)) as rows:
            while rows.take(_ROWS_AT_ONCE):
                pass

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

    def _key_of(self, number: int) -> str:
        return f"convert-{self.task_names[number]}"
