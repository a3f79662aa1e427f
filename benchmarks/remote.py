"""How fast samples come from a store with latency or little bandwidth, beside other libraries, and how fast they go
there.

python benchmarks/remote.py [--quick] [--only NAME] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import (
    BenchmarkError,
    Comparison,
    Result,
    Run,
    Workshop,
    measure,
    median_rate,
    run_once,
)
from benchmarks.questions import answer
from benchmarks.servers import file_server, s3_emulator
from benchmarks.slow_network import SlowNetwork

RATE = "samples/s"
COLUMN = {"rows": "id", "tokens": "tokens"}
LATENCY_S = 0.030
BYTES_PER_S = 100e6
SHARD_BYTES = 1 << 24  # so that there are enough shards to fetch side by side in little data
NUM_FILES = 16
USED_BYTES = 2 << 30
TOKENS_PER_LARGE_SHARD = 8200  # fill 64 MB
SHARDS_PER_WINDOW = 4
TITLES = {
    "mosaic": "mosaicml-streaming",
    "litdata": "litdata",
    "litdata in order": "litdata, in order",
    "hf": "HF streaming Parquet",
    "webdataset": "webdataset",
}


@dataclass(frozen=True)
class Scale:
    """How much data there is, and for how long the slow ones read it."""

    rows: int
    tokens: int
    large_tokens: int  # in 64 MB shards
    slow_rows: int  # for libraries that take long to write them
    slow_tokens: int
    uploaded: int
    seconds: float
    repeats: int


FULL = Scale(
    rows=2_400_000,
    tokens=128_000,
    large_tokens=128_000,
    slow_rows=200_000,
    slow_tokens=64_000,
    uploaded=246_000,
    seconds=15,
    repeats=3,
)
QUICK = Scale(
    rows=600_000,
    tokens=16_000,
    large_tokens=32_000,
    slow_rows=20_000,
    slow_tokens=16_000,
    uploaded=32_000,
    seconds=5,
    repeats=1,
)

Question = Callable[[Workshop, Scale], list[Comparison]]


@contextmanager
def network(shop: Workshop, latency_s: float = 0.0, bytes_per_s: float | None = None) -> Iterator[SlowNetwork]:
    """The workshop's datasets as objects of a bucket, each under the name of its folder, far away."""
    with (
        file_server(shop.path, Path(tempfile.mkdtemp(prefix="nginx-", dir=shop.path))) as port,
        SlowNetwork(port, latency_s, bytes_per_s) as far,
    ):
        yield far


def use_memory(path: Path) -> None:
    """Write a file and remove it: on a virtual machine, memory unused for a while comes from the host.

    That may take ten times as long as filling it, and would be what is measured, for all who keep files.
    """
    block = bytes(1 << 24)
    with path.open("wb") as file:
        for _ in range(USED_BYTES // len(block)):
            file.write(block)
    path.unlink()


def key_of(directory: str) -> str:
    return Path(directory).name


def keys_below(directory: str, suffix: str) -> list[str]:
    root = Path(directory)
    return [str(path.relative_to(root.parent)) for path in sorted(root.rglob(f"*.{suffix}"))]


def ours(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, fresh_directory=True, module="penstock_remote")


def our_dataset(shop: Workshop, kind: str, scale: Scale) -> str:
    return shop.dataset("penstock", kind=kind, count=count_of(kind, scale), size_limit=SHARD_BYTES)


def count_of(kind: str, scale: Scale) -> int:
    return scale.rows if kind == "rows" else scale.tokens


def all_runs(shop: Workshop, scale: Scale, kind: str, endpoint: str) -> dict[str, Run]:
    count = count_of(kind, scale)
    common = {"endpoint": endpoint, "column": COLUMN[kind], "seconds": scale.seconds}
    mds = key_of(our_dataset(shop, kind, scale))
    chunks = key_of(shop.dataset("litdata", "litdata_stream", kind=kind, count=count, size_limit=SHARD_BYTES))
    few_rows = scale.slow_rows if kind == "rows" else scale.slow_tokens
    few_parquet = count if kind == "rows" else scale.slow_tokens
    parquet = keys_below(shop.dataset("hf", kind=kind, count=few_parquet, files=NUM_FILES), "parquet")
    tars = keys_below(shop.dataset("webdataset", kind=kind, count=few_rows, shards=NUM_FILES), "tar")

    def cached(peer: str, key: str, **extra: Any) -> Run:
        options = {**common, "key": key, **extra}
        return Run(peer, "loader", options, fresh_directory=True, module=f"{peer}_remote")

    return {
        "ours": ours("own_loader", key=mds, **common),
        "ours stock": ours("stock_loader", key=mds, **common),
        "mosaic": cached("mosaic", mds),
        "litdata": cached("litdata", chunks),
        "litdata in order": cached("litdata", chunks, shuffled=False),
        "hf": Run("hf", "loader", {**common, "keys": parquet}, module="hf_remote"),
        "webdataset": Run("webdataset", "loader", {**common, "keys": tars}, module="webdataset_remote"),
    }


def measure_all(shop: Workshop, scale: Scale, kind: str, **far: Any) -> dict[str, list[Result]]:
    # Written before the clock runs, and before the server looks at the folder.
    all_runs(shop, scale, kind, "")
    with network(shop, **far) as slow:
        return measure(
            all_runs(shop, scale, kind, slow.endpoint),
            scale.repeats,
            shop.path,
            optional=TITLES,
            before_each=lambda: use_memory(shop.path / "used"),
        )


def compare_kind(shop: Workshop, scale: Scale, kind: str, needed: dict[str, float]) -> list[Comparison]:
    results = measure_all(shop, scale, kind, latency_s=LATENCY_S)
    rates = {name: median_rate(each) for name, each in results.items()}
    first = {name: median_of("first_s", each) * 1e3 for name, each in results.items()}
    question = f"{kind}, 30 ms latency"
    return [
        *(
            Comparison(f"{question}, own loader", rates["ours"], RATE, title, rates[name], needed=needed.get(name))
            for name, title in TITLES.items()
            if name in rates
        ),
        *(
            Comparison(f"{question}, stock loader", rates["ours stock"], RATE, title, rates[name])
            for name, title in TITLES.items()
            if name in rates
        ),
        *(
            Comparison(
                f"{question}, first batch ({loader})",
                first[mine],
                "ms",
                title,
                first[name],
                needed=3 if name == "mosaic" else None,
                lower_is_better=True,
            )
            for mine, loader in [("ours", "own loader"), ("ours stock", "stock loader")]
            for name, title in TITLES.items()
            if name in first
        ),
    ]


def rows_with_latency(shop: Workshop, scale: Scale) -> list[Comparison]:
    return compare_kind(
        shop, scale, "rows", {"mosaic": 10, "litdata": 3, "litdata in order": 3, "hf": 3, "webdataset": 3}
    )


def tokens_with_latency(shop: Workshop, scale: Scale) -> list[Comparison]:
    return compare_kind(shop, scale, "tokens", {"mosaic": 8})


def first_sample(shop: Workshop, scale: Scale) -> list[Comparison]:
    """From opening a dataset to its first sample, in one process, with an empty cache."""
    return [
        comparison
        for kind in ("rows", "tokens")
        for shuffled in (False, True)
        for comparison in compare_first(shop, scale, kind, shuffled)
    ]


def first_runs(shop: Workshop, scale: Scale, kind: str, shuffled: bool, endpoint: str) -> dict[str, Run]:
    """The same datasets as for the loaders: each run for a first sample stands for one of theirs."""
    loaders = all_runs(shop, scale, kind, endpoint)
    options = {"shuffled": shuffled}
    return {
        name: replace(
            run,
            action="first_sample",
            options={key: run.options[key] for key in ("endpoint", "key", "keys") if key in run.options} | options,
        )
        for name, run in loaders.items()
        if name not in ("ours stock", "litdata in order")
    }


def compare_first(shop: Workshop, scale: Scale, kind: str, shuffled: bool) -> list[Comparison]:
    first_runs(shop, scale, kind, shuffled, "")  # datasets are written before the server looks at the folder
    with network(shop, latency_s=LATENCY_S) as slow:
        runs = first_runs(shop, scale, kind, shuffled, slow.endpoint)
        results = measure(runs, max(3, scale.repeats), shop.path, optional=TITLES)
    milliseconds = {name: median_of("seconds", each) * 1e3 for name, each in results.items()}
    question = f"{kind}, 30 ms latency, first sample, {'shuffled' if shuffled else 'in order'}"
    return [
        Comparison(question, milliseconds["ours"], "ms", TITLES[name], each, needed=1, lower_is_better=True)
        for name, each in milliseconds.items()
        if name != "ours"
    ]


def little_bandwidth(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Bytes of the dataset per second, of all seconds since before it was opened, against the limit.

    Samples are shuffled among a few shards at a time. A window as large as the whole dataset, as it is by default for
    so little data, would have all of it arrive before the second batch, and leave the network idle after that.
    """
    directory = shop.dataset("penstock", kind="tokens", count=scale.large_tokens)
    num_bytes = sum(path.stat().st_size for path in Path(directory).iterdir())
    results = []
    with network(shop, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as slow:
        options = {
            "endpoint": slow.endpoint,
            "key": key_of(directory),
            "column": "tokens",
            "seconds": 600,
            "shuffle_block_size": SHARDS_PER_WINDOW * TOKENS_PER_LARGE_SHARD,
        }
        for action in ("own_loader", "stock_loader"):
            runs = measure({"ours": ours(action, **options)}, scale.repeats, shop.path)["ours"]
            if any(run["samples"] != scale.large_tokens for run in runs):
                raise BenchmarkError("the epoch was not whole")
            rate = num_bytes / statistics.median(run["seconds"] for run in runs) / 1e6
            question = f"tokens, 100 MB/s, {SHARDS_PER_WINDOW} shards shuffled, {action.replace('_', ' ')}"
            results.append(Comparison(question, rate, "MB/s", "limit", BYTES_PER_S / 1e6, needed=0.9))
            memory = max(run["fetcher_mb"] for run in runs)
            results.append(fetcher_memory(f"{question}: fetcher", memory))
    return results


def fetcher_memory(question: str, megabytes: float) -> Comparison:
    return Comparison(question, megabytes, "MB", "target", 300, needed=1, lower_is_better=True)


def ceiling(shop: Workshop, scale: Scale) -> list[Comparison]:
    """What server and proxy let through at most: below it, it is the client that is measured. And fetcher memory."""
    directory = shop.dataset("penstock", kind="tokens", count=scale.large_tokens)
    comparisons = []
    with network(shop, latency_s=LATENCY_S) as slow:
        keys = keys_below(directory, "mds")
        options = {"endpoint": slow.endpoint, "keys": keys}
        runs = {
            "bare": Run("penstock", "download_only", options, module="penstock_remote"),
            "ours": ours("own_loader", endpoint=slow.endpoint, key=key_of(directory), column="tokens", seconds=600),
        }
        results = measure(runs, scale.repeats, shop.path)
        num_bytes = sum(path.stat().st_size for path in Path(directory).iterdir())
        rate = num_bytes / statistics.median(run["seconds"] for run in results["ours"]) / 1e6
        bare = median_rate(results["bare"]) / 1e6
        question = "64 MB shards of tokens, 30 ms latency"
        comparisons.append(Comparison(question, rate, "MB/s", "bare connections, to nowhere", bare))
        memory = max(run["fetcher_mb"] for run in results["ours"])
        comparisons.append(fetcher_memory(f"{question}: fetcher", memory))
    return comparisons


def upload_while_writing(shop: Workshop, scale: Scale) -> list[Comparison]:
    """2 GB in 64 MB shards. The emulator is written in Python: it may well be the slower of the two."""
    local = Run("penstock", "write_locally", {"count": scale.uploaded}, True, "penstock_remote")
    source = str(shop.path / "to-upload")
    run_once(
        Run("penstock", "write_locally", {"directory": source, "count": scale.uploaded}, module="penstock_remote"),
        shop.path,
    )
    rates: dict[str, list[float]] = {"local": [], "raw": [], "ours": []}
    for turn in range(scale.repeats):
        rates["local"].append(median_rate([run_once(local, shop.path)]))
        for name in ("raw", "ours"):
            # A new emulator each time: it keeps all that it is given in memory or temporary files.
            with s3_emulator(Path(tempfile.mkdtemp(prefix="emulator-", dir=shop.path))) as port:
                endpoint = f"http://127.0.0.1:{port}"
                run_once(Run("penstock", "make_bucket", {"endpoint": endpoint}, module="penstock_remote"), shop.path)
                options = {"out": f"{name}-{turn}", "count": scale.uploaded, "endpoint": endpoint}
                run = (
                    Run("penstock", "upload_only", {"source": source, **options}, module="penstock_remote")
                    if name == "raw"
                    else Run("penstock", "write_tokens", options, module="penstock_remote")
                )
                rates[name].append(median_rate([run_once(run, shop.path)]))
    rate = {name: statistics.median(each) for name, each in rates.items()}
    slower = min(("local", "raw"), key=rate.__getitem__)
    title = {"local": "writing locally", "raw": "raw upload"}
    return [
        Comparison(
            "uploading while writing", rate["ours"], RATE, title[name], rate[name], 0.9 if name == slower else None
        )
        for name in ("local", "raw")
    ]


def random_access(shop: Workshop, scale: Scale) -> list[Comparison]:
    """All that crosses the network: the index, what is needed to find the sample, and the sample."""
    directory = shop.dataset("penstock", kind="tokens", count=scale.large_tokens)
    with network(shop, latency_s=LATENCY_S) as slow:
        result = run_once(ours("random_access", endpoint=slow.endpoint, key=key_of(directory)), shop.path)
        kilobytes, requests = slow.bytes_down / 1e3, slow.num_requests
    question = f"dataset[i], cold, 64 MB shards ({requests} requests, {result['seconds'] * 1e3:.0f} ms)"
    return [Comparison(question, kilobytes, "kB", "target", 1000, needed=1, lower_is_better=True)]


def median_of(name: str, results: list[Result]) -> float:
    return statistics.median(result[name] for result in results)


QUESTIONS: dict[str, Question] = {
    "ceiling": ceiling,
    "rows": rows_with_latency,
    "tokens": tokens_with_latency,
    "first": first_sample,
    "bandwidth": little_bandwidth,
    "upload": upload_while_writing,
    "random-access": random_access,
}


if __name__ == "__main__":
    answer(
        "Measures reading from and writing to a store, beside the peers.",
        QUESTIONS,
        full=FULL,
        quick=QUICK,
        peers=("mosaic", "litdata", "hf", "webdataset"),
    )
