"""penstock from and to a store, in the environment that runs the benchmark."""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.peers.common import (
    BATCH,
    SIZE_LIMIT,
    TOKEN_COLUMNS,
    Result,
    main,
    make_tokens,
    timed,
)
from benchmarks.peers.remote import BUCKET, KEYS, run_cold, run_first
from benchmarks.peers.streaming import WORKERS
from torch.utils.data import DataLoader

from penstock import MDSWriter, StreamingDataLoader, StreamingDataset

# A fetcher of this run's own, so that its memory is that of this run.
os.environ["PENSTOCK_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="run")
PARALLEL_UPLOADS = 8


def options_of(endpoint: str) -> dict[str, Any]:
    return {**KEYS, "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}


def open_dataset(endpoint: str, key: str, directory: str, shuffled: bool = True, **options: Any) -> StreamingDataset:
    return StreamingDataset(
        remote=f"s3://{BUCKET}/{key}",
        local=directory,
        shuffle=shuffled,
        batch_size=BATCH,
        storage_options=options_of(endpoint),
        **options,
    )


def stock_loader(endpoint: str, key: str, directory: str, column: str, seconds: float, **options: Any) -> Result:
    dataset: list[StreamingDataset] = []

    def batches() -> Any:
        dataset.append(open_dataset(endpoint, key, directory, **options))
        return DataLoader(dataset[0], batch_size=BATCH, num_workers=WORKERS)

    result = run_cold(batches, column, seconds)
    return {**result, "fetcher_mb": fetcher_peak_mb()}


def own_loader(endpoint: str, key: str, directory: str, column: str, seconds: float, **options: Any) -> Result:
    """Columnar, and so without workers, as its documentation recommends: the fetcher works beside it."""
    dataset: list[StreamingDataset] = []

    def batches() -> Any:
        dataset.append(open_dataset(endpoint, key, directory, **options))
        return StreamingDataLoader(dataset[0], columnar=True)

    result = run_cold(batches, column, seconds)
    return {**result, "fetcher_mb": fetcher_peak_mb()}


def first_sample(endpoint: str, key: str, directory: str, shuffled: bool) -> Result:
    return run_first(lambda: open_dataset(endpoint, key, directory, shuffled))


def random_access(endpoint: str, key: str, directory: str) -> Result:
    """One sample from the middle of a dataset whose shards are elsewhere."""
    dataset = open_dataset(endpoint, key, directory)

    def work() -> int:
        sample = dataset[dataset.num_samples // 2]
        return len(sample) and 1

    return timed(work)


def fetcher_peak_mb() -> float:
    """The most memory that the fetcher of this run had at any time."""
    mark = f"PENSTOCK_RUNTIME_DIR={os.environ['PENSTOCK_RUNTIME_DIR']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if b"fetcher" not in command or mark not in (process / "environ").read_bytes().split(b"\0"):
                continue
            status = (process / "status").read_text()
        except OSError:  # gone, or another user's
            continue
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1000
    raise SystemExit("found no fetcher of this run")


def write_tokens(out: str, count: int, endpoint: str | None = None) -> Result:
    """Tokens in 64 MB shards. With an endpoint `out` is a key in its bucket, and the clock stops when all is there."""
    # Some rows again and again: writing is not measured, and 2 GB need not be in memory.
    rows = make_tokens(4096)
    samples = [{"tokens": row} for row in rows]
    place = out if endpoint is None else f"s3://{BUCKET}/{out}-{os.getpid()}"  # runs may repeat: each has its own place
    extra: dict[str, Any] = {} if endpoint is None else {"storage_options": options_of(endpoint)}

    def work() -> int:
        with MDSWriter(out=place, columns=TOKEN_COLUMNS, size_limit=SIZE_LIMIT, **extra) as writer:
            for number in range(count):
                writer.write(samples[number % len(samples)])
        return count

    return timed(work)


def write_locally(directory: str, count: int) -> Result:
    write_tokens(f"{directory}-warm", count)
    shutil.rmtree(f"{directory}-warm")
    return write_tokens(directory, count)


def upload_only(source: str, out: str, count: int, endpoint: str) -> Result:
    """The same files from disk, with obstore and nothing around it."""
    from obstore import put
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=KEYS["key"],
        secret_access_key=KEYS["secret"],
        region="us-east-1",
        client_options={"allow_http": True},
    )

    def upload(path: Path) -> None:
        put(store, f"{out}/{path.name}", path)

    def work() -> int:
        with ThreadPoolExecutor(PARALLEL_UPLOADS) as pool:
            list(pool.map(upload, sorted(Path(source).iterdir())))
        return count

    return timed(work)


def make_bucket(endpoint: str) -> Result:
    from urllib.request import Request, urlopen

    def work() -> int:
        with urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT")) as answer:
            return int(answer.status == 200)

    return timed(work)


def download_only(endpoint: str, keys: list[str]) -> Result:
    """Objects over plain connections to nowhere: what server and network let through. `samples` are bytes."""
    from http.client import HTTPConnection

    room = [bytearray(1 << 20) for _ in range(8)]

    def download(number: int, mine: list[str]) -> int:
        connection = HTTPConnection(endpoint.removeprefix("http://"))
        total = 0
        for key in mine:
            connection.request("GET", f"/{BUCKET}/{key}")
            answer = connection.getresponse()
            while got := answer.readinto(room[number]):
                total += got
        return total

    def work() -> int:
        with ThreadPoolExecutor(len(room)) as pool:
            shares = [keys[number :: len(room)] for number in range(len(room))]
            return sum(pool.map(download, range(len(room)), shares))

    work()
    return timed(work)


if __name__ == "__main__":
    main(
        {
            "stock_loader": stock_loader,
            "own_loader": own_loader,
            "random_access": random_access,
            "first_sample": first_sample,
            "write_tokens": write_tokens,
            "write_locally": write_locally,
            "upload_only": upload_only,
            "make_bucket": make_bucket,
            "download_only": download_only,
        }
    )
