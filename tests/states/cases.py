"""Everything that has a state, over small data that are the same on every machine.

A case is opened in a folder that `make_data` has filled and that is the current one, so that names and times of files
are the same everywhere. Names begin with what a case depends on: `buffer/` on the shuffle buffer, `keyed/` on keys of
transforms, `written/` on both keys and written files, `stratified/` on orders of batching methods.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import zlib
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CompositeShardedSource,
    CsvShardedSource,
    JsonShardedSource,
    LimitedShardedSource,
    MDSWriter,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ParquetShardedSource,
    Pipeline,
    ShardedSource,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    TextShardedSource,
    TokenizedShardedSource,
    TokenizerConfig,
    WeightScheduler,
    wrap_hf_dataset,
)
from penstock.episodes.mix import StreamingLeRobotMix
from penstock.episodes.settings import LeRobotStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = GOLDEN / "states"
ROWS: list[dict[str, Any]] = [
    {"id": n, "text": " ".join(f"w{(n * k) % 13}" for k in range(n % 7)) or "w0"} for n in range(60)
]
MORE: list[dict[str, Any]] = [
    {"id": 1000 + n, "text": " ".join(f"w{(n + k) % 13}" for k in range(n % 5 + 1))} for n in range(24)
]
_WRITTEN_NS = 1_700_000_000_123_456_789
UNKNOWN = "?"


@dataclass(frozen=True)
class Case:
    """How something with a state is opened, and what its passes give."""

    open: Callable[[], Any]
    is_loader: bool = True
    is_slow: bool = False


def make_data(folder: Path) -> None:
    """Write the data; those whose bytes depend on a library were written once and are copied."""
    for file in FILES.glob("*.*.*"):
        shutil.copyfile(file, folder / file.name)
    for part in range(3):
        rows = ROWS[20 * part : 20 * part + 20]
        lines = [json.dumps(row) for row in rows]
        (folder / f"p{part}.jsonl").write_text("\n\n".join(lines) + "\n")
        (folder / f"p{part}.json").write_text(json.dumps(rows, indent=1))
        (folder / f"p{part}.csv").write_text("id,text\n" + "".join(f'{row["id"]},"{row["text"]}\n"\n' for row in rows))
        (folder / f"p{part}.txt").write_text("".join(f"{row['id']} {row['text']}\n" for row in rows))
    (folder / "z.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode(), mtime=0))
    # Frames of 16 kB and more are told apart.
    texts = [f"{row['id']} {row['text']} {'x' * 1500}\n".encode() for row in ROWS]
    (folder / "z.txt.bz2").write_bytes(b"".join(bz2.compress(b"".join(texts[n : n + 12])) for n in range(0, 60, 12)))
    for name, rows in (("mds", ROWS), ("more", MORE)):
        with MDSWriter(out=folder / name, columns={"id": "int", "text": "str"}, size_limit=600) as writer:
            for row in rows:
                writer.write(row)
    words = {"<unk>": 0, **{f"w{n}": n + 1 for n in range(13)}}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model, "added_tokens": []})
    )
    for file in folder.rglob("*"):
        os.utime(file, ns=(_WRITTEN_NS, _WRITTEN_NS))


def write_binary(folder: Path) -> None:
    """Write the files of Parquet and Arrow, once: other releases of pyarrow write other bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part in range(3):
        table = pa.Table.from_pylist(ROWS[20 * part : 20 * part + 20])
        pq.write_table(table, folder / f"p{part}.rows.parquet", row_group_size=6)
        with pa.OSFile(str(folder / f"p{part}.rows.arrow"), "wb") as out:
            make = pa.ipc.new_stream if part == 2 else pa.ipc.new_file
            with make(out, table.schema) as writer:
                writer.write_table(table, max_chunksize=7)


# --- Sources ------------------------------------------------------------------------------------------------------


class Counting(ShardedSource):
    """A source of a user, which does not say how long its shards are."""

    @property
    def shard_names(self) -> Sequence[str]:
        return ("a", "b", "c")

    def read_shard(self, shard_name: str, row: int) -> Iterator[dict[str, Any]]:
        first = 20 * self.shard_names.index(shard_name)
        return iter(map(dict, ROWS[first + row : first + 20]))


class Columns:
    """Has columns as a dataset of the `datasets` library has."""

    column_names = ("id", "text")

    def __len__(self) -> int:
        return len(ROWS)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)

    def __getitem__(self, chosen: Any) -> Any:
        rows = ROWS[chosen] if isinstance(chosen, slice) else [ROWS[number] for number in chosen]
        return {name: [row[name] for row in rows] for name in self.column_names}


class Streamed:
    """Is read in order, as an `IterableDataset` of the `datasets` library is."""

    column_names = ("id", "text")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)


def memory(shards: int = 3, rows: Sequence[dict[str, Any]] = ROWS) -> ShardedSource:
    return MemoryShardedSource(rows, num_shards=shards, fingerprint="rows")


SOURCES: dict[str, Callable[[], ShardedSource]] = {
    "parquet": lambda: ParquetShardedSource("p*.rows.parquet"),
    "parquet some": lambda: ParquetShardedSource("p*.rows.parquet", filter=[("text", ">", "w0 w1")]),
    "arrow": lambda: ArrowShardedSource("p*.rows.arrow"),
    "jsonl": lambda: JsonShardedSource("p*.jsonl"),
    "jsonl gz": lambda: JsonShardedSource("z.jsonl.gz"),
    "json": lambda: JsonShardedSource("p*.json"),
    "csv": lambda: CsvShardedSource("p*.csv", types={"id": "int"}),
    "text": lambda: TextShardedSource("p*.txt"),
    "text bz2": lambda: TextShardedSource("z.txt.bz2"),
    "hf": lambda: wrap_hf_dataset(Columns()),
    "hf streamed": lambda: wrap_hf_dataset(Streamed()),
    "memory": memory,
    "own": Counting,
    "dataset": lambda: StreamingDataset(local="mds").as_source(),
    "composite": lambda: CompositeShardedSource([memory(2, MORE), JsonShardedSource("p*.jsonl"), memory(1, MORE)]),
}


def tokenized(source: ShardedSource, **options: Any) -> ShardedSource:
    config = TokenizerConfig("./tokenizer.json", **{"return_attention_mask": False, **options})
    return TokenizedShardedSource(source, None, config, additional_fields=None, batch_size=8)


def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(row) for _ in range(row["id"] % 3)]


def mixed(source: ShardedSource, stop: Any, **options: Any) -> ShardedSource:
    sources = {"a": source, "b": memory(2, MORE)}
    return MixedShardedSource(sources, {"a": 0.7, "b": 0.3}, seed=5, stop_strategy=stop, **options)


def by_tokens(source: ShardedSource) -> ShardedSource:
    points = [{"step": 0, "weights": {"a": 1, "b": 3}}, {"step": 90, "weights": {"a": 2, "b": 1}}]
    sources = {"a": tokenized(source), "b": tokenized(memory(2, MORE))}
    scheduler = WeightScheduler(points, "linear", unit="tokens")
    return MixedShardedSource(sources, seed=5, weight_scheduler=scheduler, block_size=9, stop_strategy="all_exhausted")


STAGES: dict[str, Callable[[ShardedSource], ShardedSource]] = {
    "map": lambda source: source.map(lambda row: {**row, "more": 1}),
    "threads": lambda source: source.map(lambda row: {**row, "more": 1}, num_workers=2),
    "filter": lambda source: source.filter(lambda row: row["id"] % 3),
    "flat map": lambda source: source.flat_map(twice),
    "batches": lambda source: source.map_batches(lambda rows: rows[:-1], batch_size=7),
    "limited": lambda source: LimitedShardedSource(source, 33),
    "tokenized": lambda source: tokenized(source, max_length=3, overflow="split"),
    "mix restarting": lambda source: LimitedShardedSource(mixed(source, "restart"), 150),
    "mix to the first end": lambda source: mixed(source, "first_exhausted"),
    "mix of all": lambda source: mixed(source, "all_exhausted"),
    "mix of epochs": lambda source: mixed(source, "all_exhausted", epochs={"a": 1, "b": 3}),
    "mix by tokens": by_tokens,
    "packed": lambda source: PackedShardedSource(tokenized(source), 8, 0, shuffle_buffer_factor=1),
    "packed first fit": lambda source: PackedShardedSource(
        tokenized(source), 8, 0, strategy="first_fit", shuffle_buffer_factor=2
    ),
    "packed pool": lambda source: PackedShardedSource(tokenized(source), 8, None, strategy="pool", shuffle=False),
    "mix packed": lambda source: PackedShardedSource(
        MixedShardedSource({"a": tokenized(source), "b": tokenized(memory(2, MORE))}, epochs=2), 8, 0
    ),
    "mix mapped": lambda source: mixed(source.map(dict), "all_exhausted").flat_map(twice),
}


def _over(stage: str, source: str) -> Case:
    return Case(lambda: iter(STAGES[stage](SOURCES[source]()) if stage else SOURCES[source]()), is_loader=False)


def _loading(open_source: Callable[[], Any], **options: Any) -> Case:
    given = {"batch_size": 7, "drop_last": False, "prefetch_enabled": False, "seed": 3, **options}
    return Case(lambda: AsyncDataLoader(open_source(), **given))


def _of_memory(stage: str) -> Case:
    return _loading(lambda: STAGES[stage](memory()))


# --- Datasets -----------------------------------------------------------------------------------------------------


def _dataset(batch_size: int = 6, **options: Any) -> Case:
    given = {"local": "mds"} if "streams" not in options and "remote" not in options else {}
    options = {"shuffle": True, "batch_size": batch_size, **given, **options}

    def make() -> StreamingDataLoader:
        streams = options.get("streams")
        made = {**options, "streams": streams()} if streams is not None else options
        return StreamingDataLoader(StreamingDataset(**made), batch_size=batch_size)

    return Case(make)


def _two(**weights: Any) -> Callable[[], list[Stream]]:
    return lambda: [Stream(local="mds", **weights), Stream(local="more", **weights)]


def _shares() -> list[Stream]:
    return [Stream(local="mds", proportion=0.6), Stream(local="more", proportion=0.4)]


def _robots(**options: Any) -> Case:
    root = GOLDEN / "lerobot" / "two_cams_av1"

    def make() -> StreamingDataLoader:
        streams = [LeRobotStream(root=root, name="a"), LeRobotStream(root=root, name="b", episodes=[1, 4])]
        mix = StreamingLeRobotMix(streams, keys=["action"], episode_pool_size=3, batch_size=20, **options)
        return StreamingDataLoader(mix, batch_size=20)

    return Case(make, is_slow=True)


def _pipeline(*stages: str, **load: Any) -> Case:
    def make() -> Any:
        files = [{"name": "a", "data_files": "p*.jsonl"}, {"name": "b", "data_files": "p*.json"}]
        made = Pipeline.from_config({"datasets": files, "default_tokenizer": "tokenizer.json", "seed": 3}).source()
        settings: dict[str, dict[str, Any]] = {
            "mix": {"stop_strategy": "all_exhausted", "weights": {"a": 1, "b": 2}},
            "pack": {"enabled": True, "seq_length": 8, "shuffle_buffer_factor": 1},
        }
        for stage in stages:
            made = getattr(made, stage)(settings.get(stage, {}))
        options = {"shuffle_buffer_size": None, "prefetch_enabled": False, "drop_last": False}
        return made.load({"batch_size": 9, **options, **load})

    return Case(make)


_RANKS: list[dict[str, Any]] = [
    {"rank": 1, "world_size": 2, "uneven": "pad"},
    {"rank": 0, "world_size": 3, "uneven": "drop"},
]
_SCHEDULE = [(0, [0.5, 0.5]), (40, [1, 0])]

CASES: dict[str, Case] = {
    **{f"iterator/{name}": _over("", name) for name in SOURCES},
    **{f"iterator/{stage} of {source}": _over(stage, source) for stage, source in (
        *product(STAGES, ["jsonl"]), ("flat map", "parquet"), ("mix of all", "csv"), ("filter", "arrow"),
        ("limited", "own"), ("packed", "parquet"), ("map", "composite"), ("mix restarting", "own"),
    )},
    **{f"loader/{name}": _loading(SOURCES[name]) for name in SOURCES},
    **{
        f"loader/{name} rank {options['rank']}": _loading(SOURCES[name], **options)
        for name, options in product(["parquet", "jsonl"], _RANKS)
    },
    **{f"loader/{stage}": _of_memory(stage) for stage in (
        "map", "flat map", "mix of all", "packed", "mix packed",
    )},
    "loader/threads": _loading(SOURCES["parquet"], prefetch_enabled=True, prefetch_workers=3, drop_last=True),
    "loader/whole batches": _loading(SOURCES["csv"], drop_last=True),
    "keyed/fields": _loading(lambda: JsonShardedSource("p*.jsonl").select_fields(["id"])),
    "keyed/renamed": _loading(lambda: memory().rename_fields({"text": "words"})),
    "indexed/memory": _loading(memory, shuffle=True),
    "indexed/dataset": _loading(lambda: StreamingDataset(local="mds", shuffle=True)),
    "indexed/dataset in order": _loading(lambda: StreamingDataset(local="mds"), drop_last=True),
    "indexed/files": _loading(SOURCES["parquet"], shuffle=True),
    **{f"buffer/{name}": _loading(SOURCES[name], shuffle_buffer_size=12, interleave=2) for name in (
        "parquet", "jsonl", "csv", "memory", "own", "hf", "composite",
    )},
    "buffer/one at a time": _loading(SOURCES["arrow"], shuffle_buffer_size=30, interleave=1),
    "buffer/bytes": _loading(SOURCES["text"], shuffle_buffer_bytes=3000, interleave=3),
    "buffer/rank": _loading(SOURCES["parquet"], shuffle_buffer_size=9, **_RANKS[0]),
    "buffer/rank of unknown": _loading(SOURCES["jsonl"], shuffle_buffer_size=9, **_RANKS[1]),
    "buffer/packed": _loading(lambda: STAGES["packed"](memory()), shuffle_buffer_size=8),
    "pipeline/plain": _pipeline(),
    "pipeline/mix": _pipeline("mix"),
    "pipeline/packed": _pipeline("tokenize", "mix", "pack"),
    "buffer/pipeline": _pipeline("mix", shuffle_buffer_size=12),
    "dataset/plain": _dataset(shuffle=False),
    "dataset/shuffled": _dataset(),
    "dataset/seed and lanes": _dataset(shuffle_seed=7, num_canonical_nodes=4, shuffle_block_size=16),
    "dataset/rank": _dataset(rank=1, world_size=2),
    "dataset/rank, trimmed": _dataset(rank=0, world_size=2, epoch_end="trim", batch_size=7),
    "dataset/rank, dropped": _dataset(rank=0, world_size=2, epoch_end="drop", batch_size=7),
    "dataset/resized": _dataset(epoch_size=100),
    "dataset/two": _dataset(streams=_two()),
    "dataset/two in order": _dataset(streams=_two(repeat=1.5), shuffle=False),
    "dataset/shares": _dataset(streams=_shares, epoch_size=50),
    "dataset/schedule": _dataset(streams=_two(), schedule=_SCHEDULE, epoch_size=70),
    "dataset/jsonl": _dataset(remote="p*.jsonl"),
    "dataset/parquet": _dataset(remote="p*.rows.parquet"),
    "dataset/memory": _dataset(streams=lambda: [Stream(source=memory())]),
    "stratified/two": _dataset(streams=_two(), batching_method="stratified", num_canonical_nodes=2),
    "stratified/in order": _dataset(streams=_two(), batching_method="stratified", num_canonical_nodes=2, shuffle=False),
    "stratified/per stream": _dataset(streams=_two(), batching_method="per_stream"),
    "stratified/device per stream": _dataset(
        streams=_two(), batching_method="device_per_stream", rank=1, world_size=2
    ),
    **{f"mosaic/{algo}": _dataset(order="mosaic", shuffle_algo=algo, num_canonical_nodes=2) for algo in (
        "py1e", "py1s", "py1br", "py2s", "naive",
    )},
    "mosaic/plain": _dataset(order="mosaic", shuffle=False, num_canonical_nodes=1),
    "mosaic/rank": _dataset(order="mosaic", num_canonical_nodes=2, rank=1, world_size=2),
    "mosaic/0.5": _dataset(order="mosaic", mosaic_version="0.5", shuffle_algo="py1s", num_canonical_nodes=2),
    "mosaic/shares": _dataset(streams=_shares, order="mosaic", num_canonical_nodes=1),
    "stratified/mosaic": _dataset(
        streams=_two(), order="mosaic", batching_method="stratified", num_canonical_nodes=1, batch_size=4
    ),
    "written/mapped": _dataset(
        streams=lambda: [Stream(source=JsonShardedSource("p*.json").select_fields(["id"]))]
    ),
    "robots/pool": _robots(),
    "robots/pool of a rank": _robots(rank=1, world_size=2),
    "robots/gop": _robots(video_locality="gop"),
    "robots/in order": _robots(shuffle=False),
}  # fmt: skip


# --- What is given ------------------------------------------------------------------------------------------------


def marks(given: Mapping[str, Any], *, is_batch: bool) -> list[int]:
    """Return a number for each sample: its own if it has one, else a hash of all that it holds."""
    name = next((name for name in ("id", "index") if name in given), None)
    if name is not None:
        return list(map(int, given[name])) if is_batch else [int(given[name])]
    if not is_batch:
        return [zlib.crc32(plain(given).encode()) % 100_000]
    count = len(next(iter(given.values())))
    return [mark for row in range(count) for mark in marks({key: given[key][row] for key in given}, is_batch=False)]


def plain(value: Any) -> str:
    """Write a value as text, whether it has arrays or lists."""
    return json.dumps(value, default=lambda value: np.asarray(value).tolist(), sort_keys=True)


def steps(made: Any, case: Case, num_passes: int = 2) -> Iterator[list[int]]:
    """Yield what each step gives: a batch of a loader, in some passes, or a sample."""
    for _ in range(num_passes if case.is_loader else 1):
        for given in made:
            yield marks(given, is_batch=case.is_loader)
        if not case.is_loader:
            return


def rest(made: Any, case: Case, count: int) -> list[int]:
    """Return what comes next, up to so many numbers and to the end of the pass."""
    taken: list[int] = []
    for _ in range(3):
        if len(taken) >= count:
            break
        taken += chain.from_iterable(steps(made, case, 1))
    return taken


def whole(first: Any, state: Any) -> Any:
    """Put back what a recorded state has in common with the first one of its case."""
    if not isinstance(state, dict) or not isinstance(first, dict) or "..." not in state:
        return state
    return {**first, **{name: whole(first.get(name), value) for name, value in state.items() if name != "..."}}


def here(state: Any, now: Any) -> Any:
    """Put in what a recorded state cannot know: how files are named here, as a state of now says."""
    if isinstance(state, dict):
        now = now if isinstance(now, dict) else {}
        kept = {name: value for name, value in state.items() if name != "file" or value.get("version") != UNKNOWN}
        return {name: here(value, now.get(name)) for name, value in kept.items()}
    if isinstance(state, list):
        return [here(each, None) for each in state]
    return now if state == UNKNOWN else state
