"""The first batch of data that has to be unpacked: only the row groups of its own samples come before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import StreamingDataset
from penstock.order.options import default_lanes, default_window
from penstock.reading.shard_table import ShardTable

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from penstock.types import Int64Array

NUM_GROUPS, ROWS = 100, 8
MB = 1 << 20


def test_row_groups_of_later_batches_are_not_unpacked_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pq.ParquetWriter(tmp_path / "all.parquet", pa.schema({"id": pa.int64(), "data": pa.binary()})) as writer:
        for group in range(NUM_GROUPS):
            ids = np.arange(group * ROWS, (group + 1) * ROWS)
            writer.write_table(pa.table({"id": ids, "data": [np.random.default_rng(0).bytes(140_000)] * ROWS}))
    asked: list[set[int]] = []
    expect = ShardTable.expect

    def noting(self: ShardTable, shards: Int64Array, batches_ahead: Int64Array) -> None:
        asked.append(set(shards.tolist()))
        if len(asked) == 2:  # what comes later is asked for when all of the first batch is there
            assert self.cache is not None
            assert all(self.cache.is_present(0, shard) for shard in asked[0])
        expect(self, shards, batches_ahead)

    monkeypatch.setattr(ShardTable, "expect", noting)
    dataset = StreamingDataset(remote=str(tmp_path), local=str(tmp_path / "copies"), shuffle=True, batch_size=8)
    assert dataset.num_samples == NUM_GROUPS * ROWS
    samples: Any = iter(dataset)
    first = [next(samples)["id"] for _ in range(8)]
    assert asked[0] == {int(sample) // ROWS for sample in first}
    assert len(asked) >= 2
    dataset.close()


def test_the_window_follows_what_unpacking_costs(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"id": np.arange(800), "text": ["a" * 60_000] * 800}), tmp_path / "a.parquet", row_group_size=20
    )
    dataset = StreamingDataset(remote=str(tmp_path), local=str(tmp_path / "copies"), shuffle=True, batch_size=8)
    described = dataset._opened.streams[0].describe()
    dataset.close()
    assert described.sizes is not None
    assert described.sizes.min() > 32 * 20 * 60_000
    # 970 row groups of 5 MB: some 100 are open at once, half of them before the first batch, and not 600.
    lengths, sizes = np.full(970, 100), np.full(970, 32 * 5 * MB)
    lanes = default_lanes([lengths], [sizes])
    assert lanes * default_window(lengths, lanes, 1, sizes) <= 100
