"""`columns=` fetches the bytes of these columns and no others, counted at the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import StreamingDataset
from penstock.errors import CacheTooSmallError
from tests.servers.faults import FaultProxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.nginx import WebServer

ROWS = 3000


def write(path: Path) -> None:
    texts = [f"{number:06}" * 40 for number in range(ROWS)]
    table = pa.table(
        {"id": list(range(ROWS)), "text": texts, "other": texts, "last": [float(row) for row in range(ROWS)]}
    )
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, row_group_size=1000, compression="none", use_dictionary=False)


def chunk_bytes(path: Path, names: set[str]) -> int:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in names)


def test_only_the_chosen_columns_are_fetched(nginx: WebServer) -> None:
    path = nginx.files / "projection" / "a.parquet"
    write(path)
    with FaultProxy(nginx.url) as proxy:
        urls = [f"{proxy.url}/projection/a.parquet"]
        with StreamingDataset(remote=urls, columns=["id", "last"]) as dataset:
            assert dataset.num_samples == ROWS
            proxy.counts.clear()
            samples = list(dataset)
        assert [sample["id"] for sample in samples] == list(range(ROWS))
        assert samples[7] == {"id": 7, "last": 7.0}
        fetched, chosen = proxy.counts["bytes"], chunk_bytes(path, {"id", "last"})
        # What else comes is a little more after each chunk, for files of old writers, and the heads of answers.
        assert chosen <= fetched < chosen + 6 * 1000
        assert fetched < chunk_bytes(path, {"text"}) / 4


def test_a_cache_need_not_hold_what_is_not_fetched(nginx: WebServer, tmp_path: Path) -> None:
    path = nginx.files / "small-projection" / "a.parquet"
    write(path)
    settings: dict[str, Any] = {
        "remote": [f"{nginx.url}/small-projection/a.parquet"],
        "shuffle": True,
        "batch_size": 10,
    }
    limit = chunk_bytes(path, {"id"}) * 3
    with StreamingDataset(columns=["id"], local=tmp_path / "one", cache_limit=limit, **settings) as dataset:
        assert sorted(sample["id"] for sample in dataset) == list(range(ROWS))
    with (
        StreamingDataset(local=tmp_path / "all", cache_limit=limit, **settings) as dataset,
        pytest.raises(CacheTooSmallError),
    ):
        list(dataset)


def test_two_jobs_with_other_columns_do_not_get_into_each_others_way(nginx: WebServer, tmp_path: Path) -> None:
    path = nginx.files / "two-projections" / "a.parquet"
    write(path)
    urls = [f"{nginx.url}/two-projections/a.parquet"]
    with (
        StreamingDataset(remote=urls, columns=["id"], local=tmp_path) as one,
        StreamingDataset(remote=urls, columns=["last", "id"], local=tmp_path) as two,
        StreamingDataset(remote=urls, local=tmp_path) as whole,
    ):
        for number in (5, 1500, 2999):
            assert one[number] == {"id": number}
            assert two[number] == {"id": number, "last": float(number)}
            assert set(whole[number]) == {"id", "text", "other", "last"}
