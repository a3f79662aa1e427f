"""Arrow's record batches → the file of columns that readers open: the same buffers, one after another."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock.arrays_file import ArraysWriter
from penstock.errors import CorruptShardError
from penstock.extras import require
from penstock.formats.columnar.arrow_types import describe_type, is_list, pyarrow
from penstock.formats.columnar.types import COLUMNS_FILE
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    import numpy.typing as npt

    from penstock.formats.columnar.types import ColumnType

T = TypeVar("T")

CHUNK_BYTES = 32 << 20  # of a shard, about, that are in memory at a time


def write_columns(
    batches: Iterable[Any],
    columns: Sequence[tuple[str, ColumnType]],
    out: BinaryIO,
    *,
    name: str,
    num_rows: int,
    max_bytes: int,
) -> None:
    """Write these columns of all batches, which must hold so many rows, in chunks of some size."""
    writer = _ColumnsWriter(out, columns, name)
    chunk_rows: list[int] = []
    for batch in _chunks(batches):
        if sum(chunk_rows) + batch.num_rows > num_rows:
            break
        writer.add(batch, len(chunk_rows))
        chunk_rows.append(batch.num_rows)
        if writer.num_bytes > max_bytes:
            raise CorruptShardError(
                f"{name} unpacks to more than {format_bytes(max_bytes)}, far more than its size suggests",
                shard=name,
            )
    else:
        if sum(chunk_rows) == num_rows:
            writer.finish(chunk_rows)
            return
    raise CorruptShardError(f"{name} does not hold the {num_rows} rows that its footer promises", shard=name)


def join_small(items: Iterable[T], size_of: Callable[[T], int], least_bytes: int) -> Iterator[list[T]]:
    """Join neighbours until they are of some size."""
    together: list[T] = []
    num_bytes = 0
    for item in items:
        together.append(item)
        num_bytes += size_of(item)
        if num_bytes >= least_bytes:
            yield together
            together, num_bytes = [], 0
    if together:
        yield together


def _chunks(batches: Iterable[Any]) -> Iterator[Any]:
    """Join small batches to chunks: readers need a step for each."""
    for together in join_small(batches, attrgetter("nbytes"), CHUNK_BYTES // 2):
        if len(together) == 1:
            yield together[0]
        else:
            yield from pyarrow().Table.from_batches(together).combine_chunks().to_batches()


class _ColumnsWriter:
    """Writes one chunk after another."""

    def __init__(self, out: BinaryIO, columns: Sequence[tuple[str, ColumnType]], name: str) -> None:
        self._arrays = ArraysWriter(out)
        self._columns, self._name = columns, name

    @property
    def num_bytes(self) -> int:
        return self._arrays.num_bytes

    def add(self, batch: Any, chunk: int) -> None:
        for number, (column, kind) in enumerate(self._columns):
            place = batch.schema.get_field_index(column)
            if place < 0:
                raise CorruptShardError(
                    f"{self._name} has no column {column!r}, or several, but the index says that it has one",
                    shard=self._name,
                )
            array = batch.column(place)
            if not _fits(kind, describe_type(array.type, column)):
                raise CorruptShardError(
                    f"{self._name}: column {column!r} has the type {array.type}, but the index says {kind}",
                    shard=self._name,
                )
            self._write(kind, array, f"{chunk}.{number}")

    def finish(self, chunk_rows: list[int]) -> None:
        columns = [[name, kind.to_json()] for name, kind in self._columns]
        self._arrays.finish({"kind": COLUMNS_FILE, "columns": columns, "rows": chunk_rows})

    def _write(self, kind: ColumnType, array: Any, path: str) -> None:
        array = _image_bytes(_plain(array), self._name) if kind.kind == "image" else _plain(array)
        if kind.kind == "null":
            return
        validity, *buffers = array.buffers()
        if array.null_count:
            self._arrays.add(f"{path}.validity", "|u1", _bits(validity, array.offset, len(array)))
        match kind.kind:
            case "bool":
                self._arrays.add(f"{path}.data", "|u1", _bits(buffers[0], array.offset, len(array)))
            case "string" | "binary" | "image":
                begin, end = self._write_offsets(array, path)
                self._arrays.add(f"{path}.data", "|u1", _bytes(buffers[1], begin, end))
            case "list":
                begin, end = self._write_offsets(array, path)
                self._write(kind.child, array.values.slice(begin, end - begin), f"{path}.0")
            case "map":
                begin, end = self._write_offsets(array, path)
                for number, child in enumerate((array.keys, array.items)):
                    self._write(kind.fields[number][1], child.slice(begin, end - begin), f"{path}.{number}")
            case "fixed_list":
                size = kind.settings[0]
                self._write(kind.child, array.values.slice(array.offset * size, len(array) * size), f"{path}.0")
            case "struct":
                for number, (_, field) in enumerate(kind.fields):
                    self._write(field, array.field(number), f"{path}.{number}")
            case "dictionary":
                self._write_dictionary(kind, array, path)
            case _:
                self._write_fixed(kind, array, path)

    def _write_fixed(self, kind: ColumnType, array: Any, path: str) -> None:
        width = array.type.bit_width // 8
        data = _bytes(array.buffers()[1], array.offset * width, (array.offset + len(array)) * width)
        number = {"date": "i", "time": "i", "timestamp": "i", "duration": "i"}.get(kind.kind, kind.kind[0])
        is_number = kind.kind not in ("decimal", "interval", "fixed_binary")
        dtype = np.dtype(f"{number}{width}").newbyteorder("<").str if is_number else "|u1"
        self._arrays.add(f"{path}.data", dtype, data)

    def _write_offsets(self, array: Any, path: str) -> tuple[int, int]:
        """Write them as counted from the first, and give that and the last."""
        width = 8 if str(array.type).startswith("large") else 4
        offsets: npt.NDArray[Any] = np.zeros(1, f"<i{width}")
        if len(array):
            offsets = np.frombuffer(array.buffers()[1], offsets.dtype, len(array) + 1, array.offset * width)
        begin, end = int(offsets[0]), int(offsets[-1])
        self._arrays.add(f"{path}.offsets", offsets.dtype.str, offsets - begin if begin else offsets)
        return begin, end

    def _write_dictionary(self, kind: ColumnType, array: Any, path: str) -> None:
        if len(array.dictionary) > len(array):  # a part of a large one
            array = array.dictionary_decode().dictionary_encode()
        indices, values = array.indices.fill_null(0), array.dictionary
        if not len(values):  # where all rows are null
            values = pyarrow().nulls(1, values.type)
        width = indices.type.bit_width // 8
        begin = indices.offset * width
        dtype = np.dtype(str(indices.type)).newbyteorder("<").str
        self._arrays.add(f"{path}.data", dtype, _bytes(indices.buffers()[1], begin, begin + len(indices) * width))
        self._write(kind.child, values, f"{path}.0")


def _fits(kind: ColumnType, found: ColumnType) -> bool:
    """Return whether an array is of the type that the index says."""
    if kind.kind == "image":
        return found.kind == "struct"
    return (kind.kind, kind.settings, len(kind.fields)) == (found.kind, found.settings, len(found.fields)) and all(
        name == other and _fits(field, other_field)
        for (name, field), (other, other_field) in zip(kind.fields, found.fields, strict=True)
    )


def _plain(array: Any) -> Any:
    """Return the same values in one of the layouts that are written."""
    pa = pyarrow()
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(array.storage)
    if pa.types.is_run_end_encoded(kind):
        return _plain(_compute().run_end_decode(array))
    if str(kind) in ("string_view", "binary_view"):
        return array.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary())
    if is_list(kind) and "view" in str(kind).partition("<")[0]:
        return array.cast(pa.large_list(kind.value_field))
    if pa.types.is_dictionary(kind) and describe_type(kind, "").kind != "dictionary":
        return _plain(array.dictionary_decode())
    return array


def _image_bytes(array: Any, name: str) -> Any:
    """Return the files of images, which have paths as well."""
    children = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    files = _plain(children["bytes"])
    paths = children.get("path")
    if paths is not None and _compute().and_(files.is_null(), paths.is_valid()).true_count:
        raise CorruptShardError(
            f"{name} holds only the paths of its images: write it with their bytes, as push_to_hub does",
            shard=name,
        )
    return files


def _compute() -> Any:
    return require("pyarrow.compute", extra="parquet", purpose="reading Parquet and Arrow files")


def _bytes(buffer: Any, begin: int, end: int) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)[begin:end]


def _bits(buffer: Any, begin: int, count: int) -> npt.NDArray[np.uint8]:
    """Return bits from any one on."""
    data: npt.NDArray[np.uint8] = np.frombuffer(_bytes(buffer, begin // 8, (begin + count + 7) // 8), np.uint8)
    if begin % 8 == 0:
        return data
    return np.packbits(np.unpackbits(data, bitorder="little")[begin % 8 :][:count], bitorder="little")
