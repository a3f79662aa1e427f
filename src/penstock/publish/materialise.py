"""What is computed once: a dataset in parts, each made by a task, and joined to one at the end.

A source is cut into tasks by arithmetic alone, the target keeps what each of them makes under a name of its own, and an
engine decides who runs which task. What is whole is never made again, and a task that is run again ends in the same
bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.cache.proxied import open_proxied
from penstock.cachedir.layout import place_of, user_cache_dir
from penstock.cachedir.lock import try_hold
from penstock.errors import EmptyDatasetError, OutputBusyError, ResumeError
from penstock.files import os_errors, sweep
from penstock.index.catalog import parse_index
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import INDEX_NAME
from penstock.publish.dataset_writer import MANIFEST_NAME, SaveSettings, save_samples
from penstock.publish.merge_index import merge_indexes
from penstock.publish.target import LEDGER_NAME, LOCK_NAME, FilesTarget, hold_output, open_files, read_json
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from penstock.cachedir.lock import Descriptor
    from penstock.publish.engines import Engine
    from penstock.publish.samples import Samples

PARTS_VERSION = 2
PLAN_NAME = "_plan.json"
PLAN_LOCK = "plan"


def part_name(number: int) -> str:
    """Name the folder of a part, so that names sort like numbers."""
    return f"{number:06}"


class Tasks(Protocol):
    """Samples that are cut into tasks. It pickles without a single one of them: who runs a task reads these."""

    @property
    def task_names(self) -> Sequence[str]:
        """Which samples each task makes, in a word each."""

    @property
    def fingerprint(self) -> str | None:
        """A word that changes with the samples."""

    def open_task(self, number: int) -> Samples:
        """Open the samples of a task."""


class PartDone(NamedTuple):
    """A part that is whole."""

    number: int
    num_rows: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PartsTarget:
    """Where a dataset is made in parts. It pickles, and any process that has it can make parts or read them.

    Args:
        url: The folder or URL.
        settings: How each part is saved.
        about: What the manifest says beside the rows.
    """

    url: str
    settings: SaveSettings = field(default_factory=partial(SaveSettings, "mds"))
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The place, as it may be shown."""
        return shown_url(self.url)

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one of this machine."""
        return LocalStore.from_url(self.url).root if url_scheme(self.url) in (None, "file") else None

    # --- Parts ------------------------------------------------------------------------------------------------

    def find(self, number: int) -> PartDone | None:
        """Return a part that is whole already."""
        found = self.read(f"{part_name(number)}/{MANIFEST_NAME}")
        if found is None:
            return None
        return PartDone(number, found["num_rows"], sum(file["bytes"] for file in found["files"]))

    def make(self, tasks: Tasks, number: int, *, waits: bool) -> PartDone | None:
        """Make a part, or finish one that was begun; None if another process is at it and is not waited for."""
        try:
            with self.hold(part_name(number), waits=waits):
                return self.find(number) or self._save(tasks, number)
        except OutputBusyError:
            if waits:
                raise
            return None

    def _save(self, tasks: Tasks, number: int) -> PartDone:
        whole = tasks.fingerprint
        settings = replace(
            self.settings,
            resume=True,
            fingerprint=None if whole is None else f"{whole}-{tasks.task_names[number]}",
            waits_for_others=True,
            allows_empty=True,
        )
        samples, place = partial(tasks.open_task, number), join_url(self.url, part_name(number))
        try:
            stats = save_samples(samples, place, settings)
        except ResumeError:  # what was begun is of another release, or of other files
            stats = save_samples(samples, place, replace(settings, resume=False, overwrite=True))
        return PartDone(number, stats.num_examples, stats.total_bytes)

    def finish(self, num_tasks: int) -> None:
        """Join all parts to one dataset, once they are whole."""
        names, rows, indexes = [part_name(number) for number in range(num_tasks)], [], {}
        for name in names:
            manifest = self.read(f"{name}/{MANIFEST_NAME}")
            if manifest is None:
                raise ResumeError(f"part {name} of {self.shown} was removed: build it again")
            rows.append(manifest["num_rows"])
            key = f"{name}/{INDEX_NAME}"
            indexes[name] = parse_index(self._store().read(key), join_url(self.shown, key))
        if not sum(rows):
            raise EmptyDatasetError(f"there is no sample for {self.shown}")
        numbers = {"num_rows": sum(rows), "rows_of_parts": rows, "finished_at": time.time()}
        with self.hold(PLAN_LOCK, waits=True):
            self.write(INDEX_NAME, dump_index(merge_indexes(indexes), is_merged=True))
            self.write(MANIFEST_NAME, {**self.about, **numbers})
        for name in names:  # processes that wait for one look again once they have it
            self._lock_path(name).unlink(missing_ok=True)

    # --- Small files ------------------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any] | None:
        """Read one of its files of JSON, if it is there."""
        return read_json(self._store(), name, self.shown)

    def write(self, name: str, values: Mapping[str, Any] | bytes) -> None:
        """Write one of its small files, which appears whole; the caller holds the plan."""
        if not isinstance(values, bytes):
            values = json.dumps({"version": PARTS_VERSION, **values}, indent=1).encode()
        with closing(self._target()) as target:
            sweep(target.folder)
            target.write(name, values)

    def read_bytes(self, name: str) -> bytes:
        """Read one of its files."""
        return bytes(self._store().read(name))

    def names(self) -> list[str]:
        """List all files."""
        return [info.key for info in self._store().list()]

    def remove_joint(self) -> None:
        """Remove what says that it is whole, if it is there."""
        with closing(self._target()) as target:
            target.remove([INDEX_NAME, MANIFEST_NAME])

    def remove_leftovers(self, num_parts: int) -> None:
        """Remove what killed processes left in parts that are whole, and parts of an earlier dataset after these."""
        names = [name for name in self.names() if name[:6].isdecimal() and name[6:7] == "/"]
        over = (f"/{LOCK_NAME}", f"/{LEDGER_NAME}")
        later = [name for name in names if int(name[:6]) >= num_parts or name.endswith(over)]
        if later:
            with closing(self._target()) as target:
                target.remove(later)

    def remove(self) -> None:
        """Remove all of it, first what says that it is whole."""
        with closing(self._target()) as target:
            target.remove([INDEX_NAME, MANIFEST_NAME, PLAN_NAME])
            if target.store is None:
                shutil.rmtree(target.folder, ignore_errors=True)
            else:
                target.remove(target.names())

    def _store(self) -> Any:
        return open_proxied(self.url, self.settings.storage_options)

    def _target(self) -> FilesTarget:
        return open_files(self.url, storage_options=self.settings.storage_options, entry=MANIFEST_NAME)

    # --- Locks ------------------------------------------------------------------------------------------------

    def hold(self, name: str, *, waits: bool) -> Descriptor:
        """Keep other processes of this machine from something that has a name here, until the result is closed.

        If one of them is at it, wait for it or fail. The kernel frees the lock of a process that is killed.
        """
        path = self._lock_path(name)
        with os_errors(path):
            return hold_output(lambda: try_hold(path), path, f"{name} of {self.shown}", waits=waits)

    def _lock_path(self, name: str) -> Path:
        # Not within the dataset, which may be in a store, or be removed.
        folder = self.folder
        if folder is not None:
            return folder.parent / ".building" / f"{folder.name}-{name}.lock"
        digest = hashlib.sha256(place_of(self.url).encode()).hexdigest()[:24]
        return user_cache_dir() / "building" / f"{digest}-{name}.lock"


def materialise(
    tasks: Tasks,
    target: PartsTarget,
    engine: Engine,
    on_done: Callable[[PartDone], None] = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Make what is not made yet, and join it: first all that is free, then what other processes were at."""
    num_tasks, left = len(tasks.task_names), []
    for number in range(num_tasks):
        done = target.find(number)
        if done is None:
            left.append(number)
        else:
            on_done(done)
    for waits in (False, True):
        busy: list[int] = []
        with closing(engine.run(partial(target.make, tasks, waits=waits), left, target.shown)) as made:
            for number, done in made:
                if done is None:
                    busy.append(number)
                else:
                    on_done(done)
                if is_stopped():
                    return
        left = sorted(busy)
    target.finish(num_tasks)
