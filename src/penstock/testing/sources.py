"""What every source must do, as a test class that plug-ins inherit."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.data.dataset import StreamingDataset
from penstock.data.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.formats.base import ShardReader
    from penstock.reading.source import Source


class SourceContract:
    """A subclass says how to make a source of at least three samples."""

    def make_source(self, folder: Path) -> Source:
        """Return a source; `folder` is an empty folder of the test's own."""
        raise NotImplementedError

    def test_shards_have_the_samples_that_their_source_says(self, tmp_path: Path) -> None:
        """Every shard is as long as its span, also through a pickled copy."""
        source = self.make_source(tmp_path)
        copy: Source = pickle.loads(pickle.dumps(source))  # noqa: S301
        for each in (source, copy):
            assert len(each.sizes) == len(each.spans)
            for shard, length in enumerate(np.diff(each.spans.starts).tolist()):
                with _opened(each, shard) as reader:
                    assert len(reader) == length
                    assert len(reader.read(range(length))) == length
                assert each.describe_shard(shard)
            each.close()

    def test_rows_come_in_the_order_asked_for(self, tmp_path: Path) -> None:
        """Any rows, in any order, some of them twice: the same samples as all of them in a row."""
        source = self.make_source(tmp_path)
        shard = int(np.argmax(np.diff(source.spans.starts)))
        with _opened(source, shard) as reader:
            everything = [*reader.read(range(len(reader)))]
            rows = [len(reader) - 1, 0, len(reader) - 1]
            assert _are_equal(reader.read(rows), [everything[row] for row in rows])
            assert _are_equal(reader.read(np.array(rows)), [everything[row] for row in rows])
            columns = reader.read_columns(rows)
            for at, row in enumerate(rows):
                assert _are_equal({name: values[at] for name, values in columns.items()}, everything[row])
        source.close()

    def test_a_shuffled_dataset_has_each_sample_once_and_resumes(self, tmp_path: Path) -> None:
        """One epoch is every sample; what a state leaves is the rest of it."""

        def dataset() -> StreamingDataset:
            streams = [Stream(source=self.make_source(tmp_path / "resumed"))]
            return StreamingDataset(streams=streams, shuffle=True, batch_size=1)

        (tmp_path / "resumed").mkdir()
        with dataset() as first, dataset() as second:
            whole = list(first)
            assert len(whole) == first.num_samples
            by_number = [first[number] for number in range(first.num_samples)]
            assert all(any(_are_equal(sample, other) for other in by_number) for sample in whole)
            second.load_state_dict({**first.state_dict(), "epoch": 0, "position": 2})
            assert _are_equal(list(second), whole[2:])


@contextmanager
def _opened(source: Source, shard: int) -> Iterator[ShardReader]:
    opened = source.open(shard)
    try:
        yield opened.reader
    finally:
        opened.reader.close()
        if opened.lease is not None:
            opened.lease.close()


def _are_equal(one: Any, other: Any) -> bool:
    """Compare samples, whose values may be arrays."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool(np.array_equal(one, other))
