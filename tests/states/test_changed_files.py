"""A state is of one version of a file: rewritten with the same size, it is refused; states of earlier releases load."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CompositeShardedSource,
    CsvShardedSource,
    JsonShardedSource,
    LimitedShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ParquetShardedSource,
    ShardedSource,
    TextShardedSource,
)
from penstock.errors import ResumeError
from penstock.storage.base import open_store, resolve_store
from tests.states.cases import ROWS, memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.s3 import S3Server

OPEN: dict[str, Callable[[str], ShardedSource]] = {
    "a.parquet": ParquetShardedSource,
    "a.arrow": ArrowShardedSource,
    "a.jsonl": JsonShardedSource,
    "a.json": lambda path: JsonShardedSource(path, jsonl=False),
    "a.csv": CsvShardedSource,
    "a.txt": TextShardedSource,
}


def write(path: Path, first: int) -> None:
    """Write a file whose size does not depend on the numbers in it."""
    rows = [{"id": first + number, "text": f"{first + number}"} for number in range(100)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        lines = [json.dumps(row) if path.suffix == ".jsonl" else str(row["text"]) for row in rows]
        path.write_text("\n".join([*(["text"] if path.suffix == ".csv" else []), *lines]) + "\n")


def without_files(state: Any) -> Any:
    """Make a state as earlier releases saved it."""
    if isinstance(state, dict):
        return {name: without_files(value) for name, value in state.items() if name not in ("file", "files")}
    return [without_files(each) for each in state] if isinstance(state, list) else state


@pytest.mark.parametrize("name", OPEN)
def test_a_file_rewritten_with_the_same_size(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, 1000)
    size, source = path.stat().st_size, OPEN[name](str(path))
    samples = iter(source)
    samples.take(35)
    mapped = AsyncDataLoader(source.map(dict), 10, prefetch_enabled=False)
    next(iter(mapped))
    states = samples.state_dict(), mapped.state_dict()
    iter(OPEN[name](str(path))).load_state_dict(states[0])

    write(path, 2000)
    os.utime(path, ns=(5, 5))
    assert path.stat().st_size == size
    with pytest.raises(ResumeError, match=rf"{name} has changed since the state was saved.*Restore the file"):
        iter(OPEN[name](str(path))).load_state_dict(states[0])
    loader = AsyncDataLoader(OPEN[name](str(path)).map(dict), 10, prefetch_enabled=False)
    with pytest.raises(
        ResumeError, match=f"files have changed since the state was saved, and .*{name} was written last"
    ):
        loader.load_state_dict(states[1])
    loader.load_state_dict({**states[1], "source": None, "files": None})  # as the first release saved it
    with pytest.raises(ResumeError, match=f"{name} has changed"):
        next(iter(loader))
    old = iter(OPEN[name](str(path)))
    old.load_state_dict(without_files(states[0]))
    assert next(old)["text"] == "2035"


def _mixed(source: ShardedSource) -> ShardedSource:
    return MixedShardedSource({"a": source, "b": memory(2, ROWS)}, stop_strategy="all_exhausted", epochs=2)


WITHIN: dict[str, Callable[[ShardedSource], ShardedSource]] = {
    "plain": lambda source: source,
    "function": lambda source: source.map(lambda row: {"id": row["id"], "text": row["text"]}),
    "composite": lambda source: CompositeShardedSource([memory(1, ROWS), source]),
    "mixed": _mixed,
    "limited": lambda source: LimitedShardedSource(source, 150),
    "packed": lambda source: PackedShardedSource(_numbers(source), 16, 0, shuffle_buffer_factor=2),
    "packed mix": lambda source: PackedShardedSource(_numbers(_mixed(source)), 16, 0, shuffle_buffer_factor=2),
}
READING: dict[str, dict[str, Any] | None] = {
    "an iterator": None,
    "batches": {},
    "a rank": {"rank": 1, "world_size": 2},
    "a buffer": {"shuffle_buffer_size": 12, "interleave": 2},
}


def _numbers(source: ShardedSource) -> ShardedSource:
    return source.map(lambda row: {"input_ids": [row["id"]] * 3})


@pytest.mark.parametrize("reading", READING)
@pytest.mark.parametrize("kind", WITHIN)
@pytest.mark.parametrize("which", [0, 1])
def test_any_file_of_what_is_mixed_packed_or_read_ahead(kind: str, reading: str, which: int, tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        write(path, 1000)
        os.utime(path, ns=(5, 5))

    def make() -> Any:
        source, options = WITHIN[kind](JsonShardedSource(str(tmp_path / "*.jsonl"))), READING[reading]
        return iter(source) if options is None else AsyncDataLoader(source, 5, prefetch_enabled=False, **options)

    made = make()
    samples = iter(made)
    for _ in range(3):
        next(samples)
    state = json.loads(json.dumps(made.state_dict()))
    same = make()
    same.load_state_dict(state)
    next(iter(same))
    write(paths[which], 2000)
    other = make()
    with pytest.raises(ResumeError, match=rf"{paths[which].name}.*estore"):
        other.load_state_dict(state)
        next(iter(other))
    other = make()
    other.load_state_dict(without_files({**state, "source": None} if "source" in state else state))
    next(iter(other))


def test_a_file_in_a_store_rewritten_with_the_same_size(moto: S3Server, tmp_path: Path) -> None:
    moto.make_bucket("changing")
    store = open_store(resolve_store("s3://changing", moto.options))
    write(tmp_path / "a.csv", 1000)
    store.upload(tmp_path / "a.csv", "a.csv")
    samples = iter(CsvShardedSource("s3://changing/a.csv", moto.options))
    samples.take(35)
    state = samples.state_dict()
    iter(CsvShardedSource("s3://changing/a.csv", moto.options)).load_state_dict(state)
    write(tmp_path / "a.csv", 2000)
    store.upload(tmp_path / "a.csv", "a.csv")
    with pytest.raises(ResumeError, match=r"s3://changing/a.csv has changed since the state was saved"):
        iter(CsvShardedSource("s3://changing/a.csv", moto.options)).load_state_dict(state)
