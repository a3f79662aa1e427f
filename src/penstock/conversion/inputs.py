"""What people convert, as a source: files of every kind, datasets, tables, iterables, and functions that give some."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_proxied
from penstock.errors import ConfigError, NoReadableFilesError, ObjectNotFoundError
from penstock.index.paths import INDEX_NAME
from penstock.pipeline.config import DatasetConfig
from penstock.pipeline.stages import create_source
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.code_digest import digest_code, name_of
from penstock.sources.shard_info import ShardInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.reading.source import CodeDigest
    from penstock.types import Sample

_ROWS_AT_ONCE = 1024
_REPLAYED_ROWS = 4096
_ROWS_OF_SHARD = 1 << 16  # of a table, so that several workers can share it
_ARCHIVES = (".tar", ".tar.gz", ".tgz")


def source_of(
    inputs: Any, file_format: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> ShardedSource:
    """Return what has the rows of anything that can be converted."""
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
    table = _as_table(inputs)
    if table is not None:
        return table
    if isinstance(inputs, Iterable) and not isinstance(inputs, bytes | dict):
        return FunctionsSource([_Replayed(inputs) if iter(inputs) is inputs else inputs.__iter__], fingerprint=None)
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
        return create_source(DatasetConfig(data_files=names, type=file_format), options)  # type: ignore[arg-type]
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


# --- Tables ---


def _as_table(inputs: Any) -> TableSource | None:
    """Return the rows of a table of a library of the field; None: it is none."""
    home = type(inputs).__module__.partition(".")[0]
    if home == "datasets" and hasattr(inputs, "column_names") and hasattr(inputs, "__len__"):
        return TableSource(inputs, len(inputs), _columns_of_hf, f"hf-{inputs._fingerprint}")
    if home == "pandas":
        import pyarrow as pa

        inputs, home = pa.Table.from_pandas(inputs, preserve_index=False), "pyarrow"
    elif home == "polars":
        inputs, home = inputs.lazy().collect().to_arrow(), "pyarrow"
    if home == "pyarrow" and hasattr(inputs, "to_table"):
        inputs = inputs.to_table()  # a pyarrow.dataset
    if home == "pyarrow" and hasattr(inputs, "read_all"):
        inputs = inputs.read_all()  # a RecordBatchReader, such as DuckDB gives
    if home == "pyarrow" and hasattr(inputs, "num_rows"):
        return TableSource(inputs, inputs.num_rows, _columns_of_arrow, f"arrow-{_digest_of(inputs)}")
    return None


def _columns_of_hf(dataset: Any, begin: int, end: int) -> list[Sample]:
    columns = dataset[begin:end]
    names = list(columns)
    return [{name: columns[name][row] for name in names} for row in range(end - begin)]


def _columns_of_arrow(table: Any, begin: int, end: int) -> list[Sample]:
    rows: list[Sample] = table.slice(begin, end - begin).to_pylist()
    return rows


def _digest_of(table: Any) -> str:
    """Hash the schema and the values of a table."""
    hasher = hashlib.blake2b(str(table.schema).encode(), digest_size=16)
    import pyarrow as pa

    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(_ROWS_OF_SHARD)
    for batch in batches:
        hasher.update(batch.serialize())
    return hasher.hexdigest()


class TableSource(ShardedSource):
    """A table in memory, or of a library that reads rows by number: some of its rows at a time are a shard."""

    makes_new_samples = True

    def __init__(
        self, table: Any, num_rows: int, read: Callable[[Any, int, int], list[Sample]], fingerprint: str
    ) -> None:
        self._table, self._num_rows, self._read, self._told = table, num_rows, read, fingerprint

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards: where each begins."""
        return [f"rows:{begin}" for begin in range(0, max(1, self._num_rows), _ROWS_OF_SHARD)]

    @property
    def fingerprint(self) -> str:
        """A hash of the table."""
        return self._told

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the number of rows of a shard."""
        number = self.shard_number(shard_name)
        return ShardInfo(number, shard_name, min(_ROWS_OF_SHARD, self._num_rows - number * _ROWS_OF_SHARD))

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        first = self.shard_number(shard_name) * _ROWS_OF_SHARD
        end = min(first + _ROWS_OF_SHARD, self._num_rows)
        for begin in range(first + row, end, _ROWS_AT_ONCE):
            yield self._read(self._table, begin, min(begin + _ROWS_AT_ONCE, end))


# --- Functions ---


class FunctionsSource(ShardedSource):
    """Functions of which each returns an iterable of samples: a shard each. They are called where a task is run."""

    def __init__(
        self, functions: Sequence[Callable[[], Iterable[Sample]]], fingerprint: str | None = "functions"
    ) -> None:
        self._functions, self._told = functions, fingerprint

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, by the numbers of the functions."""
        return [f"function:{number}" for number in range(len(self._functions))]

    @property
    def order_fingerprint(self) -> str | None:
        """The number of functions; their code is in `code_digests`."""
        return None if self._told is None else f"{self._told}-{len(self._functions)}"

    @cached_property
    def code_digests(self) -> list[CodeDigest]:
        """The functions."""
        functions = () if self._told is None else self._functions
        return [digest_code(name_of(each), each, has_settings=False) for each in functions]

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:
        """Call a function, and pass over so many of its samples."""
        return islice(self._functions[self.shard_number(shard_name)](), row, None)


class _Replayed:
    """An iterator whose first samples can be read again, to learn columns from them; the others only once."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self._samples, self._first, self._is_over = samples, [], False  # type: ignore[var-annotated]

    def __call__(self) -> Iterator[Sample]:
        if self._is_over:
            raise ConfigError("an iterator can be read only once: pass a function that returns a new one, or a list")
        yield from self._first
        for sample in self._samples:
            if len(self._first) < _REPLAYED_ROWS:
                self._first.append(sample)
            else:
                self._is_over = True
            yield sample
