"""What Parquet and Arrow share: shards are unpacked into files of columns, which NumPy reads."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError, PenstockError
from penstock.formats.columnar.arrow_types import pyarrow
from penstock.formats.columnar.reader import ColumnsReader
from penstock.formats.columnar.types import ColumnType, parse_type
from penstock.formats.columnar.write import CHUNK_BYTES, write_columns
from penstock.formats.files import FileFormat
from penstock.formats.rows import check_projection
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

    from penstock.formats.base import ReadOptions, ShardReader
    from penstock.formats.files import FileBytes
    from penstock.index.model import ShardInfo, ShardLayout

# Fetching bytes between two columns that nobody asked for is cheaper than asking twice.
_LARGEST_GAP = 16 << 10
# A few bytes can stand for any number of equal values: what unpacks to more than this is taken for a trap.
_MOST_UNPACKED_BYTES = 1 << 30
_MOST_TIMES_UNPACKED = 1000


class ColumnarFormat(FileFormat):
    """What formats share whose shards are unpacked into files of columns."""

    raw_version = "columns1"

    def check(self, layout: ShardLayout, options: ReadOptions) -> None:
        """Refuse columns that are not there."""
        check_projection(layout, options)

    def open(self, parts: Sequence[FileBytes], info: ShardInfo, options: ReadOptions) -> ShardReader:
        """Open the file of columns."""
        self.check(info.layout, options)
        [data] = parts
        assert not isinstance(data, memoryview)  # noqa: S101  it is a file of its own
        return ColumnsReader(data, info, options)


def write_shard(
    batches: Iterator[Any], types: Sequence[tuple[str, ColumnType]], info: ShardInfo, out: BinaryIO
) -> None:
    """Write what pyarrow makes of a shard; that it cannot is an error that names the file."""
    write_columns(
        translated(batches, info.name),
        types,
        out,
        name=info.name,
        num_rows=info.num_samples,
        max_bytes=_MOST_UNPACKED_BYTES + _MOST_TIMES_UNPACKED * info.parts[0].stored.num_bytes,
    )
    if info.parts[0].raw.num_bytes > CHUNK_BYTES:
        # It keeps what it had in use at most, in case that it needs as much again.
        pyarrow().default_memory_pool().release_unused()


def translated(batches: Iterator[Any], name: str, part: str = "") -> Iterator[Any]:
    """Turn what pyarrow says of a file, or of a part of it, into errors that name it."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except PenstockError:
            raise
        except MemoryError as error:
            raise corrupt(name, f"cannot be decoded{part}, because memory runs out: {error}") from error
        except Exception as error:  # pyarrow's errors are of many classes
            raise corrupt(name, f"cannot be decoded{part}: {error}") from error
        yield batch


def read_types(info: ShardInfo, columns: tuple[str, ...] | None) -> list[tuple[str, ColumnType]]:
    """Return the types of the columns that are asked for, in their order in the file."""
    with reading_entry(info):
        types = [(name, parse_type(kind, info.name)) for name, kind in info.layout.settings["types"]]
        for name, _ in types:
            name.encode()  # so that pyarrow can look for it
    return [(name, kind) for name, kind in types if columns is None or name in columns]


@contextmanager
def reading_entry(info: ShardInfo) -> Iterator[None]:
    """Understand what an index says of a shard: it may come from others, as the file does."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        if isinstance(error, PenstockError):
            raise
        raise corrupt(info.name, f"has an entry in the index that cannot be read: {error}") from error


def corrupt(name: str, reason: str) -> CorruptShardError:
    """Return what is wrong with a file."""
    return CorruptShardError(f"{name} {reason}", shard=name)


def join_spans(bounds: Iterable[tuple[int, int]], end: int | None, name: str) -> tuple[Span, ...]:
    """Join spans that are near one another; none is longer than the file of this name."""
    joined: list[tuple[int, int]] = []
    for begin, stop in sorted(bounds):
        stop = stop if end is None else min(stop, end)
        if not 0 <= begin <= stop:
            raise corrupt(name, f"has an entry in the index that points outside of it, to byte {begin}")
        if joined and begin <= joined[-1][1] + _LARGEST_GAP:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((begin, stop))
    return tuple(Span(begin, stop) for begin, stop in joined)
