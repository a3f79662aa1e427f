"""What every shard format must do, told as tests that a pytest class inherits."""

from __future__ import annotations

import math
import mmap
import random
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.errors import (
    BadIndexError,
    BadSampleError,
    ConfigError,
    CorruptShardError,
    MissingColumnError,
    SampleIndexError,
)
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.body import ChunkPool
from penstock.index.catalog import parse_index
from penstock.index.model import FileInfo, Index, Part, ShardInfo, ShardLayout
from penstock.index.mosaic_json import dump_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.formats.base import ShardBuilder, ShardBytes, ShardFormat, ShardReader
    from penstock.types import Columns, Sample


class FormatContract:
    """The tests of a shard format. A plug-in's own tests inherit them, under a name that pytest collects:

        class TestMyFormat(FormatContract):
            format_name = "mine"
            samples = [{"id": 1, "text": "one"}, {"id": 2, "text": ""}, {"id": 3, "text": "three"}]

    The format is looked up by its registered name. Samples are at least three, no two of them alike, with the same
    columns. What else can be set:

    Attributes:
        format_name: The name of the format, as an index has it.
        samples: Samples that the format stores and gives back unchanged, types included.
        columns: Encoding of each column; inferred from the first sample if left out.
        settings: The layout's settings, such as `newline`.
        bad_values: For columns that take anything, or for more cases: values of the wrong type. A column without
            an entry is tried with a bare `object()`; one with an empty list is not tried.
        read_options: Settings for reading, such as `allow_unsafe_types`.
        same: How to compare a value that was read with the one that was stored, if equality will not do.
    """

    format_name: ClassVar[str]
    samples: ClassVar[Sequence[Sample]]
    columns: ClassVar[Mapping[str, str] | None] = None
    settings: ClassVar[Mapping[str, Any]] = {}
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {}
    read_options: ClassVar[Mapping[str, Any]] = {}

    def same(self, found: Any, stored: Any) -> bool:
        """Tell whether a value that was read is the one that was stored."""
        return is_same(found, stored)

    # --- Reading --------------------------------------------------------------------------------------------

    def test_samples_are_what_the_contract_needs(self) -> None:
        """Three samples at least, all of the same columns, no two alike."""
        assert len(self.samples) >= 3
        assert all(sample.keys() == self.samples[0].keys() for sample in self.samples)
        for number, sample in enumerate(self.samples):
            assert not any(self._same_sample(sample, other) for other in self.samples[:number])

    def test_samples_come_back(self) -> None:
        """All samples, in order."""
        with self._opened(self.samples) as reader:
            assert len(reader) == len(self.samples)
            self._check(reader.read(range(len(self.samples))), self.samples)

    def test_any_rows_in_any_order(self) -> None:
        """Batches of any size, with repeats, as lists, ranges and arrays."""
        with self._opened(self.samples) as reader:
            for rows in self._batches():
                self._check(reader.read(rows), [self.samples[row] for row in rows])

    def test_columns_agree_with_samples(self) -> None:
        """`read_columns` gives what `read` gives, turned by 90 degrees."""
        with self._opened(self.samples) as reader:
            for rows in self._batches():
                self._check_columns(reader.read_columns(rows), [self.samples[row] for row in rows])

    def test_some_columns_only(self) -> None:
        """Asking for fewer columns gives fewer columns, and the same values."""
        names = list(self.samples[0])
        for wanted in [*((name,) for name in names), tuple(reversed(names)), tuple(names[1:])]:
            expected = [{name: sample[name] for name in wanted} for sample in self.samples]
            rows = range(len(self.samples))
            with self._opened(self.samples, columns=wanted) as reader:
                self._check(reader.read(rows), expected)
                self._check_columns(reader.read_columns(rows), expected)

    def test_a_column_that_is_not_there(self) -> None:
        """Asking for an unknown column is an error before anything is read, and names the column."""
        with raises(ConfigError, "no_such_column"), self._opened(self.samples, columns=("no_such_column",)):
            pass

    def test_no_samples(self) -> None:
        """A shard may hold none."""
        with self._opened([]) as reader:
            assert len(reader) == 0
            assert reader.read([]) == []
            columns = reader.read_columns([])
            assert columns.keys() == self.samples[0].keys()
            assert all(len(values) == 0 for values in columns.values())
            with raises(SampleIndexError):
                reader.read([0])

    def test_rows_out_of_range(self) -> None:
        """A row that is not there is an error, wherever it stands in the batch."""
        num_samples = len(self.samples)
        with self._opened(self.samples) as reader:
            for row in (num_samples, -1, 2**31, 2**32, 2**63, -(2**80)):
                for rows in ([row], [0, row], [row, 0]):
                    with raises(SampleIndexError):
                        reader.read(rows)
                    with raises(SampleIndexError):
                        reader.read_columns(rows)
            self._check(reader.read([0]), self.samples[:1])

    def test_a_wrong_number_of_samples(self) -> None:
        """A shard that holds other than the declared number of samples is corrupt."""
        for num_samples in (0, len(self.samples) - 1, len(self.samples) + 1, 2**32 - 1):
            with raises(CorruptShardError), self._opened(self.samples, num_samples=num_samples):
                pass

    def test_a_few_rows_by_ranges(self) -> None:
        """If rows can be read without their shard, they are the same, also when they are many."""
        ranges, parts = self._format.row_ranges, self._parts(self.samples)
        data, info = parts[0], self._info([len(part) for part in parts], len(self.samples))
        for rows in ([0], [len(self.samples) - 1, 0], list(range(len(self.samples)))):
            if ranges is None:
                break
            numbers = np.array(rows, np.int64)
            found = [data[span.begin : span.end] for span in ranges.spans_to_locate(info, numbers)]
            spans = ranges.spans_of_rows(info, numbers, found)
            likely_spans = getattr(ranges, "likely_spans", None)
            assert likely_spans is None or likely_spans(info, numbers) in (None, spans)
            pieces = [data[span.begin : span.end] for span in spans]
            reader = ranges.open(info, pieces, ReadOptions(**self.read_options))
            self._check(reader.read(range(len(rows))), [self.samples[row] for row in rows])
            reader.close()

    def test_an_index_tells_all_of_a_shard(self) -> None:
        """What an index says of a shard is what is read from it, and a count that cannot be is refused."""
        assert re.fullmatch(r"\w+", self.format_name), "it becomes a part of file names"
        sizes = [len(part) for part in self._parts(self.samples)]
        index = Index((self._info(sizes, len(self.samples)),))
        assert parse_index(dump_index(index), "here") == index
        with raises(BadIndexError):
            parse_index(dump_index(Index((self._info(sizes, 2**32),))), "here")

    def test_values_do_not_point_into_the_shard(self) -> None:
        """Values stay what they are when the shard's memory changes, and closing lets go of it."""
        parts = [_mapped(part) for part in self._parts(self.samples)]
        reader = self._open(parts, len(self.samples))
        rows = range(len(self.samples))
        samples, columns = reader.read(rows), reader.read_columns(rows)
        for part in parts:
            part[:] = b"\xff" * len(part)
        self._check(samples, self.samples)
        self._check_columns(columns, self.samples)
        reader.close()
        for part in parts:
            part.close()  # an error if anything still points into it
        self._check(samples, self.samples)
        self._check_columns(columns, self.samples)

    # --- Building -------------------------------------------------------------------------------------------

    def test_encoding_has_no_memory(self) -> None:
        """The same sample gives the same bytes, whatever came before and whatever else is in it."""
        builder = self._builder()
        first = [builder.encode(sample) for sample in self.samples]
        for encoded in first:
            builder.append(encoded)
        assert [builder.encode(sample) for sample in self.samples] == first
        assert [builder.encode({"zz_extra": object(), **sample}) for sample in self.samples] == first
        assert [builder.encode(dict(reversed(sample.items()))) for sample in self.samples] == first

    def test_sizes_add_up(self) -> None:
        """A sample counts its bytes and the overhead."""
        builder = self._builder()
        assert builder.num_samples == 0
        num_bytes = builder.num_bytes
        for number, sample in enumerate(self.samples):
            encoded = builder.encode(sample)
            assert (builder.num_samples, builder.num_bytes) == (number, num_bytes)
            builder.append(encoded)
            num_bytes += len(encoded) + builder.sample_overhead
            assert (builder.num_samples, builder.num_bytes) == (number + 1, num_bytes)

    def test_a_missing_column(self) -> None:
        """A sample that lacks a column is refused by name, and leaves no trace."""
        with self._undisturbed_builder() as builder:
            for column in self.samples[1]:
                sample = {name: value for name, value in self.samples[1].items() if name != column}
                with raises(MissingColumnError, repr(column)):
                    builder.encode(sample)
            with raises(MissingColumnError):
                builder.encode({})

    def test_a_wrong_type(self) -> None:
        """A value that a column does not take is refused by the column's name, and leaves no trace."""
        with self._undisturbed_builder() as builder:
            for column in self.samples[1]:
                for value in self.bad_values.get(column, [object()]):
                    with raises(BadSampleError, repr(column)):
                        builder.encode(self.samples[1] | {column: value})
            not_a_sample: Any = None
            with raises(BadSampleError):
                builder.encode(not_a_sample)

    def test_memory_is_used_again_only_after_release(self) -> None:
        """Shards that share a pool do not disturb one another, built or not, until one is released."""
        pool = ChunkPool()
        many = [self.samples[number % len(self.samples)] for number in range(50)]
        turned = many[::-1]
        first, second = self._builder(pool=pool), self._builder(pool=pool)
        for one, other in zip(many, turned, strict=True):
            first.append(first.encode(one))
            second.append(second.encode(other))
        built = first.build()
        expected_first, expected_second = self._parts(many), self._parts(turned)
        assert _joined(built) == expected_first
        assert _joined(second.build()) == expected_second
        third = self._builder(turned, pool)
        assert _joined(third.build()) == expected_second
        assert _joined(built) == expected_first
        first.release()
        fourth = self._builder(turned, pool)
        assert _joined(fourth.build()) == expected_second
        assert _joined(second.build()) == expected_second

    def test_columns_can_be_guessed(self) -> None:
        """What is inferred from a sample can store that sample."""
        fmt = self._format
        encodings = fmt.infer(self.samples[0])
        assert encodings.keys() == self.samples[0].keys()
        layout = ShardLayout(format=self.format_name, columns=fmt.columns(encodings), settings=self.settings)
        builder = fmt.builder(layout, ChunkPool())
        builder.append(builder.encode(self.samples[0]))
        assert builder.num_samples == 1

    # --- Tools ----------------------------------------------------------------------------------------------

    @property
    def _format(self) -> ShardFormat:
        return get_format(self.format_name)

    @property
    def _layout(self) -> ShardLayout:
        encodings = self.columns or self._format.infer(self.samples[0])
        return ShardLayout(format=self.format_name, columns=self._format.columns(encodings), settings=self.settings)

    def _builder(self, samples: Sequence[Sample] = (), pool: ChunkPool | None = None) -> ShardBuilder:
        """Begin a shard that holds some samples."""
        builder = self._format.builder(self._layout, pool or ChunkPool())
        for sample in samples:
            builder.append(builder.encode(sample))
        return builder

    def _parts(self, samples: Sequence[Sample]) -> list[bytes]:
        parts = _joined(self._builder(samples).build())
        assert len(parts) == len(self._format.part_suffixes)
        return parts

    def _open(self, parts: Sequence[ShardBytes], num_samples: int, **options: Any) -> ShardReader:
        info = self._info([len(part) for part in parts], num_samples)
        return self._format.open(parts, info, ReadOptions(**{**self.read_options, **options}))

    def _info(self, sizes: Sequence[int], num_samples: int) -> ShardInfo:
        names = [f"shard{suffix}" for suffix in self._format.part_suffixes]
        parts = tuple(Part(FileInfo(name, size)) for name, size in zip(names, sizes, strict=True))
        return ShardInfo(self._layout, num_samples, parts)

    @contextmanager
    def _opened(
        self, samples: Sequence[Sample], num_samples: int | None = None, **options: Any
    ) -> Iterator[ShardReader]:
        reader = self._open(self._parts(samples), len(samples) if num_samples is None else num_samples, **options)
        yield reader
        reader.close()

    def _batches(self) -> Iterator[Any]:
        num_samples = len(self.samples)
        yield []
        yield range(0, num_samples, 2)
        yield range(num_samples - 1, -1, -1)
        yield np.array([num_samples - 1, 0, 0], np.int32)
        yield [0] * 5
        numbers = random.Random(0)  # noqa: S311
        for size in range(1, 20):
            yield [numbers.randrange(num_samples) for _ in range(size)]

    @contextmanager
    def _undisturbed_builder(self) -> Iterator[ShardBuilder]:
        """Give a builder that holds the first sample, and assert that it still takes the others as if nothing were."""
        builder = self._builder(self.samples[:1])
        before = (builder.num_samples, builder.num_bytes)
        yield builder
        assert (builder.num_samples, builder.num_bytes) == before
        for sample in self.samples[1:]:
            builder.append(builder.encode(sample))
        assert _joined(builder.build()) == self._parts(self.samples)

    def _check(self, found: Sequence[Sample], stored: Sequence[Sample]) -> None:
        assert len(found) == len(stored)
        for number, (one, other) in enumerate(zip(found, stored, strict=True)):
            assert self._same_sample(one, other), f"sample {number}: stored {other!r}, found {one!r}"

    def _same_sample(self, found: Sample, stored: Sample) -> bool:
        return found.keys() == stored.keys() and all(self.same(found[name], stored[name]) for name in stored)

    def _check_columns(self, columns: Columns, stored: Sequence[Sample]) -> None:
        names = stored[0].keys() if stored else columns.keys()
        assert columns.keys() == names
        for name in names:
            values = columns[name]
            assert len(values) == len(stored)
            for found, sample in zip(values, stored, strict=True):
                # An array holds the numbers of a column as its own scalars.
                value = sample[name]
                plain = found.item() if isinstance(found, np.generic) and type(found) is not type(value) else found
                assert self.same(plain, value), f"column {name!r}: stored {value!r}, found {found!r}"


def is_same(found: Any, stored: Any) -> bool:
    """Tell whether two values have one type and equal content, down to the sign of a zero."""
    if type(found) is not type(stored):
        return False
    if isinstance(found, (np.ndarray, np.generic)):
        return (found.dtype, found.shape, found.tobytes()) == (stored.dtype, stored.shape, stored.tobytes())
    if isinstance(found, float):
        if math.isnan(stored):
            return math.isnan(found)
        return found == stored and math.copysign(1, found) == math.copysign(1, stored)
    if isinstance(found, dict):
        return found.keys() == stored.keys() and all(is_same(found[key], stored[key]) for key in found)
    if isinstance(found, (list, tuple)):
        return len(found) == len(stored) and all(map(is_same, found, stored))
    return bool(found == stored)


@contextmanager
def raises(kind: type[Exception], mention: str = "") -> Iterator[None]:
    """Assert that the block raises an error of this kind that mentions a word."""
    message = None
    try:
        yield
    except kind as error:
        message = str(error)
    assert message is not None, f"{kind.__name__} was not raised"
    assert mention in message, f"{message} does not mention {mention}"


def _joined(parts: Sequence[Sequence[Buffer]]) -> list[bytes]:
    return [b"".join(pieces) for pieces in parts]


def _mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory
