"""`create_writer`: rows in, a published dataset of a common format out."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from penstock.codecs.digest import check_hashes
from penstock.errors import (
    ConfigError,
    EmptyDatasetError,
    OutputExistsError,
    ResumeError,
    WriterClosedError,
)
from penstock.files import os_errors
from penstock.formats.columnar.shard_files import ColumnarSaveFormat
from penstock.formats.lines.jsonl import LinesFormat
from penstock.formats.webdataset.shard_files import TarSaveFormat
from penstock.index.paths import INDEX_NAME
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.publish.mds_files import MDSSaveFormat
from penstock.publish.samples import write_samples
from penstock.publish.sizes import PROBE_ROWS, ShardSizes, is_shard_file
from penstock.publish.target import LEDGER_NAME, LOCK_NAME, open_target, read_json
from penstock.units import check_whole, checks_making, parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self, Unpack

    from penstock.blocks.block import Block
    from penstock.formats.shard_files import ShardBlocks, ShardFileFormat
    from penstock.publish.samples import Samples
    from penstock.publish.target import Target
    from penstock.types import Sample

_COPY_BYTES = 1 << 20
MANIFEST_VERSION = 1
MANIFEST_NAME = "_manifest.json"
_SHARD = Bounded(r"shard-\d{5,}\.\w+(\.\w+)?", NAME_CHARACTERS)

SaveFormat = Literal["parquet", "arrow", "jsonl", "webdataset", "mds"]


def is_saved_file(name: str) -> bool:
    """Return whether a file is, by its name, one that saving leaves."""
    names = (MANIFEST_NAME, LEDGER_NAME, INDEX_NAME, LOCK_NAME)
    return name in names or bool(_SHARD.fullmatch(name)) or is_shard_file(name)


class FurtherOptions(TypedDict, total=False):
    """What `create_writer`, `save_dataset` and `save_iterator` take by name."""

    resume: bool
    hashes: Sequence[str]
    num_rows: int | None
    schema: Any
    columns: Mapping[str, str] | None
    drops_extra: bool
    fingerprint: str | None
    storage_options: Mapping[str, Any] | None
    waits_for_others: bool
    allows_empty: bool
    on_rows: Callable[[int, int], None] | None


class SaveOptions(FurtherOptions, total=False):
    """What functions that save something else take by name, and pass on."""

    max_shard_size: int | str
    num_shards: int | None
    compression: str | None
    overwrite: bool


@checks_making
@dataclass(frozen=True, slots=True)
class SaveSettings:
    """How a dataset is saved, checked before anything is opened.

    Args:
        format: `"parquet"`, `"arrow"`, `"jsonl"`, `"webdataset"` or `"mds"`.
        max_shard_size: About how many bytes a shard takes, as it is stored; of MDS, before compression.
        num_shards: Write exactly so many shards, of equally many rows, whatever their size. Needs `num_rows`.
        compression: By default Parquet's is snappy, and other formats have none.
        overwrite: Replace the dataset that was saved there. In a folder, it stays until the new one is whole.
        resume: Go on with a save that did not finish; one that did is left as it is.
        num_rows: How many rows will come.
        schema: A pyarrow schema, for Parquet and Arrow; by default columns are those of the first 256 rows.
        columns: The encodings of columns, for MDS; by default they are chosen by the first 256 rows.
        drops_extra: Leave out columns that `columns` does not name, instead of refusing them.
        fingerprint: A word that changes with the rows: with another, a save cannot be resumed.
        hashes: Digests to record for MDS shards.
        storage_options: Credentials and settings of the store.
        waits_for_others: Wait for another process that is saving to the same folder, instead of failing. With
            `resume`, what it has finished is then left as it is.
        allows_empty: Save a dataset without rows, too; by default that is an error.
        on_rows: Is told how many rows and bytes were written, block by block.
    """

    format: SaveFormat = "parquet"
    max_shard_size: int | str = "500MB"
    num_shards: int | None = None
    compression: str | None = None
    overwrite: bool = False
    resume: bool = False
    hashes: Sequence[str] = ()
    num_rows: int | None = None
    schema: Any = None
    columns: Mapping[str, str] | None = None
    drops_extra: bool = True
    fingerprint: str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    waits_for_others: bool = False
    allows_empty: bool = False
    on_rows: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        if self.format not in get_args(SaveFormat):
            raise ConfigError(f"format={self.format!r} is unknown: use one of {', '.join(get_args(SaveFormat))}")
        check_whole("num_shards", self.num_shards, 1)
        check_whole("num_rows", self.num_rows, 0)
        if self.max_bytes < 1:
            raise ConfigError(f"max_shard_size={self.max_shard_size!r} leaves no room for a row")
        if self.schema is not None and self.format not in ("parquet", "arrow"):
            raise ConfigError("schema= is for Parquet and Arrow")
        if (self.columns is not None or self.hashes) and self.format != "mds":
            raise ConfigError("columns= and hashes= are for MDS")
        check_hashes(self.hashes)
        if self.overwrite and self.resume:
            raise ConfigError("overwrite=True begins anew and resume=True goes on: choose one of them")

    @property
    def max_bytes(self) -> int:
        """The size of a shard."""
        return parse_bytes(self.max_shard_size)

    def sizes(self) -> ShardSizes:
        """Return what decides where a shard ends."""
        return ShardSizes(self.max_bytes, self.num_shards, self.num_rows)

    @property
    def key(self) -> dict[str, Any]:
        """All that files depend on: a save goes on only with the same."""
        return {
            "format": self.format,
            "compression": self.compression,
            "max_shard_size": None if self.num_shards else self.max_bytes,
            "num_shards": self.num_shards,
            "num_rows": self.num_rows if self.num_shards else None,
            "fingerprint": self.fingerprint,
            **({"hashes": list(self.hashes)} if self.hashes else {}),
        }


@dataclass(frozen=True, slots=True)
class WriteStats:
    """What was written: rows, shards, the bytes of all files as they are stored, and where the shards are."""

    num_examples: int
    num_shards: int
    total_bytes: int
    output_paths: list[str]


class DatasetWriter:
    """Writes rows to shards and, at the end, a manifest. Made by `create_writer`; use it in a `with` block."""

    def __init__(self, target: Target, form: ShardFileFormat, settings: SaveSettings) -> None:
        self._target, self._form, self._settings = target, form, settings
        self._sizes, self._key = settings.sizes(), settings.key
        self._waiting: list[Sample] = []
        self._shards: list[dict[str, Any]] = []
        self._making: dict[int, ShardBlocks] = {}  # by their numbers
        self._num_rows = 0
        self._num_wanted: int | None = None  # None: something has changed since it was last asked for
        self._bytes_per_row: float | None = None
        self._finished: WriteStats | None = None
        self._is_closed = self._has_all = False
        try:
            self._open()
        except BaseException:
            self.abort()
            raise

    # --- Beginning --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        target, resume = self._target, self._settings.resume
        if self._settings.overwrite:
            target.clear()
            return
        manifest, ledger = (read_json(target, name, target.shown) for name in (MANIFEST_NAME, LEDGER_NAME))
        if resume and manifest is not None:
            self._check_key(manifest)
            self._finished = self._stats(manifest["num_rows"], manifest["shards"])
        elif resume and ledger is not None:
            self._check_key(ledger)
            self._go_on(ledger)
        elif ledger is not None:
            raise OutputExistsError(
                f"a save to {target.shown} was not finished: resume=True goes on with it, overwrite=True begins anew",
                path=target.shown,
            )
        elif names := target.names():
            raise OutputExistsError(
                f"{target.shown} is not empty, there is {names[0]!r}: pass overwrite=True to replace a saved dataset,"
                " or choose another folder",
                path=target.shown,
            )
        else:
            target.clear()

    def _check_key(self, found: Mapping[str, Any]) -> None:
        before = found.get("key")
        if not isinstance(before, dict) or found.get("version") != MANIFEST_VERSION:
            raise ResumeError(f"{self._target.shown} was saved by another version: save it anew with overwrite=True")
        other = sorted(name for name in {*before, *self._key} if before.get(name) != self._key.get(name))
        if other:
            raise ResumeError(
                f"what lies at {self._target.shown} was saved with another {', '.join(other)}: save it anew with"
                " overwrite=True, or elsewhere"
            )

    def _go_on(self, ledger: Mapping[str, Any]) -> None:
        for shard in ledger["shards"]:
            if not all(self._target.has(file["name"], file["bytes"]) for file in shard["files"]):
                break  # what comes after a lost shard is written again
            self._shards.append(shard)
        self._has_all = bool(ledger["has_all"]) and len(self._shards) == len(ledger["shards"])
        self._num_rows = sum(shard["rows"] for shard in self._shards)
        if self._shards:
            self._bytes_per_row = self._shards[-1]["bytes_per_row"]
            self._form.load_state(ledger["columns"])

    @property
    def has_all(self) -> bool:
        """Whether all rows are written, and only the end is left to do."""
        return self._has_all or self._finished is not None

    @property
    def num_rows(self) -> int:
        """How many rows are in finished shards and the one that is being written; of a resumed save, from there on."""
        return self._num_rows

    @property
    def position(self) -> Any:
        """What `write_block` was told of the position after the last finished shard; None at the beginning."""
        return self._shards[-1]["position"] if self._shards else None

    # --- Writing ----------------------------------------------------------------------------------------------

    def write(self, sample: Sample) -> None:
        """Add a row. Do not change it afterwards: it is written together with others."""
        self._check_open()
        self._waiting.append(sample)
        if self._bytes_per_row is None:
            if len(self._waiting) < PROBE_ROWS:
                return
            self.begin(self._waiting)
        self._write_waiting()

    def begin(self, rows: Sequence[Sample]) -> None:
        """Learn columns and the size of a row from first rows, without writing them."""
        if self._bytes_per_row is None and rows:
            self._form.begin(rows)
            with os_errors(self._target.folder), closing(self._form.open(self._target.folder, 0)) as probe:
                probe.add(rows, 0)
                size = max(probe.num_bytes, 1)
            self._bytes_per_row, self._num_wanted = size / len(rows), None

    @property
    def num_wanted(self) -> int:
        """How many rows are best given to `write_block` next."""
        if self._num_wanted is None:
            number = len(self._shards)
            shard = self._making.get(number)
            done = (0, 0) if shard is None else (shard.num_rows, shard.num_bytes)
            self._num_wanted = self._sizes.next_block(number, *done, self._bytes_per_row or 1)
        return self._num_wanted

    def write_block(self, rows: Block | Sequence[Sample], position: Callable[[], Any] | None = None) -> None:
        """Write rows, at most `num_wanted`; `position` describes where the source stands after them."""
        number = len(self._shards)
        if number == self._sizes.num_shards:
            raise ConfigError(f"there are more rows than num_rows={self._sizes.num_rows}, so shards would not fit")
        shard = self._add(number, rows)
        if shard.num_rows >= PROBE_ROWS:
            self._bytes_per_row = max(shard.num_bytes, 1) / shard.num_rows
        if self.num_wanted == 0:
            self._end_shard(number, None if position is None else position())

    def write_parted(self, numbered: Iterable[tuple[int, Sequence[Sample]]]) -> None:
        """Write all rows to several shards side by side, each to the one whose number comes with it; then `finish`."""
        self._shards, self._num_rows = [], 0  # none is whole before all are: what was begun is written again
        for number, rows in numbered:
            self._add(number, rows)
        for number in sorted(self._making):
            self._end_shard(number, None)

    def _add(self, number: int, rows: Block | Sequence[Sample]) -> ShardBlocks:
        self._check_open()
        with os_errors(self._target.folder):
            if number not in self._making:
                self._making[number] = self._form.open(self._target.folder, number)
            shard = self._making[number]
            before = shard.num_bytes
            shard.add(rows, self._num_rows)
        shard.num_rows += len(rows)
        self._num_rows += len(rows)
        self._num_wanted = None
        if self._settings.on_rows is not None:
            self._settings.on_rows(len(rows), shard.num_bytes - before)
        return shard

    def _write_waiting(self) -> None:
        while self._waiting and len(self._waiting) >= (wanted := self.num_wanted):
            rows, self._waiting = self._waiting[:wanted], self._waiting[wanted:]
            self.write_block(rows)

    def _end_shard(self, number: int, position: Any) -> None:
        shard = self._making[number]
        with os_errors(self._target.folder):
            extra = shard.finish()
        del self._making[number]
        self._num_wanted = None
        files = [_describe_file(self._target.folder / name) for name in shard.names]
        if not self._shards:  # so that a successor knows what the first file belongs to
            self._write_ledger()
        self._target.keep(shard.names)
        about = {"rows": shard.num_rows, "bytes_per_row": self._bytes_per_row, "position": position}
        self._shards.append({"files": files, **about, **extra})
        self._write_ledger()

    def _write_ledger(self) -> None:
        ledger = {
            "version": MANIFEST_VERSION,
            "key": self._key,
            "columns": self._form.state() if self._shards else None,
            "shards": self._shards,
            "has_all": self._has_all,
        }
        self._target.write(LEDGER_NAME, json.dumps(ledger).encode())

    # --- The end ----------------------------------------------------------------------------------------------

    def finish(self) -> WriteStats:
        """Write what is left and publish the dataset; only now can it be read."""
        if self._finished is not None:
            self.abort()
            return self._finished
        self._check_open()
        self.begin(self._waiting)
        self._write_waiting()
        if self._waiting:
            self.write_block(self._waiting)
        self._has_all = True
        for number in sorted(self._making):
            self._end_shard(number, None)
        if self._sizes.num_shards is not None and len(self._shards) != self._sizes.num_shards:
            raise ConfigError(
                f"only {self._num_rows} rows came, not num_rows={self._sizes.num_rows}, so there are"
                f" {len(self._shards)} shards instead of {self._sizes.num_shards}"
            )
        if not self._shards and not self._settings.allows_empty:
            raise EmptyDatasetError(f"there is no row to save to {self._target.shown}")
        beside = self._form.finish(self._target.folder, self._shards)
        files = [file for shard in self._shards for file in shard["files"]]
        files += [_describe_file(self._target.folder / name) for name in beside]
        self._target.keep(beside)
        manifest = {
            "version": MANIFEST_VERSION,
            "key": self._key,
            "num_rows": self._num_rows,
            "shards": [{"files": shard["files"], "rows": shard["rows"]} for shard in self._shards],
            "files": files,
        }
        self._target.publish(json.dumps(manifest, indent=1).encode(), {file["name"] for file in files})
        self._finished = self._stats(self._num_rows, manifest["shards"])
        self.abort()
        return self._finished

    def _stats(self, num_rows: int, shards: Any) -> WriteStats:
        files = [file for shard in shards for file in shard["files"]]
        return WriteStats(
            num_examples=num_rows,
            num_shards=len(shards),
            total_bytes=sum(file["bytes"] for file in files),
            output_paths=[self._target.path_of(file["name"]) for file in files],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        else:
            self.abort()

    def _check_open(self) -> None:
        if self._is_closed or self._finished is not None:
            raise WriterClosedError("this writer has finished: make a new one, with overwrite=True to begin anew")

    def abort(self) -> None:
        """Stop without publishing; finished shards are kept for `resume=True`."""
        if not self._is_closed:
            self._is_closed = True
            with os_errors(self._target.folder), closing(self._target):
                for shard in self._making.values():
                    shard.close()


def create_writer(
    output_path: str | os.PathLike[str],
    format: SaveFormat = "parquet",  # noqa: A002  what users call it
    max_shard_size: int | str = "500MB",
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
    **further: Unpack[FurtherOptions],
) -> DatasetWriter:
    """Make a writer of rows to a folder or a store; the dataset appears when it is finished.

    Args:
        output_path: A folder or a URL. What is there already is refused unless `overwrite` or `resume` says otherwise.
        format, max_shard_size, num_shards, compression, overwrite, **further: See `SaveSettings`.
    """
    settings = SaveSettings(format, max_shard_size, num_shards, compression, overwrite, **further)
    return open_writer(output_path, settings)


def open_writer(output_path: str | os.PathLike[str], settings: SaveSettings) -> DatasetWriter:
    """Make a writer by settings."""
    name, compression = settings.format, settings.compression
    form: ShardFileFormat
    if name == "mds":
        form = MDSSaveFormat(
            compression,
            settings.max_bytes,
            settings.columns,
            drops_extra=settings.drops_extra,
            hashes=settings.hashes,
        )
    elif name == "jsonl":
        form = LinesFormat(compression)
    elif name == "webdataset":
        form = TarSaveFormat(compression)
    else:
        form = ColumnarSaveFormat(name, compression, settings.schema)
    settings.sizes()  # may refuse, too, before anything is opened
    target = open_target(
        output_path,
        settings.storage_options,
        entry=MANIFEST_NAME,
        owns=is_saved_file,
        waits=settings.waits_for_others,
    )
    return DatasetWriter(target, form, settings)


def save_samples(
    open_samples: Callable[[], Samples], output_path: str | os.PathLike[str], settings: SaveSettings
) -> WriteStats:
    """Write all samples, going on after what is written already."""
    with open_writer(output_path, settings) as writer:
        if not writer.has_all:
            learn_from(open_samples, writer)
            write_samples(open_samples, writer)
        return writer.finish()


def learn_from(open_samples: Callable[[], Samples], writer: DatasetWriter) -> None:
    """Show a writer that begins the first samples, which are then read again."""
    if writer.position is None:
        with closing(open_samples()) as first:
            writer.begin(first.take(PROBE_ROWS))


def _describe_file(path: Path) -> dict[str, Any]:
    """Return name, size and digest of a finished file."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            hasher.update(chunk)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": hasher.hexdigest()}
