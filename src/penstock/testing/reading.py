"""What the readers of every format must do, whether or not the format is written here."""

from __future__ import annotations

import math
import mmap
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.errors import ConfigError, CorruptShardError, SampleIndexError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.formats.base import ShardBytes, ShardReader
    from penstock.types import Columns, Sample


class ReadingContract:
    """Tests of the readers of a format, which a contract fills with shards."""

    samples: ClassVar[Sequence[Sample]]
    read_options: ClassVar[Mapping[str, Any]] = {}

    def same(self, found: Any, stored: Any) -> bool:
        """Return whether a value that was read is the one that was stored."""
        return is_same(found, stored)

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

    # --- Tools ----------------------------------------------------------------------------------------------

    def _parts(self, samples: Sequence[Sample]) -> list[bytes]:
        """Return the raw bytes of each file of a shard that holds some samples."""
        raise NotImplementedError

    def _open(self, parts: Sequence[ShardBytes], num_samples: int, **options: Any) -> ShardReader:
        """Open such a shard, of which the index says that it holds so many samples."""
        raise NotImplementedError

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
    """Return whether two values have one type and equal content, down to the sign of a zero."""
    if type(found) is not type(stored):
        return False
    if isinstance(found, np.ndarray) and found.dtype.hasobject:
        return found.dtype == stored.dtype and is_same(found.tolist(), stored.tolist())
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


def _mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory
