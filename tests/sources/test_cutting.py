"""Large files are cut at rows, so that several processes share one: the pieces give what the whole gives."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    CsvShardedSource,
    FilterByField,
    JsonShardedSource,
    ParquetShardedSource,
    ShardInfo,
    TextShardedSource,
)
from penstock.errors import TransformError
from penstock.formats.columnar.parquet import cut_groups
from penstock.sources.cutting import CutSource, find_cuts, plan_cuts
from penstock.sources.shard_info import Cut

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import ShardedSource

ROWS: list[dict[str, Any]] = [{"id": n, "text": f"w{n % 60} w2\n" if n % 9 else ""} for n in range(500)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.formats.lines.cut._PIECE", 256)


def write_jsonl(folder: Path) -> ShardedSource:
    blank = ["", "\r\n", "\n \n"]
    (folder / "big.jsonl").write_text("".join(json.dumps(row) + "\r\n" + blank[row["id"] % 3] for row in ROWS))
    return JsonShardedSource(str(folder / "big.jsonl"))


def write_csv(folder: Path) -> ShardedSource:
    quoted = "".join('{id},"{text}"\r\n'.format(**row) for row in ROWS)
    (folder / "big.csv").write_text("id,text\r\n" + quoted, newline="")
    return CsvShardedSource(str(folder / "big.csv"), types={"id": "int"})


def write_text(folder: Path) -> ShardedSource:
    (folder / "big.txt").write_text("\n".join("x" * (row["id"] % 30) for row in ROWS))
    return TextShardedSource(str(folder / "big.txt"))


def write_parquet(folder: Path) -> ShardedSource:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "big.parquet", row_group_size=40, compression="none")
    return ParquetShardedSource(str(folder / "big.parquet"))


def parts_of(source: ShardedSource, part_size: int) -> list[Cut]:
    infos = [source.get_shard_info(name) for name in source.shard_names]
    return plan_cuts(infos, part_size, lambda number, size: find_cuts(source, number, size))


@pytest.mark.parametrize("write", [write_jsonl, write_csv, write_text, write_parquet])
def test_pieces_are_the_whole_and_can_be_resumed(tmp_path: Path, write: Any) -> None:
    stored = write(tmp_path)
    source = stored.transform(FilterByField("id", lambda n: n % 7 > 0)) if write is not write_text else stored
    whole = list(source)
    parts = parts_of(source, 1000)
    assert len(parts) > 4
    tasks = CutSource(source, parts)
    pieces = [list(tasks.open_task(number)) for number in range(len(parts))]
    assert all(pieces)
    assert list(chain.from_iterable(pieces)) == whole
    for number in range(1, len(parts), 3):
        piece = pieces[number]
        for cut in range(len(piece) + 1):
            samples = tasks.open_task(number)
            assert samples.take(cut) == piece[:cut]
            again = Cut(*json.loads(json.dumps(parts[number].to_list())))
            resumed = CutSource(source, [again]).open_task(0)
            resumed.load_state_dict(json.loads(json.dumps(samples.state_dict())))
            assert list(resumed) == piece[cut:]


@pytest.mark.parametrize("write", [write_jsonl, write_csv, write_parquet])
def test_errors_name_the_row_of_the_file(tmp_path: Path, write: Any) -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        return {"inverse": 1 / (row["id"] - 433)}

    source = write(tmp_path).map(fails)
    with pytest.raises(TransformError, match=r"row 433 of .*big\."):
        tasks = CutSource(source, parts_of(source, 1000))
        for number in range(len(tasks.cuts)):
            list(tasks.open_task(number))


def test_what_cannot_be_cut_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    write_jsonl(tmp_path)
    assert len(parts_of(JsonShardedSource(str(path)), 2000)) > 4
    assert len(parts_of(JsonShardedSource(str(path), on_error="skip"), 2000)) == 1
    assert len(parts_of(JsonShardedSource(str(path)).map_batches(lambda rows: rows[:1]), 2000)) == 1
    (tmp_path / "array.json").write_text(json.dumps(ROWS))
    assert len(parts_of(JsonShardedSource(str(tmp_path / "array.json")), 2000)) == 1
    # Where there are many files there is no need to.
    many = [ShardInfo(number, str(number), None, 1 << 30) for number in range(200)]
    assert len(plan_cuts(many, 1 << 24, lambda number, size: pytest.fail("looked into a file"))) == 200


@given(
    groups=st.lists(st.tuples(st.integers(1, 50), st.floats(0, 300)), min_size=1, max_size=30),
    num_bytes=st.integers(1, 400),
)
def test_row_groups_are_cut_at_rows_that_grow(groups: list[tuple[int, float]], num_bytes: int) -> None:
    cuts = cut_groups(groups, num_bytes)
    assert cuts[0] == 0
    assert cuts == sorted(set(cuts))
    assert cuts[-1] < sum(rows for rows, _ in groups)
    starts = [sum(rows for rows, _ in groups[:number]) for number in range(len(groups))]
    for (rows, size), start in zip(groups, starts, strict=True):
        within = [cut for cut in cuts if start < cut < start + rows]
        assert len(within) <= max(0, min(3, size // num_bytes))
