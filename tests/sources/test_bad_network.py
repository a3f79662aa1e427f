"""Reads that break are tried again in the middle of a file, a stall is a stall, and bad files are named."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CsvShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    Stream,
    StreamingDataset,
    TextShardedSource,
)
from penstock.errors import CorruptShardError, ObjectNotFoundError, PenstockError
from tests.servers.faults import FaultProxy, Faults
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.nginx import WebServer

NUM = 4000


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def table() -> pa.Table:
    noise = np.random.default_rng(0).integers(97, 122, (NUM, 300), np.uint8)
    return pa.table({"n": list(range(NUM)), "pad": [row.tobytes().decode() for row in noise]})


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(), sink, row_group_size=500, compression="none")
    return sink.getvalue()


def arrow() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=500)
    return sink.getvalue()


KINDS: dict[str, tuple[Any, Callable[[], bytes]]] = {
    "a.parquet": (ParquetShardedSource, parquet),
    "a.arrow": (ArrowShardedSource, arrow),
    "a.jsonl": (
        JsonShardedSource,
        lambda: b"".join(json.dumps(row).encode() + b"\n" for row in table().to_pylist()),
    ),
    "a.csv": (CsvShardedSource, lambda: b"n,pad\n" + b"".join(b"%d,%b\n" % row for row in pairs())),
    "a.txt": (TextShardedSource, lambda: b"".join(b"%d %b\n" % row for row in pairs())),
}


def pairs() -> list[tuple[int, bytes]]:
    return [(row["n"], row["pad"].encode()) for row in table().to_pylist()]


def number(sample: dict[str, Any]) -> int:
    return int(sample["n"]) if "n" in sample else int(sample["text"].split()[0])


@pytest.mark.parametrize("name", KINDS)
def test_reads_that_break_are_tried_again(name: str, nginx: WebServer) -> None:
    make, content = KINDS[name]
    (nginx.files / f"broken-{name}").write_bytes(content())
    with FaultProxy(nginx.url, Faults(rate=0.4, kinds=("reset", "cut", "drop"), seed=5)) as proxy:
        source = make(f"{proxy.url}/broken-{name}")
        loader = AsyncDataLoader(source.map(lambda sample: {"n": number(sample)}), 100, prefetch_workers=3)
        assert [int(n) for batch in loader for n in batch["n"]] == list(range(NUM))
        assert sum(proxy.counts.values()) > 0


def test_a_stall_is_waited_for_and_nothing_is_lost(nginx: WebServer) -> None:
    make, content = KINDS["a.parquet"]
    (nginx.files / "slow.parquet").write_bytes(content())
    with FaultProxy(nginx.url, Faults(rate=0.5, kinds=("slow",), seed=1, slow_s=0.02)) as proxy:
        loader = AsyncDataLoader(make(f"{proxy.url}/slow.parquet", columns=["n"]), 100)
        assert [int(n) for batch in loader for n in batch["n"]] == list(range(NUM))


# --- Bad input: one clear error each, that names the file -----------------------------------------------------


def check_error(read: Callable[[], Any], kind: type[Exception], *words: str) -> None:
    with pytest.raises(kind) as caught:
        read()
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("as_stream", [False, True])
def test_one_bad_file_among_many_is_named(tmp_path: Path, as_stream: bool) -> None:
    def read(source: Any) -> list[Any]:
        return list(StreamingDataset(streams=[Stream(source=source)]) if as_stream else source)

    for part in range(5):
        (tmp_path / f"{part}.parquet").write_bytes(parquet())
        (tmp_path / f"{part}.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "3.parquet").write_bytes(parquet()[:-1000])  # truncated
    check_error(lambda: read(ParquetShardedSource(f"{tmp_path}/*.parquet")), PenstockError, "3.parquet")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "3.parquet")  # another schema
    wanted = ParquetShardedSource(f"{tmp_path}/*.parquet", columns=["n"])
    check_error(lambda: read(wanted), PenstockError, "3.parquet")
    (tmp_path / "2.jsonl").write_bytes(bytes(range(256)) * 4)  # not text at all
    check_error(lambda: read(JsonShardedSource(f"{tmp_path}/*.jsonl")), CorruptShardError, "2.jsonl")


def test_a_glob_that_matches_nothing_is_named(tmp_path: Path) -> None:
    for make, _ in KINDS.values():
        check_error(lambda make=make: make(f"{tmp_path}/nope-*.xyz"), ObjectNotFoundError, "nope-*.xyz")  # type: ignore[misc]
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    several = [f"{tmp_path}/a.jsonl", f"{tmp_path}/b-*.jsonl"]
    check_error(lambda: JsonShardedSource(several), ObjectNotFoundError, "b-*.jsonl")
