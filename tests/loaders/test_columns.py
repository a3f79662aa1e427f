"""Rows that stay columns until the batch give, bit for bit, what samples give: batches and states."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ArrowShardedSource, AsyncDataLoader, PadCollator, ParquetShardedSource, ShardedSource
from penstock.blocks.block import Block, join_blocks
from penstock.formats.columnar.format import block_of
from penstock.loaders.collate import collate_batch, collate_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.sources.shard_info import ShardInfo


class SamplesOnly(ShardedSource):
    """A source whose rows are samples from the beginning."""

    def __init__(self, source: ShardedSource) -> None:
        self._source = source
        self._input_sources = (source,)

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def fingerprint(self) -> str | None:
        return self._source.fingerprint

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        return self._source.get_shard_info(shard_name)

    def open_stage(self, shard_name: str, row: int = 0) -> Any:
        return _Samples(self._source.open_stage(shard_name, row))


class _Samples:
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def next(self) -> Block:
        block: Block = self._rows.next()
        block.samples()
        return block

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._rows.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._rows.set_state(state)

    def close(self) -> None:
        self._rows.close()


def exact(value: Any) -> Any:
    """All that can be told of a value, so that nothing that differs is equal."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return "objects", value.shape, repr(value.tolist())
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.flags.writeable, value.tobytes()
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [exact(each) for each in value]
    return type(value), repr(value)


VALUES: dict[str, tuple[Any, Any]] = {
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float32": (pa.float32(), st.floats(width=32)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=5)),
    "bytes": (pa.large_binary(), st.binary(max_size=3)),
    "ragged": (pa.list_(pa.int32()), st.lists(st.integers(-9, 9), max_size=3)),
    "equal": (pa.list_(pa.float64()), st.just([1.5, -0.0])),
    "fixed": (pa.list_(pa.int16(), 2), st.lists(st.integers(-9, 9), min_size=2, max_size=2)),
    "gaps": (pa.large_list(pa.int64()), st.lists(st.none() | st.integers(-9, 9), max_size=2)),
    "nothing in it": (pa.int8(), st.none() | st.integers(-9, 9)),
    "gaps in floats": (pa.list_(pa.float32()), st.lists(st.none() | st.floats(width=32), max_size=2)),
    "flags": (pa.list_(pa.bool_()), st.lists(st.none() | st.booleans(), max_size=2)),
    "no list": (pa.list_(pa.int8()), st.none() | st.just([1, 2])),
}
NESTED = {
    "struct": (pa.struct([("a", pa.int8())]), st.just({"a": 1})),
    "words": (pa.list_(pa.string()), st.just(["a"])),
}


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Table]:
    names = draw(st.lists(st.sampled_from(sorted({**VALUES, **NESTED})), min_size=1, max_size=4, unique=True))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 40))
        columns = {}
        for name in names:
            kind, values = {**VALUES, **NESTED}[name]
            drawn = draw(st.lists(values, min_size=1, max_size=6))
            columns[name] = pa.array([drawn[n * n % len(drawn)] for n in range(count)], kind)
        made.append(pa.table(columns))
    return made


OPTIONS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 9),
        "shuffle_buffer_size": st.none() | st.integers(1, 30),
        "interleave": st.integers(1, 3),
        "drop_last": st.booleans(),
        "rank": st.sampled_from([0, 1]),
        "world_size": st.sampled_from([2, 3]),
        "uneven": st.sampled_from(["drop", "pad"]),
        "shuffle_buffer_bytes": st.sampled_from([None, None, 2000]),
    }
)


def batches_and_states(loader: AsyncDataLoader) -> list[tuple[Any, Any]]:
    return [(exact(batch), json.loads(json.dumps(loader.state_dict()))) for batch in loader]


@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore:the loader gives no batch")
@given(tables=tables(), options=OPTIONS, group_rows=st.integers(1, 12), pads=st.booleans(), data=st.data())
def test_columns_and_samples_are_the_same(
    tables: list[pa.Table], options: dict[str, Any], group_rows: int, pads: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, table in enumerate(tables):
            pq.write_table(table, Path(folder, f"{number}.parquet"), row_group_size=group_rows)
        source = ParquetShardedSource(folder)
        options["collate_fn"] = PadCollator(mask_field="mask") if pads else None
        expected = batches_and_states(AsyncDataLoader(SamplesOnly(source), prefetch_enabled=False, **options))
        got = batches_and_states(AsyncDataLoader(source, prefetch_workers=2, **options))
        assert got == expected
        if expected:  # and states of one go on with the other
            place = data.draw(st.integers(0, len(expected) - 1))
            resumed = AsyncDataLoader(source, prefetch_enabled=False, **options)
            resumed.load_state_dict(expected[place][1])
            after = [batch for batch, _ in batches_and_states(resumed)]
            assert after[: len(expected) - place - 1] == [batch for batch, _ in expected[place + 1 :]]


KINDS: dict[str, pa.Array] = {
    "int8": pa.array([1, -2, 3, 4, 5, 6, 7], pa.int8()),
    "uint64": pa.array([1, 2, 2**64 - 1, 4, 5, 6, 7], pa.uint64()),
    "float32": pa.array([0.1, -0.0, float("nan"), 3, 4, 5, 6], pa.float32()),
    "bool": pa.array([True, False] * 3 + [True]),
    "text": pa.array(["", "a", "ß" * 9, "\0", "x", "y", "z"]),
    "bytes": pa.array([b"", b"a\0", b"\xff", b"b", b"c", b"d", b"e"]),
    "gaps": pa.array([1, None, 3, 4, None, 6, 7]),
    "no text": pa.array(["a", None, "c", "d", "e", None, "g"]),
    "ragged": pa.array([[1], [], [2, 3], [4], [5], [6], [7]], pa.list_(pa.uint8())),
    "equal": pa.array([[n, n] for n in range(7)], pa.large_list(pa.float32())),
    "fixed": pa.array([[n, n] for n in range(7)], pa.list_(pa.int16(), 2)),
    "empty": pa.array([[]] * 7, pa.list_(pa.int64())),
    "gaps in lists": pa.array([[1], None, [2, None], [4], [5], [6], [7]], pa.list_(pa.int32())),
}


@pytest.mark.parametrize("column", KINDS.values(), ids=KINDS.keys())
def test_any_part_of_any_column(column: pa.Array) -> None:
    plain = pa.record_batch({"x": column})
    # A column that only samples can hold makes samples of all others.
    beside = pa.record_batch({"x": column, "struct": pa.array([{"a": 1}] * 7)})
    for begin in range(7):
        for end in range(begin + 1, 8):
            rows = block_of(plain.slice(begin, end - begin))
            samples = [{"x": each["x"]} for each in block_of(beside.slice(begin, end - begin)).samples()]
            assert exact(block_of(plain.slice(begin, end - begin)).samples()) == exact(samples)
            values = [each["x"].tolist() if isinstance(each["x"], np.ndarray) else each["x"] for each in samples]
            assert repr(values) == repr(column[begin:end].to_pylist())
            assert exact(collate_rows(rows)) == exact(collate_batch(samples))
            order = np.random.default_rng(begin).permutation(end - begin)
            picked = join_blocks([rows, rows]).pick(order + 1)
            doubled = [*samples, *samples]
            assert exact(collate_rows(picked)) == exact(collate_batch([doubled[place + 1] for place in order]))


def lists(count: int) -> pa.Table:
    return pa.table({"id": range(count), "ids": [list(range(n % 5)) for n in range(count)]})


def test_rows_without_transforms_stay_columns(tmp_path: Path) -> None:
    pq.write_table(lists(3000), tmp_path / "0.parquet")
    rows = ParquetShardedSource(tmp_path).open_shard(str(tmp_path / "0.parquet"))
    assert rows.take_block(2000).is_columnar
    assert next(rows)["id"] == 2000
    assert rows.take(2)[1]["id"] == 2002
    assert not rows.take_block(1).is_columnar  # of this block, samples were made
    assert rows.state_dict()["row"] == 2004


def test_a_collate_fn_of_yours_gets_samples(tmp_path: Path) -> None:
    pq.write_table(lists(10), tmp_path / "0.parquet")
    [batch] = AsyncDataLoader(ParquetShardedSource(tmp_path), 10, collate_fn=lambda samples: samples)
    assert [sample["id"] for sample in batch] == list(range(10))
    batch[3]["ids"][0] = 7  # an array that may be changed
    assert collate_batch(batch)["id"].tolist() == list(range(10))


def test_files_with_other_types_are_read_together(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int32(), pa.int64())):
        pq.write_table(pa.table({"x": pa.array(range(5), kind)}), tmp_path / f"{number}.parquet")
    loader = AsyncDataLoader(ParquetShardedSource(tmp_path), 10, shuffle_buffer_size=100)
    assert sorted(next(iter(loader))["x"].tolist()) == sorted([*range(5)] * 2)


@pytest.mark.parametrize("columns", [None, ["ids"]])
def test_arrow_files_and_conditions(columns: list[str] | None, tmp_path: Path) -> None:
    table = lists(100)
    with pa.OSFile(str(tmp_path / "0.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=30)
    condition = pc.field("id") >= 50
    for source in (
        ArrowShardedSource(tmp_path / "0.arrow", columns=columns),
        ParquetShardedSource(tmp_path / "0.parquet", columns=columns, filter=condition),
    ):
        [got] = [exact(batch) for batch in AsyncDataLoader(source, 200, drop_last=False)]
        [expected] = [exact(batch) for batch in AsyncDataLoader(SamplesOnly(source), 200, drop_last=False)]
        assert got == expected
        assert list(got) == (columns or ["id", "ids"])
