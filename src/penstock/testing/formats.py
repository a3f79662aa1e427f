"""What every shard format must do, told as tests that a pytest class inherits."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.errors import (
    BadIndexError,
    BadSampleError,
    MissingColumnError,
    SampleIndexError,
)
from penstock.formats.base import ReadOptions, get_format
from penstock.formats.body import ChunkPool
from penstock.index.catalog import parse_index
from penstock.index.model import FileInfo, Index, IndexedShard, Part, ShardLayout
from penstock.index.mosaic_json import dump_index
from penstock.testing.reading import ReadingContract, raises
from penstock.testing.reading import is_same as is_same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.formats.base import ShardBuilder, ShardBytes, ShardFormat, ShardReader
    from penstock.types import Sample


class FormatContract(ReadingContract):
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
    columns: ClassVar[Mapping[str, str] | None] = None
    settings: ClassVar[Mapping[str, Any]] = {}
    bad_values: ClassVar[Mapping[str, Sequence[Any]]] = {}

    # --- Reading --------------------------------------------------------------------------------------------

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
            likely = (likely_spans and likely_spans(info, numbers)) or []
            assert len(likely) in (0, 1, len(rows)), "a span for each row, or one for all"
            assert all(span.end <= len(data) for span in likely)
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

    def _info(self, sizes: Sequence[int], num_samples: int) -> IndexedShard:
        names = [f"shard{suffix}" for suffix in self._format.part_suffixes]
        parts = tuple(Part(FileInfo(name, size)) for name, size in zip(names, sizes, strict=True))
        return IndexedShard(self._layout, num_samples, parts)

    @contextmanager
    def _undisturbed_builder(self) -> Iterator[ShardBuilder]:
        """Yield a builder that holds the first sample, and assert that it still takes the others as if nothing were."""
        builder = self._builder(self.samples[:1])
        before = (builder.num_samples, builder.num_bytes)
        yield builder
        assert (builder.num_samples, builder.num_bytes) == before
        for sample in self.samples[1:]:
            builder.append(builder.encode(sample))
        assert _joined(builder.build()) == self._parts(self.samples)


def _joined(parts: Sequence[Sequence[Buffer]]) -> list[bytes]:
    return [b"".join(pieces) for pieces in parts]
