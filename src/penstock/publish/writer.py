"""`MDSWriter` and its sisters: samples in, one after the other, a published dataset out."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from penstock.codecs.compress import parse_compression
from penstock.codecs.digest import check_hashes
from penstock.errors import (
    BadIndexError,
    BadSampleError,
    ColumnTypeError,
    ConfigError,
    ExtraColumnError,
    ObjectNotFoundError,
    OutputExistsError,
    WriterClosedError,
)
from penstock.files import os_errors, sweep
from penstock.formats.base import get_format
from penstock.formats.body import ChunkPool
from penstock.index.catalog import parse_index
from penstock.index.model import Index, ShardLayout
from penstock.index.mosaic_json import dump_index, dump_layout
from penstock.index.paths import INDEX_NAME, resolve_inside
from penstock.interrupts import WaitingFor, cut_short
from penstock.publish.shard_queue import PendingShard, ShardQueue
from penstock.publish.sizes import (
    DEFAULT_SIZE_LIMIT,
    check_size_limit,
    hand_over_at,
    is_full,
    is_shard_file,
    next_number,
    renumbered,
    shard_name,
)
from penstock.publish.target import open_files
from penstock.status_line import ProgressBar
from penstock.storage.local import LocalStore
from penstock.storage.retry import RetryPolicy
from penstock.units import check_mapping, checks_making

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from typing_extensions import Self

    from penstock.formats.base import ShardBuilder
    from penstock.publish.target import FilesTarget
    from penstock.storage.base import Store
    from penstock.types import Sample

    Location = str | PathLike[str]

log = logging.getLogger("penstock.publish")


@checks_making
class Writer:
    """Writes samples to shards of one format and, at the end, their index.

        with MDSWriter(out="data/train", columns={"id": "int", "text": "str"}, compression="zstd") as writer:
            writer.write({"id": 0, "text": "the first sample"})

    Readers see the whole dataset or none of it, because the index is written last. If an exception leaves the `with`
    block, no index is published. A few threads compress, hash, write and upload in the background; the bytes and their
    order do not depend on them. Use a writer from one thread only.

    Args:
        out: A local path, a URL (files then go to a temporary folder first), or a pair of both.
        columns: The encoding of each column; other keys of a sample are left out. By default columns are taken from the
            first sample, and a sample with other keys is refused.
        keep_local: With a pair `out=(local, remote)`: keep the local files.
        compression: `"zstd"`, `"zstd:7"`, or another codec, with or without a level.
        hashes: Names of digests to record for each file.
        size_limit: Bytes per shard before compression, also like `"64mb"`; None or 0 writes a single shard.
        remote: A URL to which files are uploaded, too; the local files are kept.
        progress_bar: Show samples, bytes and rates on the terminal.
        max_workers: Number of background threads.
        retry: Tries per upload. With 2 or more, penstock keeps trying for at least two minutes; 1 means a single try.
        exist_ok: Replace the dataset that is already there, which stays until the new one is whole.
        append: Add to the dataset that is already there.
        storage_options: Credentials and settings of the remote store, under the names that fsspec uses.
    """

    format_name: ClassVar[str]
    format_arguments: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        *,
        out: Location | tuple[Location, Location] | list[Location],
        columns: Mapping[str, str] | None = None,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: str | Iterable[str] | None = None,
        size_limit: int | float | str | None = DEFAULT_SIZE_LIMIT,
        remote: Location | None = None,
        progress_bar: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        exist_ok: bool = False,
        append: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        **of_format: Any,
    ) -> None:
        unknown = of_format.keys() - self.format_arguments
        if unknown:
            raise ConfigError(f"{type(self).__name__} has no argument {', '.join(map(repr, sorted(unknown)))}")
        if compression is not None:
            parse_compression(compression)
        if retry < 1:
            raise ConfigError(f"retry={retry} allows no attempt at all: use 1 or more")
        self._format = get_format(self.format_name)
        self._settings: dict[str, Any] = {
            "format": self.format_name,
            "compression": compression,
            "hashes": check_hashes(hashes),
            "size_limit": check_size_limit(size_limit),
            "settings": of_format,
        }
        layout = None if columns is None else self._layout(columns)
        self._pool = ChunkPool(self._settings["size_limit"])
        self._queue = ShardQueue(max_workers)
        self._builder: ShardBuilder | None = None
        self._pending: list[bytes] = []  # samples that the builder has not got yet
        self._shard_bytes = self._hand_over_at = self._overhead = 0  # of the shard that is being built
        self._has_inferred = False
        self._takes_extra = columns is not None
        self._is_closed = False
        self._done_bytes = 0
        self._target = open_files(
            out, remote, keep_local=keep_local, storage_options=storage_options, retry=RetryPolicy(attempts=retry)
        )
        try:
            found = find_present(self._target, exist_ok=exist_ok, append=append)
            self._old, self._replaced = (Index(()), found) if exist_ok else (found, Index(()))
            self._num_handed_over = self._old.num_samples
            self._is_renumbered = bool(self._replaced.shards) and self._target.store is None  # once these are gone
            self._next_shard = next_number(found) + (100_000 if self._is_renumbered else 0)
            self._continue(layout)
        except KeyboardInterrupt as interrupt:
            self._close()
            raise cut_short(interrupt) from None
        except BaseException:
            self._close()
            raise
        self._progress = ProgressBar(self._target.shown) if progress_bar else None

    def write(self, sample: Sample) -> None:
        """Add a sample; you may change or reuse it afterwards.

        If a sample does not fit, the error names its column, and you can continue with the next sample. A failure in
        the background, such as a full disk, is raised by the next call.
        """
        builder = self._builder
        if builder is None:
            builder = self._begin_with(sample)
        if self._queue.has_failed:
            self._queue.raise_failure()
        try:
            record = builder.encode(sample)
            if len(sample) != self._num_columns:
                self._check_extra(sample)
            num_bytes = self._shard_bytes + len(record) + self._overhead
            if num_bytes > self._hand_over_at:
                self._add(builder, record)
            else:  # a step of Python less for each sample: the builder gets many at a time
                self._pending.append(record)
                self._shard_bytes = num_bytes
        except BadSampleError as error:
            raise self._with_number(error) from error
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None
        if self._progress is not None:
            self._progress.update(self._num_samples, self._done_bytes + self._shard_bytes)

    def get_config(self) -> dict[str, Any]:
        """Return the settings that each shard of the index repeats: format, columns, compression, digests and so on."""
        if not hasattr(self, "_shard_layout"):
            raise ConfigError(
                "columns are inferred from the first sample, and no sample has been written yet: pass columns="
            )
        return dump_layout(self._shard_layout)

    def finish(self) -> None:
        """Write what is left and publish the index. The writer is closed afterwards, whatever happens."""
        if self._is_closed:
            return
        try:
            if self._builder is not None and (self._pending or self._builder.num_samples):
                self._submit(self._builder)
            with self._waiting():
                index = Index((*self._old.shards, *self._queue.results()))
            self._target.publish(dump_index(index))
            if self._progress is not None:
                self._progress.update(self._num_samples, self._done_bytes)
                self._progress.close()
        except KeyboardInterrupt as interrupt:
            self._target.stop()  # else closing would wait for uploads that are not wanted any more
            log.warning(self._describe_orphans())
            raise cut_short(interrupt) from None
        except BaseException:
            log.warning(self._describe_orphans())
            raise
        else:
            if self._replaced.shards:
                remove_others(self._target, index, self._replaced)
            if self._is_renumbered:
                index = renumber(self._target, index)
                self._target.publish(dump_index(index))
                remove_others(self._target, index)
        finally:
            self._close()

    def abort(self) -> str:
        """Stop without publishing an index, and return which shards were written so far; the log says so too."""
        if self._is_closed:
            return ""
        self._queue.close()
        orphans = self._describe_orphans()
        log.warning(orphans)
        self._close()
        return orphans

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
            return
        if isinstance(error, KeyboardInterrupt):
            self._target.stop()
        orphans = self.abort()
        if orphans and sys.version_info >= (3, 11):
            error.add_note(orphans)

    def _layout(self, columns: Mapping[str, str]) -> ShardLayout:
        check_mapping("columns", columns)
        if not columns:
            raise ConfigError("columns is empty: name at least one column")
        for name, encoding in columns.items():
            if not isinstance(name, str) or not isinstance(encoding, str):
                raise ConfigError(f"columns maps {name!r} to {encoding!r}, but both must be strings")
        return ShardLayout(columns=self._format.columns(columns), **self._settings)

    def _continue(self, layout: ShardLayout | None) -> None:
        """Begin with the columns that the user named or, appending, with those that are there."""
        if self._old.shards:
            old = self._old.shards[-1].layout
            layout = layout or self._layout({column.name: column.encoding for column in old.columns})
            if (old.format, old.columns) != (layout.format, layout.columns):
                raise ConfigError(
                    f"you are appending {layout.format} shards of {_describe(layout)} to a dataset of {old.format}"
                    f" shards of {_describe(old)}: use the same format and columns"
                )
        if layout is not None:
            self._next_builder(layout)

    def _begin_with(self, sample: Sample) -> ShardBuilder:
        if self._is_closed:
            raise WriterClosedError(
                "this writer has finished: make a new one, with append=True to continue the dataset"
            )
        try:
            columns = self._format.infer(sample) if isinstance(sample, dict) else {}
        except BadSampleError as error:
            raise self._with_number(error) from error
        if not columns:
            raise self._with_number(ColumnTypeError(f"a sample must be a dict of columns, got {sample!r:.100}"))
        self._has_inferred = True
        return self._next_builder(self._layout(columns))

    def _check_extra(self, sample: Sample) -> None:
        """Refuse what was not to be left out: columns that the first sample, or the dataset, has not."""
        if self._takes_extra:
            return
        extra = [name for name in sample if name not in {column.name for column in self._shard_layout.columns}]
        raise ExtraColumnError(
            f"column {extra[0]!r} is not in the samples before this one: pass columns=... with the columns that"
            " you want, and penstock leaves out all others",
            column=extra[0],
        )

    @property
    def _num_samples(self) -> int:
        return self._num_handed_over + len(self._pending)

    def _next_builder(self, layout: ShardLayout) -> ShardBuilder:
        self._shard_layout, self._size_limit, self._num_columns = layout, layout.size_limit, len(layout.columns)
        builder = self._format.builder(layout, self._pool)
        self._overhead = builder.sample_overhead
        self._shard_bytes = builder.num_bytes
        self._hand_over_at = hand_over_at(self._shard_bytes, self._size_limit)
        self._builder = builder
        return builder

    def _add(self, builder: ShardBuilder, record: bytes) -> None:
        """Add a sample that may begin a new shard, or be too large for any."""
        cost = len(record) + self._overhead
        if is_full(self._shard_bytes, cost, self._size_limit):
            self._submit(builder)
            builder = self._next_builder(self._shard_layout)
        self._hand_over(builder)
        builder.append(record)
        self._num_handed_over += 1
        self._shard_bytes += cost
        self._hand_over_at = hand_over_at(self._shard_bytes, self._size_limit)

    def _hand_over(self, builder: ShardBuilder) -> None:
        builder.extend(self._pending)
        self._num_handed_over += len(self._pending)
        self._pending.clear()

    def _submit(self, builder: ShardBuilder) -> None:
        self._hand_over(builder)
        name = shard_name(self._next_shard, self.format_name)
        names = tuple(name + suffix for suffix in self._format.part_suffixes)
        with self._waiting():
            self._queue.submit(
                PendingShard(builder=builder, layout=self._shard_layout, names=names, target=self._target)
            )
        self._next_shard += 1
        self._done_bytes += self._shard_bytes

    def _with_number(self, error: BadSampleError) -> BadSampleError:
        hint = ""
        if self._has_inferred:
            hint = f" (columns were inferred from the first sample: {_describe(self._shard_layout)})"
        number = self._num_samples
        return type(error)(f"sample {number}: {error.message}{hint}", sample=number, **error.facts)

    def _describe_orphans(self) -> str:
        names = [shard.name for shard in self._queue.written()]
        written = f"shards written: {', '.join(names)}" if names else "no shards were written"
        return f"{self._target.shown}: no index was published; {written}"

    def _waiting(self) -> WaitingFor:
        return WaitingFor(f"shards to be uploaded to {self._target.shown}")

    def _close(self) -> None:
        self._is_closed = True
        self._builder = None
        self._queue.close()
        self._target.close()


def _describe(layout: ShardLayout) -> str:
    return ", ".join(f"{column.name}: {column.encoding}" for column in layout.columns)


# --- One for each format ------------------------------------------------------------------------------------------

_Kind = TypeVar("_Kind", bound="type[Writer]")


def _with_arguments(kind: _Kind) -> _Kind:
    """Have `help()` of a writer show the arguments, which are the same for all of them."""
    if kind.__doc__ and Writer.__doc__:  # python -OO keeps no docstrings
        heading = "\n\n    Args:\n"
        words, _, own = kind.__doc__.partition(heading)
        kind.__doc__ = words.rstrip() + heading + own.rstrip(" ") + Writer.__doc__.partition(heading)[2]
    return kind


@_with_arguments
class MDSWriter(Writer):
    """Writes MDS shards: binary rows with columns of any type.

        with MDSWriter(out="data/train", columns={"id": "int", "tokens": "ndarray:int32"}) as writer:
            writer.write({"id": 0, "tokens": np.arange(8, dtype=np.int32)})

    The index is written when the `with` block ends; without it, the shards cannot be read.
    """

    format_name = "mds"


class _TextWriter(Writer):
    format_arguments = frozenset({"newline"})

    def __init__(self, *, newline: str = "\n", **options: Any) -> None:
        if not newline:
            raise ConfigError("newline is empty, so lines would run together: pass at least one character")
        super().__init__(newline=newline, **options)


@_with_arguments
class JSONWriter(_TextWriter):
    """Writes JSON shards: one JSON object per line, with `str`, `int` and `float` columns.

    Args:
        newline: What ends a line.
    """

    format_name = "json"


@_with_arguments
class CSVWriter(_TextWriter):
    """Writes CSV shards: values separated by commas, without quoting, so no value may contain a comma.

    Args:
        newline: What ends a line.
    """

    format_name = "csv"


@_with_arguments
class TSVWriter(_TextWriter):
    """Writes TSV shards: values separated by tabs, without quoting, so no value may contain a tab.

    Args:
        newline: What ends a line.
    """

    format_name = "tsv"


@_with_arguments
@checks_making
class XSVWriter(_TextWriter):
    """Writes XSV shards: values with a separator of your choice between them, which no value may contain.

    Args:
        separator: What stands between the values of a line.
        newline: What ends a line.
    """

    format_name = "xsv"
    format_arguments = frozenset({"newline", "separator"})

    def __init__(self, *, separator: str, **options: Any) -> None:
        if not separator:
            raise ConfigError("separator is empty, so values would run together: pass at least one character")
        super().__init__(separator=separator, **options)


# --- The dataset that is there: continued, or replaced once the new one is whole ------------------------------------


def find_present(target: FilesTarget, *, exist_ok: bool, append: bool) -> Index:
    """Return the index to continue or, later, to replace; what writers that were killed left is removed."""
    if exist_ok and append:
        raise ConfigError("exist_ok=True replaces a dataset and append=True continues it: choose one of them")
    with os_errors(target.folder):
        index = Index(())
        if append or exist_ok:
            sweep(target.folder)
            found = [_read_index(place, target, may_be_bad=exist_ok) for place in target.places]
            known = [each for each in found if each is not None]
            if append and any(each != known[0] for each in known):
                raise ConfigError(
                    f"{target.folder} and {target.shown} hold different datasets: make them equal before you append to"
                    " both"
                )
            index = Index(tuple(shard for each in (known[:1] if append else known) for shard in each.shards))
            if index.shards or exist_ok:
                remove_others(target, index)
        elif target.is_taken:
            is_local = target.folder.is_dir() and any(target.folder.iterdir())
            place = str(target.folder) if is_local else target.shown
            raise OutputExistsError(
                f"Directory is not empty: {place}. Pass exist_ok=True to replace the dataset in it, or append=True to"
                " continue it",
                path=place,
            )
        target.folder.mkdir(parents=True, exist_ok=True)
        return index


def remove_others(target: FilesTarget, index: Index, replaced: Index | None = None) -> None:
    """Remove shards that an index does not name, and those that it replaces; other files are not ours to touch."""
    kept = set(_files(index))
    for place in target.places:
        names = {info.key for info in place.list("shard.") if is_shard_file(info.key)}
        for name in names.union(_files(replaced or Index(()))) - kept:
            if isinstance(place, LocalStore):
                resolve_inside(place.root, name)
            with suppress(ObjectNotFoundError):  # of a compressed file, only one form is stored
                place.delete(name)


def renumber(target: FilesTarget, index: Index) -> Index:
    """Link the shards of a local folder to second names, numbered from 0 on; return the index that says so."""
    numbered = renumbered(index)
    with suppress(OSError):  # a disk without links, or more shards than there are numbers before these
        for name, new in dict(zip(_files(index), _files(numbered), strict=True)).items():
            with suppress(FileNotFoundError):  # of a compressed file, only one form is stored
                (target.folder / new).hardlink_to(target.folder / name)
        return numbered
    return index


def _read_index(place: Store, target: FilesTarget, *, may_be_bad: bool) -> Index | None:
    where = target.folder if isinstance(place, LocalStore) else target.shown
    try:
        return parse_index(place.read(INDEX_NAME), f"{where}/{INDEX_NAME}")
    except ObjectNotFoundError:
        return None
    except BadIndexError:
        if may_be_bad:  # it shall be replaced
            return None
        raise


def _files(index: Index) -> list[str]:
    return [file.basename for shard in index.shards for part in shard.parts for file in (part.raw, part.stored)]
