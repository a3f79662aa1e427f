"""Where unpacked copies of files of this machine go, and that they are bounded, also without a limit."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import StreamingDataset
from tests.fetcher.test_rooms import small_disk
from tests.in_place.kinds import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NUM_FILES, ROWS, TOKENS = 24, 10, 16_384
SMALL_BYTES = 12 << 20  # less than all copies take
COPIES_BYTES = NUM_FILES * ROWS * TOKENS * 4


def copies_in(cache: Path) -> int:
    files = [path for path in cache.rglob("*") if path.is_file() and ".penstock" not in path.parts]
    return sum(path.stat().st_size for path in files)


def test_they_go_where_the_user_says_but_never_among_the_data(tmp_path: Path) -> None:
    data = KINDS["parquet"].write_files(tmp_path / "data", 2)
    for local, is_used in ((tmp_path / "fast", True), (data, False), (data / "below", False)):
        with StreamingDataset(remote=str(data / "*.parquet"), local=str(local)) as dataset:
            assert sorted(KINDS["parquet"].numbers(dataset)) == list(range(100))
        assert is_used == any(path.name.endswith(".columns1") for path in tmp_path.rglob("*"))
        shutil.rmtree(tmp_path / "fast", ignore_errors=True)
        assert sorted(data.iterdir()) == [data / "part-0.parquet", data / "part-1.parquet"]


def test_a_disk_that_holds_a_part_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(NUM_FILES):
        ids = np.arange(number * ROWS, number * ROWS + ROWS, dtype=np.int32)
        tokens = pa.FixedSizeListArray.from_arrays(np.repeat(ids, TOKENS), TOKENS)
        pq.write_table(pa.table({"id": ids, "tokens": tokens}), data / f"{number:02}.parquet")
    before = {path: path.read_bytes() for path in data.iterdir()}
    with small_disk(tmp_path / "small", str(SMALL_BYTES), monkeypatch) as reserve:
        cache = tmp_path / "small" / "cache"
        with StreamingDataset(
            remote=str(data), local=str(cache), shuffle=True, batch_size=5, shuffle_block_size=20
        ) as dataset:
            for _ in range(2):
                seen = []
                for sample in dataset:
                    seen.append(int(sample["id"]))
                    assert (sample["tokens"] == sample["id"]).all()
                assert sorted(seen) == list(range(NUM_FILES * ROWS))
                assert reserve is None or 0 < copies_in(cache) <= SMALL_BYTES // 2 < COPIES_BYTES
    assert {path: path.read_bytes() for path in data.iterdir()} == before
