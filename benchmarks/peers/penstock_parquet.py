"""penstock on Parquet files as others write them, and what pyarrow takes to unpack the same files alone."""

from __future__ import annotations

import os
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.common import BATCH, Result, main, timed_warm
from benchmarks.peers.remote import BUCKET, KEYS, run_cold
from benchmarks.peers.streaming import WORKERS, check_samples, endless, timed_batches, timed_samples

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_shuffled(directory: str, **options: Any) -> Any:
    """The dataset, with copies of all its shards unpacked: the first run makes them, and they are kept."""
    from penstock import StreamingDataset

    where: dict[str, Any] = {"remote": str(Path(directory, "parquet")), "local": str(Path(directory, "unpacked"))}
    for _ in StreamingDataset(**where):
        pass
    return StreamingDataset(**where, shuffle=True, batch_size=BATCH, **options)


def one_by_one(directory: str, kind: str, count: int, seconds: float) -> Result:
    check_samples(kind, iter(open_shuffled(directory)), count)
    dataset = open_shuffled(directory)
    return timed_samples(lambda: dataset, seconds)


def columnar(directory: str, column: str, seconds: float) -> Result:
    dataset = open_shuffled(directory, columnar=True)
    return timed_batches(lambda: dataset, seconds, column)


def loader(directory: str, column: str, seconds: float) -> Result:
    import torch  # loaded before any clock starts, as in a training script

    dataset = open_shuffled(directory)
    batches = torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return timed_batches(lambda: batches, seconds, column)


# --- From a store -------------------------------------------------------------------------------------------


def open_far(endpoint: str, remote: str | list[str], directory: str, **options: Any) -> Any:
    """A dataset of Parquet files in a store, with a fetcher of this run's own."""
    from penstock import StreamingDataset

    os.environ.setdefault("PENSTOCK_RUNTIME_DIR", tempfile.mkdtemp(prefix="run"))
    store = {**KEYS, "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    return StreamingDataset(remote=remote, local=directory, batch_size=BATCH, storage_options=store, **options)


def cold(endpoint: str, keys: list[str], directory: str, column: str, seconds: float) -> Result:
    """From an empty cache, through a stock loader with workers."""
    import torch

    def batches() -> Any:
        dataset = open_far(endpoint, [f"s3://{BUCKET}/{key}" for key in keys], directory, shuffle=True)
        return torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    return run_cold(batches, column, seconds)


def write_many(directory: str, files: int) -> Result:
    """Many small Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    Path(directory).mkdir(parents=True)
    table = pa.table({"id": list(range(200)), "text": ["some text"] * 200})
    for number in range(files):
        pq.write_table(table, Path(directory, f"{number:05}.parquet"), row_group_size=20)
    return {"samples": files, "seconds": 1}


def opening(endpoint: str, key: str, directory: str) -> Result:
    """A folder of files is opened for the first time, and again by another fetcher, with its index in the cache."""
    from penstock import StreamingDataset  # with torch, loaded before any clock starts, as in a training script

    taken = []
    for _ in range(2):
        begin = time.perf_counter()
        dataset = open_far(endpoint, f"s3://{BUCKET}/{key}", directory)
        if not isinstance(dataset, StreamingDataset) or not len(dataset):
            raise SystemExit("there are no samples")
        taken.append(time.perf_counter() - begin)
        dataset.close()
    return {"samples": 1, "seconds": taken[0], "again_s": taken[1]}


def memory(directory: str, out: str, seconds: float, cache_limit: str) -> Result:
    """Pass after pass, shuffled, with a cache that holds a part of the data: unpacking and removing never end.

    Gives private memory of this process and of its fetcher, the most in the second quarter of the time and in the last.
    """
    from penstock import StreamingDataset

    os.environ.setdefault("PENSTOCK_RUNTIME_DIR", tempfile.mkdtemp(prefix="run"))
    options: dict[str, Any] = {
        "shuffle": True,
        "batch_size": BATCH,
        "cache_limit": cache_limit,
        "shuffle_block_size": 1,
    }
    dataset = StreamingDataset(remote=str(Path(directory, "parquet")), local=out, **options)
    stream = endless(lambda: dataset)
    begin = now = time.perf_counter()
    looks: list[tuple[float, float]] = []
    samples = 0
    while now - begin < seconds:
        for _ in islice(stream, 4096):
            samples += 1
        now = time.perf_counter()
        if not looks or now - begin > looks[-1][0] + seconds / 100:
            looks.append((now - begin, private_mb()))
    early = max(mb for when, mb in looks if seconds / 4 < when <= seconds / 2)
    late = max(mb for when, mb in looks if when > seconds * 3 / 4)
    return {"samples": samples, "seconds": now - begin, "early_mb": early, "late_mb": late}


def private_mb() -> float:
    """Private memory of all processes of this run."""
    mark = f"PENSTOCK_BENCHMARK_RUN={os.environ['PENSTOCK_BENCHMARK_RUN']}".encode()
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                lines = (process / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
        except OSError:  # gone, or another user's
            continue
    return total / 1000


# --- Unpacking ------------------------------------------------------------------------------------------------
#
# Each row group goes to a file that was not there, as in the fetcher. To open one that is there would wait for the disk
# until what it held has been written, unless something else takes that time meanwhile.


class _Object:
    """A file in memory, as a scan reads it."""

    is_compressed = False
    frame_starts = ()
    seek_bytes = 0

    def __init__(self, path: Path) -> None:
        self.name, self.data = path.name, path.read_bytes()
        self.num_bytes = len(self.data)

    def read(self, begin: int, end: int) -> bytes:
        return self.data[begin:end]

    def chunks(self) -> Iterator[bytes]:
        yield self.data


class _Fetched:
    """The same, as it was fetched."""

    def __init__(self, file: _Object) -> None:
        self.name, self.num_bytes, self._view = file.name, file.num_bytes, memoryview(file.data)

    def read(self, begin: int, end: int) -> memoryview:
        return self._view[begin:end]


def unpack(directory: str, out: str) -> Result:
    """Row groups of one file to files of columns, as the fetcher does it in each of its threads."""
    from penstock.formats.files import get_file_format
    from penstock.index.model import FileInfo, IndexedShard, ObjectSpan, Part, ShardLayout

    file = _Object(min(Path(directory, "parquet").iterdir()))
    form = get_file_format("parquet")
    found = form.scan(file, {})
    layout = ShardLayout(format="parquet", columns=found.columns, settings=found.settings)
    infos = []
    for number, shard in enumerate(found.shards):
        span = ObjectSpan(file.name, shard.span.begin, len(shard.span), file.num_bytes)
        raw = FileInfo(f"{number}", shard.raw_bytes, is_exact=False)
        part = Part(raw, FileInfo(f"{number}.packed", len(shard.span)), span)
        infos.append(IndexedShard(layout, shard.num_samples, (part,), shard.details))

    Path(out).unlink(missing_ok=True)

    def work() -> int:
        for info in infos:
            with Path(out).open("xb") as target:
                form.unpack(info, None, _Fetched(file), target)
            Path(out).unlink()
        return sum(info.num_samples for info in infos)

    return timed_warm(work)


def bare_unpack(directory: str, out: str) -> Result:
    """The same row groups decoded by pyarrow and written as Arrow files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    Path(out).unlink(missing_ok=True)
    data = pa.py_buffer(min(Path(directory, "parquet").iterdir()).read_bytes())

    def work() -> int:
        file = pq.ParquetFile(pa.BufferReader(data))
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            with pa.OSFile(out, "wb") as target, pa.ipc.new_file(target, table.schema) as writer:
                writer.write_table(table)
            Path(out).unlink()
        return int(file.metadata.num_rows)

    return timed_warm(work)


if __name__ == "__main__":
    main(
        {
            "one_by_one": one_by_one,
            "columnar": columnar,
            "loader": loader,
            "cold": cold,
            "write": write_many,
            "opening": opening,
            "memory": memory,
            "unpack": unpack,
            "bare_unpack": bare_unpack,
        }
    )
