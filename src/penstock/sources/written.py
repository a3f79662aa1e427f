"""The samples of a source that is read in order, written once on each node to files of columns that read in any order.

What lies where is said in `cachedir/written.py`: KEY is a hash of the fingerprint. The kernel frees the lock of a
process that was killed: the next one goes on where it was. A process that waits for the lock gives up if its holder
shows no sign of life.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cachedir.lock import lock_within
from penstock.cachedir.written import BUILD_LOCK, COLUMNS_SUFFIX, PROGRESS, WRITTEN, make_room, use, written_root
from penstock.codecs.unpack import release
from penstock.errors import CacheError, ConfigError, EmptyDatasetError, LockTimeoutError, ResumeError
from penstock.files import atomic_write, flush_folder, os_errors, sweep
from penstock.formats.base import ReadOptions
from penstock.formats.columnar.arrow_types import describe_type, pyarrow
from penstock.formats.columnar.reader import ColumnsReader
from penstock.formats.columnar.write import write_columns
from penstock.formats.parts import load_file
from penstock.index.model import Column, FileInfo, IndexedShard, Part, ShardLayout
from penstock.interrupts import WaitingFor
from penstock.processes import PerProcess
from penstock.publish.samples import write_samples
from penstock.reading.source import OpenShard, Source
from penstock.sources.to_arrow import to_batch
from penstock.status_line import StatusLine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.blocks.block import Block
    from penstock.sources.iterators import SampleIterator
    from penstock.types import Int64Array

log = logging.getLogger("penstock.sources")

_VERSION = 1
_SHARD_BYTES = 16 << 20
_MOST_BYTES = 1 << 40
_ROWS_AT_ONCE = 256
# A process that holds the lock and has not taken a sample for so long is stopped, or its source is stuck.
_PATIENCE_S = 600.0
_LOOK_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class Written:
    """What is in a folder: the columns, and of each file its rows and bytes."""

    version: int = _VERSION
    label: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    state: dict[str, Any] | None = None  # of the source, after what is written


def write_once(
    open_samples: Callable[[], SampleIterator],
    fingerprint: str,
    label: str,
    columns: tuple[str, ...] | None = None,
    limit_bytes: int | None = None,
) -> WrittenSource:
    """Return the samples of a source from its files; those that are not there are written now, or waited for.

    All that is written on the node may take `limit_bytes`, by default half of the free space: others go first,
    unless they are in use.
    """
    key = hashlib.sha256(f"{_VERSION} {fingerprint}".encode()).hexdigest()[:32]
    folder = written_root() / key
    with os_errors(folder), use(folder):
        written = _read(folder / WRITTEN)
        if written is None or not _is_whole(folder, written):
            written = _write_or_wait(folder, open_samples, label, limit_bytes)
        made = _opened(folder, written, label, columns)
        made.keep()
    return made


def _opened(folder: Path, written: Written, label: str, columns: tuple[str, ...] | None) -> WrittenSource:
    if not sum(written.rows):
        raise EmptyDatasetError(f"Stream contains no samples: {label} gives none")
    for name in columns or ():
        if name not in written.columns:
            raise ConfigError(f"there is no column {name!r}: {label} gives {', '.join(written.columns)}")
    return WrittenSource(folder, written, label, columns)


class WrittenSource(Source):
    """Samples in files of columns."""

    content = ""  # the fingerprint of what decides the order of the source

    def __init__(self, folder: Path, written: Written, label: str, columns: tuple[str, ...] | None) -> None:
        super().__init__(written.rows)
        self._folder, self._written, self._label = folder, written, label
        self._options = ReadOptions(columns=columns)
        self._layout = ShardLayout(format="columns", columns=tuple(Column(name, "arrow") for name in written.columns))
        self._in_use = PerProcess(partial(use, folder))

    def keep(self) -> None:
        """Keep the files from being removed, in this process; `close` lets go of them."""
        self._in_use.get()

    def close(self) -> None:
        """Let go of the files."""
        held = self._in_use.forget()
        if held is not None:
            held.close()

    def open(self, shard: int) -> OpenShard:
        """Map a file."""
        self.keep()
        file = FileInfo(_file_name(shard), self._written.num_bytes[shard])
        info = IndexedShard(self._layout, self._written.rows[shard], (Part(file),))
        path = self._folder / file.basename
        if not path.exists():
            raise CacheError(
                f"the samples of {self._label} were removed from {self._folder} while they were not in use: open the"
                " dataset again",
                path=str(path),
            )
        data = load_file(path, file, None)
        try:
            return OpenShard(ColumnsReader(data, info, self._options))
        except BaseException:
            release(data)
            raise

    @property
    def sizes(self) -> Int64Array:
        """The bytes of each file."""
        import numpy as np

        return np.array(self._written.num_bytes, np.int64)

    def describe_shard(self, shard: int) -> str:
        """Return where a shard is."""
        return f"{self._label}, written to {self._folder / _file_name(shard)}"


# --- Writing --------------------------------------------------------------------------------------------------


def _write_or_wait(
    folder: Path, open_samples: Callable[[], SampleIterator], label: str, limit_bytes: int | None
) -> Written:
    path = folder / BUILD_LOCK
    with WaitingFor(f"the samples of {label} to be written to {folder}"):
        while True:
            try:
                lock = lock_within(path, _LOOK_EVERY_S)
            except LockTimeoutError as error:
                silent_s = time.time() - path.stat().st_mtime
                if silent_s > _PATIENCE_S:
                    raise LockTimeoutError(
                        f"another process writes the samples of {label} to {folder}, but has not read one for"
                        f" {silent_s:.0f} s: see what it is doing, or end it",
                        path=str(path),
                    ) from error
                continue
            with lock:
                written = _read(folder / WRITTEN)  # others may have finished meanwhile
                if written is not None and _is_whole(folder, written):
                    return written
                return _Builder(folder, label, limit_bytes).build(open_samples)


class _Builder:
    """Writes a folder, going on where another process was stopped."""

    def __init__(self, folder: Path, label: str, limit_bytes: int | None) -> None:
        self._folder, self._label, self._limit_bytes = folder, label, limit_bytes
        self._line = StatusLine()
        self._begun = time.monotonic()
        sweep(folder)
        (folder / WRITTEN).unlink(missing_ok=True)
        found = _read(folder / PROGRESS)
        is_there = found is not None and found.state is not None and _is_whole(folder, found)
        self._written = found if found is not None and is_there else Written(label=label)
        self._batches: list[Any] = []  # of the next file
        self._num_bytes = 0  # of these
        self._num_rows = sum(self._written.rows)

    def build(self, open_samples: Callable[[], SampleIterator]) -> Written:
        log.info("writing the samples of %s to %s, once on this node", self._label, self._folder)
        begun_at = self.position
        try:
            write_samples(open_samples, self)
        except ResumeError as error:  # of another release
            if begun_at is None:
                raise
            log.warning("writing %s from its beginning again: %s", self._label, error)
            self._written = Written(label=self._label)
            self._batches, self._num_bytes, self._num_rows = [], 0, 0
            write_samples(open_samples, self)
        finally:
            self._line.clear()
        if self._batches:
            self._write_file()
        self._written.state = None
        self._save(WRITTEN)
        (self._folder / PROGRESS).unlink(missing_ok=True)
        return self._written

    @property
    def position(self) -> dict[str, Any] | None:
        return self._written.state

    @property
    def num_wanted(self) -> int:
        return _ROWS_AT_ONCE

    def write_block(self, block: Block, position: Callable[[], Any]) -> None:
        rows = block.samples()
        self._written.columns = self._written.columns or list(rows[0])
        self._batches.append(to_batch(rows, self._written.columns, self._num_rows))
        self._num_rows += len(rows)
        self._num_bytes += self._batches[-1].nbytes
        self._show_life()
        if self._num_bytes >= _SHARD_BYTES:
            self._write_file()
            self._written.state = position()
            self._save(PROGRESS)

    def _write_file(self) -> None:
        written, pa = self._written, pyarrow()
        name = _file_name(len(written.rows))
        tables = [pa.Table.from_batches([batch]) for batch in self._batches]
        table = pa.concat_tables(tables, promote_options="permissive")
        make_room(self._folder, self._num_bytes, self._limit_bytes, self._label)
        types = [(each.name, describe_type(each.type, each.name)) for each in table.schema]
        with atomic_write(self._folder / name, flush=True) as part, part.open("wb") as out:
            write_columns(
                table.combine_chunks().to_batches(), types, out, name=name, num_rows=len(table), max_bytes=_MOST_BYTES
            )
        written.rows.append(len(table))
        written.num_bytes.append((self._folder / name).stat().st_size)
        self._batches, self._num_bytes = [], 0

    def _show_life(self) -> None:
        """Show processes that wait, and the terminal, that it goes on."""
        os.utime(self._folder / BUILD_LOCK)
        if self._line.is_terminal and self._line.is_due() and time.monotonic() - self._begun > 2:
            self._line.show(
                f"writing the samples of {self._label} to files, once on this node: {self._num_rows:,} so far"
            )

    def _save(self, name: str) -> None:
        with atomic_write(self._folder / name, flush=True) as part:
            part.write_text(json.dumps(asdict(self._written)))
        flush_folder(self._folder)


# --- Files ----------------------------------------------------------------------------------------------------


def _file_name(number: int) -> str:
    return f"{number:05}{COLUMNS_SUFFIX}"


def _read(path: Path) -> Written | None:
    """Read what is said to be written; what cannot be read is not there."""
    try:
        written = Written(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return written if written.version == _VERSION else None


def _is_whole(folder: Path, written: Written) -> bool:
    """Return whether all files are there, in their sizes."""
    try:
        sizes = [(folder / _file_name(number)).stat().st_size for number in range(len(written.rows))]
    except OSError:
        return False
    return sizes == written.num_bytes
