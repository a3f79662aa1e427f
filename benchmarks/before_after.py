"""Whether a change made anything slower, or larger: this tree beside another work tree of it, by turns, in one run.

git worktree add /tmp/before HEAD~1
python benchmarks/before_after.py /tmp/before [--pairs 9] [--only NAME] [--directory FOLDER --keep --results FILE]

For each figure: the ratio before / after of wall time, of processor time over all processes of the run (the fetcher
too) and of private memory, each the median over the pairs, with the half width of the middle half of the pairs beside
it. Above 1 means that this tree is better. With `--keep` and `--results` it can be run in slices: datasets stay in the
folder, and pairs are added to those of earlier runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

# Adapters run as modules of `benchmarks`, so this script has to be able to import it by that name too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import formats, remote, stream
from benchmarks.harness import ROOT, BenchmarkError, Result, Run, Workshop, run_once
from benchmarks.kept_results import KeptResults
from benchmarks.servers import s3_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED = 0.95
PADDING_BYTES = 700  # more with each pair
Pairs = dict[str, list[tuple[Result, Result]]]  # before and after, by figure


def format_runs(shop: Workshop) -> Iterator[tuple[str, Run]]:
    scale = formats.QUICK
    rows = shop.dataset("penstock", kind="rows", count=scale.rows)
    tokens = shop.dataset("penstock", kind="tokens", count=scale.tokens)
    yield "import penstock", Run("penstock", "import", {"statement": "import penstock"})
    yield "open a shard", Run("penstock", "open_first_shard", {"directory": rows})
    for shuffled, order in [(False, "in order"), (True, "at random")]:
        for through in ("shard", "index"):
            options = {"directory": rows, "shuffled": shuffled}
            yield f"read rows by {through} {order}", Run("penstock", f"read_rows_by_{through}", options)
        yield f"read tokens {order}", Run("penstock", "read_tokens", {"directory": tokens, "shuffled": shuffled})
    for kind, count in [("rows", scale.written_rows), ("tokens", scale.tokens)]:
        for compression in (None, "zstd"):
            options = {"kind": kind, "count": count, "compression": compression}
            yield f"write {kind} {compression or 'raw'}", Run("penstock", "write", options, fresh_directory=True)


def stream_runs(shop: Workshop) -> Iterator[tuple[str, Run]]:
    scale, ours = stream.QUICK, stream.ours
    seconds = scale.seconds
    rows, tokens = (stream.our_dataset(shop, kind, scale) for kind in ("rows", "tokens"))
    yield "stream rows", ours("one_by_one", directory=rows, kind="rows", count=scale.rows, seconds=seconds)
    yield "stream rows, own get_item", ours("overridden", directory=rows, seconds=seconds)
    yield "stream tokens by column", ours("columnar", directory=tokens, column="tokens", seconds=seconds)
    for kind, directory in [("rows", rows), ("tokens", tokens)]:
        options = {"directory": directory, "column": stream.COLUMN[kind], "seconds": seconds}
        yield f"stream {kind}, stock loader", ours("stock_loader", **options)
        yield f"stream {kind}, own loader", ours("own_loader", **options)
        yield f"stream {kind}, own loader, 2 threads", ours("own_loader", workers=2, **options)
    images = shop.dataset("penstock", "jpegs", count=scale.images)
    yield "stream images", ours("images", directory=images, count=scale.images, seconds=seconds)
    huge = shop.dataset("penstock", "huge", count=10**7, shards=10**3)
    yield "stream memory", ours("memory", directory=huge, seconds=3 * seconds)
    linked = shop.dataset("penstock", "huge", count=10**9, shards=10**4, linked=True)
    for workers in (0, 2):
        yield f"stream first batch, {workers} workers", ours("first_batch", directory=linked, workers=workers)


def remote_runs(shop: Workshop, endpoint: str, slow_endpoint: str, bucket_endpoint: str) -> Iterator[tuple[str, Run]]:
    scale, ours = remote.QUICK, remote.ours
    for kind in ("rows", "tokens"):
        key = remote.key_of(remote.our_dataset(shop, kind, scale))
        options = {"endpoint": endpoint, "key": key, "column": remote.COLUMN[kind], "seconds": scale.seconds}
        for loader in ("own", "stock"):
            yield f"remote {kind}, {loader} loader", ours(f"{loader}_loader", **options)
    large = remote.key_of(shop.dataset("penstock", kind="tokens", count=scale.large_tokens))
    whole = {"key": large, "column": "tokens", "seconds": 600}
    block = remote.SHARDS_PER_WINDOW * remote.TOKENS_PER_LARGE_SHARD
    yield "remote 64 MB shards", ours("own_loader", endpoint=endpoint, **whole)
    yield "remote 100 MB/s", ours("own_loader", endpoint=slow_endpoint, shuffle_block_size=block, **whole)
    yield "remote random access", ours("random_access", endpoint=endpoint, key=large)
    upload = {"out": "uploaded", "count": scale.uploaded, "endpoint": bucket_endpoint}
    yield "remote upload", Run("penstock", "write_tokens", upload, module="penstock_remote")


def measure_pairs(runs: dict[str, Run], before: Path, pairs: int, scratch: Path, kept: KeptResults) -> None:
    """Runs each with the one tree and the other by turns; who begins changes from pair to pair.

    So does the size of the environment. It moves everything in memory, and with some places, the system takes large
    buffers back and has to find them again for each batch: a tree may be unlucky with one of them, not with all.
    """
    sources = {"before": str(before / "src"), "after": str(ROOT / "src")}
    for pair in range(pairs):
        padding = {"PENSTOCK_BENCHMARK_PADDING": "x" * (PADDING_BYTES * pair % 4096)}
        for name, run in runs.items():
            if name.startswith("remote"):
                remote.use_memory(scratch / "used")
            names = sorted(sources, reverse=bool(pair % 2))
            found = {tree: run_once(run, scratch, {"PYTHONPATH": sources[tree], **padding}) for tree in names}
            for tree in ("before", "after"):
                kept.add((name, tree), found[tree])
            print(f"pair {pair + 1}/{pairs}: {name}", file=sys.stderr)


def pairs_of(kept: KeptResults) -> Pairs:
    """Puts together what was measured of both trees."""
    results = kept.results
    return {
        name: list(zip(results[name, "before"], results[name, "after"], strict=False))
        for name, tree in results
        if tree == "after"
    }


def ratios(pairs: list[tuple[Result, Result]], per_sample: bool, *names: str) -> list[float]:
    """Before / after of each pair, of the first of these figures that all runs have, and none of them as 0."""
    for name in names:
        if all(result.get(name) for pair in pairs for result in pair):
            return [
                (before[name] / (before["samples"] if per_sample else 1))
                / (after[name] / (after["samples"] if per_sample else 1))
                for before, after in pairs
            ]
    return []


def cell(values: list[float]) -> str:
    if not values:
        return ""
    middle = statistics.median(values)
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [middle] * 3
    noise = (quartiles[2] - quartiles[0]) / 2
    mark = " WORSE" if middle + noise < NEEDED else ""
    return f"{middle:.2f} ± {noise:.2f}{mark}"


def show(results: Pairs) -> str:
    lines = ["| figure | wall | processor | first batch | memory |", "| --- | --- | --- | --- | --- |"]
    for name, pairs in results.items():
        lines.append(
            f"| {name} | {cell(ratios(pairs, True, 'seconds'))} | {cell(ratios(pairs, True, 'cpu_seconds'))}"
            f" | {cell(ratios(pairs, False, 'first_s'))} | {cell(ratios(pairs, False, 'anon_mb', 'fetcher_mb'))} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures this tree beside another one.")
    parser.add_argument("before", type=Path, help="a work tree of the commit to compare with")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", action="append", default=[], help="figures whose names begin so (repeatable)")
    parser.add_argument("--directory", help="where to put the datasets (default: the temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave the datasets there, and use those of the last run")
    parser.add_argument("--results", type=Path, metavar="FILE", help="add to the pairs there, and show them all")
    arguments = parser.parse_args()
    only, kept = tuple(arguments.only or [""]), KeptResults.load(arguments.results)
    try:
        with ExitStack() as stack:
            shop = stack.enter_context(Workshop(arguments.directory, keep=arguments.keep))
            runs = dict([*format_runs(shop), *stream_runs(shop)])  # writes the datasets
            if any(each.startswith("remote"[: len(each)]) for each in only):
                runs |= connected_runs(shop, stack)
            chosen = {name: run for name, run in runs.items() if name.startswith(only)}
            measure_pairs(chosen, arguments.before.resolve(), arguments.pairs, shop.path, kept)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
    print(show(pairs_of(kept)))


def connected_runs(shop: Workshop, stack: ExitStack) -> dict[str, Run]:
    """Yield the runs that need a network, with servers that end with the stack."""
    dict(remote_runs(shop, "", "", ""))  # writes the datasets, which the servers read
    far = stack.enter_context(remote.network(shop, latency_s=remote.LATENCY_S))
    slow = stack.enter_context(remote.network(shop, remote.LATENCY_S, remote.BYTES_PER_S))
    folder = Path(tempfile.mkdtemp(prefix="emulator-", dir=shop.path))
    bucket = f"http://127.0.0.1:{stack.enter_context(s3_emulator(folder))}"
    run_once(Run("penstock", "make_bucket", {"endpoint": bucket}, module="penstock_remote"), shop.path)
    return dict(remote_runs(shop, far.endpoint, slow.endpoint, bucket))


if __name__ == "__main__":
    main()
