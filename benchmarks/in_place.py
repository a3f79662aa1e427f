"""How fast files that other programs wrote are read where they lie, beside other libraries and beside MDS.

python benchmarks/in_place.py [--quick] [--only NAME] [--json FILE]

In slices, each of some minutes: python benchmarks/in_place.py --directory FOLDER --keep --results FILE --only NAME
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Comparison, Run, Workshop, measure, median_rate
from benchmarks.questions import answer
from benchmarks.servers import file_server
from benchmarks.slow_network import SlowNetwork

RATE = "samples/s"
LATENCY_S = 0.030


@dataclass(frozen=True)
class Scale:
    """How much data there is, and how long and often it is read."""

    rows: int
    tokens: int  # samples of 2048 of them
    blobs: int  # samples of 50 kB
    seconds: float
    repeats: int


FULL = Scale(rows=1_200_000, tokens=48_000, blobs=16_000, seconds=4, repeats=3)
QUICK = Scale(rows=400_000, tokens=16_000, blobs=4000, seconds=1, repeats=1)

Question = Callable[[Workshop, Scale], list[Comparison]]


def medians(runs: dict[str, Run], shop: Workshop, scale: Scale) -> dict[str, float]:
    return {name: median_rate(results) for name, results in measure(runs, scale.repeats, shop.path).items()}


# --- Parquet --------------------------------------------------------------------------------------------------

GROUP_ROWS = {"rows": 10_000, "tokens": 2000}
COLUMN = {"rows": "id", "tokens": "tokens"}
HF_STREAM = "HF streaming, buffer 10 000"


def of_parquet(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, module="penstock_parquet")


def parquet_files(shop: Workshop, kind: str, scale: Scale) -> str:
    count = scale.rows if kind == "rows" else scale.tokens
    return shop.dataset("hf", kind=kind, count=count, group_rows=GROUP_ROWS[kind], codec="zstd")


def parquet_rows(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled rows of Parquet, unpacked copies present, one process, sample by sample."""
    return in_one_process("rows", shop, scale, scale.rows, needed_of_mds=0.9, needed_of_hf=5)


def parquet_tokens(shop: Workshop, scale: Scale) -> list[Comparison]:
    """The same of lists of 2048 tokens."""
    return in_one_process("tokens", shop, scale, scale.tokens, needed_of_mds=1, needed_of_hf=9)


def in_one_process(
    kind: str, shop: Workshop, scale: Scale, count: int, needed_of_mds: float, needed_of_hf: float
) -> list[Comparison]:
    directory = parquet_files(shop, kind, scale)
    mds = shop.dataset("penstock", kind=kind, count=count)
    common = {"kind": kind, "count": count, "seconds": scale.seconds}
    by_column = {"column": COLUMN[kind], "seconds": scale.seconds}
    rates = medians(
        {
            "ours": of_parquet("one_by_one", directory=directory, **common),
            "columns": of_parquet("columnar", directory=directory, **by_column),
            "mds": Run("penstock", "one_by_one", {"directory": mds, **common}, module="penstock_stream"),
            "mds columns": Run("penstock", "columnar", {"directory": mds, **by_column}, module="penstock_stream"),
            "hf stream": Run("hf", "one_by_one", {"directory": directory, "form": "stream", **common}),
            "hf arrow": Run("hf", "one_by_one", {"directory": directory, "form": "arrow", **common}),
        },
        shop,
        scale,
    )
    question = f"Parquet, {kind} shuffled, one process"
    columnar = f"Parquet, {kind} shuffled, columnar"
    return [
        Comparison(question, rates["ours"], RATE, f"MDS of the same {kind}", rates["mds"], needed=needed_of_mds),
        Comparison(question, rates["ours"], RATE, HF_STREAM, rates["hf stream"], needed=needed_of_hf),
        Comparison(question, rates["ours"], RATE, "HF Arrow, random access", rates["hf arrow"]),
        Comparison(columnar, rates["columns"], RATE, f"MDS of the same {kind}", rates["mds columns"]),
    ]


def parquet_loader(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled Parquet through a stock DataLoader with 2 workers."""
    comparisons = []
    for kind in ("rows", "tokens"):
        options = {"directory": parquet_files(shop, kind, scale), "column": COLUMN[kind], "seconds": scale.seconds}
        runs = {
            "ours": of_parquet("loader", **options),
            "hf": Run("hf", "loader", {"form": "stream", "kind": kind, **options}),
        }
        rates = medians(runs, shop, scale)
        question = f"Parquet, {kind} shuffled, 2 workers"
        comparisons.append(Comparison(question, rates["ours"], RATE, HF_STREAM, rates["hf"], needed=3))
    return comparisons


def unpacking(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Row groups to what readers map, in one thread."""
    comparisons = []
    for kind in ("rows", "tokens"):
        options = {"directory": parquet_files(shop, kind, scale), "out": str(shop.path / "unpacked")}
        runs = {"ours": of_parquet("unpack", **options), "bare": of_parquet("bare_unpack", **options)}
        rates = medians(runs, shop, scale)
        against = "pyarrow: decoded, written"
        comparisons.append(
            Comparison(f"Parquet, {kind} unpacked", rates["ours"], RATE, against, rates["bare"], needed=0.8)
        )
    return comparisons


# --- From a store -------------------------------------------------------------------------------------------


@contextmanager
def far_store(shop: Workshop, listed: str = "") -> Iterator[str]:
    """The workshop's datasets as objects of a bucket, 30 ms away; those of one folder can be listed."""
    folder = Path(tempfile.mkdtemp(prefix="nginx-", dir=shop.path))
    with file_server(shop.path, folder, listed) as port, SlowNetwork(port, LATENCY_S) as far:
        yield far.endpoint


def cold(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled Parquet from a store that answers after 30 ms, from an empty cache, 2 workers."""
    comparisons = []
    for kind in ("rows", "tokens"):
        root = Path(parquet_files(shop, kind, scale))
        keys = [str(path.relative_to(root.parent)) for path in sorted(root.rglob("*.parquet"))]
        options = {"keys": keys, "column": COLUMN[kind], "seconds": scale.seconds * 2}
        with far_store(shop) as endpoint:
            ours = Run("penstock", "cold", {"endpoint": endpoint, **options}, True, "penstock_parquet")
            hf = Run("hf", "loader", {"endpoint": endpoint, **options}, module="hf_remote")
            rates = medians({"ours": ours, "hf": hf}, shop, scale)
        question = f"Parquet, {kind} from a store at 30 ms, nothing cached"
        comparisons.append(Comparison(question, rates["ours"], RATE, HF_STREAM, rates["hf"], needed=3))
    return comparisons


def opening(shop: Workshop, scale: Scale) -> list[Comparison]:
    """A folder of 1000 Parquet files in a store that answers after 30 ms: opened for the first time, and again."""
    directory = shop.dataset("penstock", "penstock_parquet", files=1000)
    with far_store(shop, Path(directory).name) as endpoint:
        options = {"endpoint": endpoint, "key": Path(directory).name}
        run = Run("penstock", "opening", options, True, "penstock_parquet")
        results = measure({"ours": run}, max(3, scale.repeats), shop.path)["ours"]
    first = statistics.median(result["seconds"] for result in results) * 1e3
    again = statistics.median(result["again_s"] for result in results) * 1e3
    question = "1000 Parquet files at 30 ms"
    return [
        Comparison(f"{question}, opened first", first, "ms", "target", 2000, needed=1, lower_is_better=True),
        Comparison(f"{question}, opened again", again, "ms", "target", 300, needed=1, lower_is_better=True),
    ]


def flat_memory(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Private memory of reader and fetcher over a long run in which shards are unpacked and removed all the time."""
    options = {"out": str(shop.path / "small-cache"), "seconds": scale.seconds * 20, "cache_limit": "60mb"}
    run = Run(
        "penstock", "memory", {"directory": parquet_files(shop, "rows", scale), **options}, False, "penstock_parquet"
    )
    [result] = measure({"ours": run}, 1, shop.path)["ours"]
    question = f"Parquet, memory at the end of {options['seconds']:.0f} s"
    early = result["early_mb"]
    return [
        Comparison(question, result["late_mb"], "MB", "in the second quarter", early, 1 / 1.1, lower_is_better=True)
    ]


# --- Lines and tars -------------------------------------------------------------------------------------------


def of_rows(action: str, **options: Any) -> Run:
    return Run("penstock", action, options, module="penstock_rows")


def jsonl(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled rows of JSON lines, one process, sample by sample."""
    directory = shop.dataset("penstock", "penstock_rows", kind="jsonl", count=scale.rows)
    mds = shop.dataset("penstock", kind="rows", count=scale.rows)
    checked = {"directory": directory, "count": scale.rows, "seconds": scale.seconds}
    rates = medians(
        {
            "ours": of_rows("lines", **checked),
            "columns": of_rows("line_columns", directory=directory, seconds=scale.seconds),
            "msgspec": of_rows("bare_parser", directory=directory, seconds=scale.seconds, parser="msgspec"),
            "json": of_rows("bare_parser", directory=directory, seconds=scale.seconds, parser="json"),
            "mds": of_rows("lines", **{**checked, "directory": mds}),
            "hf": Run("hf", "lines", checked, module="hf_lines"),
        },
        shop,
        scale,
    )
    question = "JSON lines shuffled, one process"
    return [
        Comparison(question, rates["ours"], RATE, "target", 300_000, needed=1),
        Comparison(question, rates["ours"], RATE, "msgspec alone, line by line", rates["msgspec"], needed=0.5),
        Comparison(question, rates["ours"], RATE, "json alone, line by line", rates["json"], needed=0.5),
        Comparison(question, rates["ours"], RATE, "MDS of the same rows", rates["mds"]),
        Comparison(question, rates["ours"], RATE, "HF streaming, buffer 10 000", rates["hf"]),
        Comparison("JSON lines shuffled, columnar", rates["columns"], RATE, "by sample", rates["ours"]),
    ]


def tar(shop: Workshop, scale: Scale) -> list[Comparison]:
    """Shuffled samples of tars, a blob of 50 kB and a little JSON each, one process."""
    directory = shop.dataset("penstock", "penstock_rows", kind="tar", count=scale.blobs)
    options = {"directory": directory, "count": scale.blobs, "seconds": scale.seconds}
    runs = {
        "ours": of_rows("tars", **options),
        "webdataset": Run("webdataset", "tars", options, module="webdataset_tars"),
    }
    rates = medians(runs, shop, scale)
    question = "tar of 50 kB samples shuffled, one process"
    return [Comparison(question, rates["ours"], RATE, "webdataset, buffer 1000", rates["webdataset"], needed=2)]


QUESTIONS: dict[str, Question] = {
    "parquet-rows": parquet_rows,
    "parquet-tokens": parquet_tokens,
    "parquet-loader": parquet_loader,
    "unpack": unpacking,
    "cold": cold,
    "open": opening,
    "memory": flat_memory,
    "jsonl": jsonl,
    "tar": tar,
}

if __name__ == "__main__":
    answer(__doc__ or "", QUESTIONS, full=FULL, quick=QUICK, peers=["hf", "webdataset"])
