"""Tables, iterables and functions that give samples, as sources."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ResumeError
from penstock.sources.base import ShardedSource
from penstock.sources.code_digest import digest_code, name_of
from penstock.sources.shard_info import ShardInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.publish.engines import Done
    from penstock.reading.source import CodeDigest
    from penstock.types import Sample

_ROWS_AT_ONCE = 1024
_REPLAYED_ROWS = 4096
_ROWS_OF_SHARD = 1 << 16  # of a table, so that several workers can share it
_BYTES_OF_SHARD = 32 << 20  # and of rows whose bytes are known, such as images
_FEWEST_SHARDS = 64  # of which tasks are made


# --- Tables ---


def from_table(table: Any) -> ShardedSource:
    """Return the rows of a table of pandas, Polars or pyarrow, or of a `datasets.Dataset`, as a source."""
    made = as_table(table)
    if made is None:
        raise ConfigError(
            f"{type(table).__name__} is no table: pass one of pandas, Polars or pyarrow; a list, to MemoryShardedSource"
        )
    return made


def as_table(inputs: Any) -> TableSource | None:
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
        return TableSource(inputs, inputs.num_rows, _columns_of_arrow, f"arrow-{digest_of(inputs)}")
    return None


def _columns_of_hf(dataset: Any, begin: int, end: int) -> list[Sample]:
    columns = dataset[begin:end]
    names = list(columns)
    return [{name: columns[name][row] for name in names} for row in range(end - begin)]


def _columns_of_arrow(table: Any, begin: int, end: int) -> list[Sample]:
    rows: list[Sample] = table.slice(begin, end - begin).to_pylist()
    return rows


def digest_of(table: Any) -> str:
    """Hash the schema and the values of a table."""
    hasher = hashlib.blake2b(str(table.schema).encode(), digest_size=16)
    import pyarrow as pa

    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(_ROWS_OF_SHARD)
    for batch in batches:
        hasher.update(batch.serialize())
    return hasher.hexdigest()


class TableSource(ShardedSource):
    """A table in memory, or of a library that reads rows by number: some of its rows at a time are a shard.

    Args:
        table: The table.
        num_rows: How many rows it has.
        read: Called with the table and two row numbers; returns the rows from the first to before the second.
        fingerprint: A word that changes with the rows.
        num_bytes: What becomes of all rows takes about so many bytes; None: they are small.
    """

    makes_new_samples = True

    def __init__(
        self,
        table: Any,
        num_rows: int,
        read: Callable[[Any, int, int], list[Sample]],
        fingerprint: str,
        num_bytes: int | None = None,
    ) -> None:
        self._table, self._num_rows, self._read, self._told = table, num_rows, read, fingerprint
        self._row_bytes = None if num_bytes is None else max(1, num_bytes // max(1, num_rows))
        self._rows_of_shard = _ROWS_OF_SHARD
        if self._row_bytes is not None:
            self._rows_of_shard = max(1, min(_BYTES_OF_SHARD // self._row_bytes, num_rows // _FEWEST_SHARDS))

    @cached_property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards: where each begins."""
        return [f"rows:{begin}" for begin in range(0, max(1, self._num_rows), self._rows_of_shard)]

    @property
    def fingerprint(self) -> str:
        """A hash of the table."""
        return self._told

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the number of rows of a shard."""
        number = self.shard_number(shard_name)
        num_rows = min(self._rows_of_shard, self._num_rows - number * self._rows_of_shard)
        return ShardInfo(number, shard_name, num_rows, None if self._row_bytes is None else num_rows * self._row_bytes)

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        first = self.shard_number(shard_name) * self._rows_of_shard
        end = min(first + self._rows_of_shard, self._num_rows)
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


# --- Rows that an engine has ---


_at_hand: ContextVar[Callable[[], Iterator[Any]] | None] = ContextVar("_at_hand", default=None)


def hand_over(task: Callable[[int], Done], number: int, rows: Iterable[Any]) -> Done:
    """Run a task that reads these rows."""
    before = _at_hand.set(Replayed(iter(rows)))
    try:
        return task(number)
    finally:
        _at_hand.reset(before)


class HandedRows(ShardedSource):
    """Rows that lie with an engine, which hands them to the task that it runs: they can be read there, and once.

    Args:
        num_shards: How many tasks there will be.
        fingerprint: A word that changes with the rows.
        first: Returns first rows, to learn columns from where the conversion is planned.
    """

    makes_new_samples = True

    def __init__(self, num_shards: int, fingerprint: str, first: Callable[[], Iterable[Any]] | None) -> None:
        self._num_shards, self._fingerprint, self._first = num_shards, fingerprint, first

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, by their numbers."""
        return [f"partition:{number}" for number in range(self._num_shards)]

    @property
    def fingerprint(self) -> str:
        """That of the rows."""
        return self._fingerprint

    def samples_of(self, rows: Iterable[Any]) -> Iterator[Sample]:
        """Make samples of rows."""
        return iter(rows)

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:  # noqa: ARG002
        """Read the rows at hand, from the first one: they may come in another order when they are made again."""
        read = _at_hand.get()
        if read is None and self._first is not None:
            return self.samples_of(islice(self._first(), row, None))
        if read is None:
            raise ConfigError("these rows are with the engine that has them: convert with that")
        if row:
            raise ResumeError("rows of an engine may come in another order: the task begins anew")
        return self.samples_of(read())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": None}


class Replayed:
    """An iterator whose first samples can be read again, to learn columns from them; the others only once."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self._samples, self._first, self._is_over = samples, [], False  # type: ignore[var-annotated]

    def __call__(self) -> Iterator[Sample]:
        """Yield all samples; only once if there are many."""
        if self._is_over:
            raise ConfigError("an iterator can be read only once: pass a function that returns a new one, or a list")
        yield from self._first
        for sample in self._samples:
            if len(self._first) < _REPLAYED_ROWS:
                self._first.append(sample)
            else:
                self._is_over = True
            yield sample
