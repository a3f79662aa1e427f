"""What Parquet and Arrow share: shards are unpacked into files of columns, which NumPy reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptShardError, PenstockError
from penstock.formats.columnar.arrow_types import pyarrow
from penstock.formats.columnar.reader import ColumnsReader
from penstock.formats.columnar.types import ColumnType, parse_type
from penstock.formats.columnar.write import write_columns
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
        _translated(batches, info.name),
        types,
        out,
        name=info.name,
        num_rows=info.num_samples,
        max_bytes=(1 << 30) + 1000 * info.parts[0].stored.num_bytes,
    )
    # It keeps what it had in use at most, in case that it needs as much again.
    pyarrow().default_memory_pool().release_unused()


def _translated(batches: Iterator[Any], name: str) -> Iterator[Any]:
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except PenstockError:
            raise
        except MemoryError as error:
            raise corrupt(name, f"cannot be decoded within the memory there is: {error}") from error
        except Exception as error:  # pyarrow's errors are of many classes
            raise corrupt(name, f"cannot be decoded: {error}") from error
        yield batch


def read_types(layout: ShardLayout, columns: tuple[str, ...] | None) -> list[tuple[str, ColumnType]]:
    """Give the types of the columns that are asked for, in their order in the file."""
    types = layout.settings["types"]
    return [(name, parse_type(kind, layout.format)) for name, kind in types if columns is None or name in columns]


def corrupt(name: str, reason: str) -> CorruptShardError:
    """Say what is wrong with a file."""
    return CorruptShardError(f"{name} {reason}", shard=name)


def join_spans(bounds: Iterable[tuple[int, int]], end: int | None) -> tuple[Span, ...]:
    """Join spans that are near one another; none is longer than the file."""
    joined: list[tuple[int, int]] = []
    for begin, stop in sorted(bounds):
        stop = stop if end is None else min(stop, end)
        if joined and begin <= joined[-1][1] + _LARGEST_GAP:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((begin, stop))
    return tuple(Span(begin, stop) for begin, stop in joined)
