"""Going to a row, or to a position, does not read what lies before it, wherever the format says where rows are."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import (
    ArrowShardedSource,
    CsvShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    ShardedSource,
    TextShardedSource,
)
from penstock.errors import ConfigError, CorruptShardError
from penstock.scan.objects import ScannedObject
from tests.sources.cutting import plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.types import Span

NUM_ROWS, GROUP = 6000, 500
ROWS: list[dict[str, Any]] = [{"n": n, "text": f"{n}" + "x" * 2000, "kind": f"k{n % 3}"} for n in range(NUM_ROWS)]


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=GROUP, compression="none", use_dictionary=False)
    return sink.getvalue()


def arrow(new: Any) -> bytes:
    table = pa.Table.from_pylist(ROWS)
    kinds = table["kind"].combine_chunks().dictionary_encode()
    table = table.set_column(2, "kind", kinds)
    sink = io.BytesIO()
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=GROUP)
    return sink.getvalue()


def lines() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def csv() -> bytes:
    return b"n,text,kind\n" + "".join(f"{row['n']},{row['text']},{row['kind']}\n" for row in ROWS).encode()


KINDS: dict[str, tuple[Callable[[], bytes], type[ShardedSource], str, bool]] = {  # and whether any row can be gone to
    "parquet": (parquet, ParquetShardedSource, "a.parquet", True),
    "arrow file": (lambda: arrow(pa.ipc.new_file), ArrowShardedSource, "a.arrow", True),
    "arrow stream": (lambda: arrow(pa.ipc.new_stream), ArrowShardedSource, "a.arrow", True),
    "json lines": (lines, JsonShardedSource, "a.jsonl", False),
    "json array": (lambda: json.dumps(ROWS).encode(), JsonShardedSource, "a.json", False),
    "csv": (csv, CsvShardedSource, "a.csv", False),
    "text": (lines, TextShardedSource, "a.txt", False),
}


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the bytes that are read of files."""
    counts: list[int] = []
    read = ScannedObject._piece

    def counted(opened: ScannedObject, span: Span) -> bytes:
        counts.append(len(span))
        return read(opened, span)

    monkeypatch.setattr(ScannedObject, "_piece", counted)
    monkeypatch.setattr(ScannedObject, "local_path", lambda _: None)  # as if it were in a store
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_before_is_not_read(kind: str, tmp_path: Path, num_read: list[int]) -> None:
    content, make, name, by_row = KINDS[kind]
    path = str(tmp_path / name)
    (tmp_path / name).write_bytes(content())
    size = (tmp_path / name).stat().st_size
    source = make(path)  # type: ignore[call-arg]
    whole = source.open_shard(path)
    whole.take(NUM_ROWS - 100)
    state = whole.state_dict()
    rest = plain(whole)
    if by_row:
        num_read.clear()
        assert plain(make(path).open_shard_at_row(path, row=NUM_ROWS - 100)) == rest  # type: ignore[call-arg]
        assert sum(num_read) < size / 4
        assert not list(source.open_shard_at_row(path, row=NUM_ROWS))
    resumed = make(path).open_shard(path)  # type: ignore[call-arg]
    num_read.clear()
    resumed.load_state_dict(state)
    assert plain(resumed) == rest
    assert sum(num_read) < size / 4


def test_columns_of_arrow_that_are_not_wanted_are_not_read(tmp_path: Path, num_read: list[int]) -> None:
    (tmp_path / "a.arrow").write_bytes(arrow(pa.ipc.new_file))
    source = ArrowShardedSource(str(tmp_path), columns=["kind", "n"])
    assert list(source) == [{"kind": row["kind"], "n": row["n"]} for row in ROWS]
    assert sum(num_read) < (tmp_path / "a.arrow").stat().st_size / 4


def test_damaged_arrow_is_an_error_and_not_other_rows(tmp_path: Path) -> None:
    content = bytearray(arrow(pa.ipc.new_file))
    at = content.index(b"700xxx")  # in the second batch
    content[at : at + 3] = b"\xff\xff\xff"
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(CorruptShardError, match=r"a\.arrow, row 700, cannot be read: .*UTF8"):
        list(ArrowShardedSource(str(tmp_path)))


def test_row_groups_that_cannot_fit_a_condition_are_not_read(tmp_path: Path, num_read: list[int]) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet())
    path = str(tmp_path / "a.parquet")
    source = ParquetShardedSource(path, filter=(pc.field("n") >= 5700) & (pc.field("kind") == "k0"))
    wanted = [row for row in ROWS if row["n"] >= 5700 and row["kind"] == "k0"]
    assert list(source) == wanted
    assert sum(num_read) < (tmp_path / "a.parquet").stat().st_size / 4
    # Rows are still numbered as they are stored, and positions stay right.
    assert list(source.open_shard_at_row(path, row=5800)) == [row for row in wanted if row["n"] >= 5800]
    samples = source.open_shard(path)
    samples.take(10)
    resumed = source.open_shard(path)
    resumed.load_state_dict(samples.state_dict())
    assert list(resumed) == wanted[10:]
    first = ParquetShardedSource(path, filter=pc.field("n") < 3)
    assert [row["n"] for row in first.open_shard_at_row(path, row=1)] == [1, 2]
    assert not list(first.open_shard_at_row(path, row=700))


def test_a_condition_that_does_not_fit_is_an_error_before_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet())
    path = str(tmp_path / "a.parquet")
    assert [row["n"] for row in ParquetShardedSource(path, filter=[("n", "<", 3), ("kind", "!=", "k1")])] == [0, 2]
    with pytest.raises(ConfigError, match=r"a\.parquet.*No match for FieldRef.Name\(score\)"):
        ParquetShardedSource(path, filter=pc.field("score") > 3).open_shard(path)
    with pytest.raises(ConfigError, match="is not a condition"):
        ParquetShardedSource(path, filter="n > 3")
