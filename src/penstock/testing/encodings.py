"""What every column encoding must do, told as tests that a pytest class inherits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import BadSampleError, ColumnSizeError, CorruptShardError
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.body import ChunkPool
from penstock.formats.encodings.table import get_encoding
from penstock.index.model import FileInfo, IndexedShard, Part, ShardLayout
from penstock.testing.reading import is_same, raises

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.formats.base import ShardReader
    from penstock.formats.encodings.base import Encoding


class EncodingContract:
    """The tests of a column encoding. A plug-in's own tests inherit them, under a name that pytest collects:

        class TestPoint(EncodingContract):
            encoding = "point"
            values = [(0.0, 1.0), (2.5, -1.0)]
            bad_values = ["x", (1.0,)]

    Attributes:
        encoding: The registered name, with settings after a colon if it takes some.
        values: Values that come back unchanged, types included; at least two, none of them `bytes`.
        bad_values: Values that it must refuse.
        read_options: Settings for reading, such as `allow_unsafe_types`.
    """

    encoding: ClassVar[str]
    values: ClassVar[Sequence[Any]]
    bad_values: ClassVar[Sequence[Any]] = [object()]
    read_options: ClassVar[Mapping[str, Any]] = {}

    def same(self, found: Any, stored: Any) -> bool:
        """Return whether a value that was read is the one that was stored."""
        return is_same(found, stored)

    def test_values_come_back(self) -> None:
        """Each is stored as bytes, of the size that was promised, and comes back from them."""
        encoding = self._encoding
        for value in self.values:
            data = encoding.encode(value)
            assert type(data) is bytes
            assert encoding.num_bytes in (None, len(data))
            assert encoding.encode(value) == data
            assert self.same(encoding.decode(data), value), f"stored {value!r}, found {encoding.decode(data)!r}"

    def test_a_column_of_them_comes_back(self) -> None:
        """Stored between other columns, they are read in any order, as samples and as a column."""
        reader = self._reader(self.values)
        for rows in ([], range(len(self.values)), range(len(self.values) - 1, -1, -1), [0, 0, 1]):
            samples, column = reader.read(rows), reader.read_columns(rows)["x"]
            assert len(samples) == len(column) == len(rows)
            for row, sample, found in zip(rows, samples, column, strict=True):
                value = self.values[row]
                assert (sample["a"], sample["z"]) == (row, str(row))
                assert self.same(sample["x"], value), f"stored {value!r}, found {sample['x']!r}"
                plain = found.item() if type(found) is not type(value) and hasattr(found, "item") else found
                assert self.same(plain, value), f"stored {value!r}, found {found!r} in a column"
        reader.close()

    def test_stored_bytes_are_taken_as_they_are(self) -> None:
        """A value that is bytes already is not encoded again; of a fixed size it must have that size."""
        encoding = self._encoding
        reader = self._reader([encoding.encode(value) for value in self.values])
        for sample, value in zip(reader.read(range(len(self.values))), self.values, strict=True):
            assert self.same(sample["x"], value)
        if encoding.num_bytes is not None:
            for size in {0, encoding.num_bytes - 1, encoding.num_bytes + 1}:
                with raises(ColumnSizeError, "'x'"):
                    self._reader([bytes(size)])

    def test_bad_values_are_refused_by_the_name_of_their_column(self) -> None:
        """The error is one of a bad sample, and the builder goes on."""
        for value in self.bad_values:
            with raises(BadSampleError, "'x'"):
                self._reader([self.values[0], value])

    def test_any_bytes_are_a_value_or_a_corrupt_shard(self) -> None:
        """Bytes that were cut, grown, changed or made up: nothing else than the error that names shard, row, column."""
        for data in self._hostile():
            reader, problem = self._reader([self._encoding.encode(self.values[0]), data], is_stored=True), ""
            try:
                reader.read([0, 1])
            except CorruptShardError as error:
                problem = str(error)
            assert not problem or "row 1: column 'x'" in problem, f"{problem} does not name the row and the column"
            reader.close()

    # --- Tools ----------------------------------------------------------------------------------------------

    @property
    def _encoding(self) -> Encoding:
        return get_encoding(self.encoding, ReadOptions(**self.read_options).image_decoder)

    def _reader(self, values: Sequence[Any], *, is_stored: bool = False) -> ShardReader:
        """Write a shard and open it. Bytes that are stored go past the encoding, which may refuse them."""
        form = get_format("mds")
        layout = self._layout(self.encoding)
        passes_by = is_stored and self._encoding.num_bytes is None
        builder = form.builder(self._layout("bytes") if passes_by else layout, ChunkPool())
        for number, value in enumerate(values):
            builder.append(builder.encode({"a": number, "x": value, "z": str(number)}))
        data = b"".join(builder.build()[0])
        info = IndexedShard(layout, len(values), (Part(FileInfo("shard", len(data))),))
        return form.open([data], info, ReadOptions(**self.read_options))

    def _layout(self, encoding: str) -> ShardLayout:
        return ShardLayout(format="mds", columns=get_format("mds").columns({"a": "int", "x": encoding, "z": "str"}))

    def _hostile(self) -> Iterator[bytes]:
        numbers = random.Random(0)  # noqa: S311
        size = self._encoding.num_bytes
        for value in self.values:
            good = self._encoding.encode(value)
            for _ in range(10):
                changed = bytearray(good)
                if changed:
                    changed[numbers.randrange(len(changed))] ^= 1 << numbers.randrange(8)
                yield bytes(changed)
                if size is None:
                    yield good[: numbers.randint(0, len(good))]
                    yield good + numbers.randbytes(numbers.randint(1, 9))
        for _ in range(50):
            yield numbers.randbytes(numbers.randint(0, 40) if size is None else size)
