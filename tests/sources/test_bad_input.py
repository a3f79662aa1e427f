"""What users give by mistake, and one wrong file among many: one clear error each, which names the file."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    ArrowShardedSource,
    AsyncDataLoader,
    CsvShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    ShardedSource,
    expand_data_files,
)
from penstock.errors import ConfigError, CorruptShardError, SampleIndexError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write(folder: Path, *tables: dict[str, Any]) -> str:
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return f"{folder}/*.parquet"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": [3], "c": ["z"]}, r"1\.parquet has the columns a, c, but .*0\.parquet has a, b: pass columns="),
        ({"a": ["x"], "b": ["z"]}, r"1\.parquet has string in its column 'a', but .*0\.parquet has int64"),
        ({"a": [[1]], "b": ["z"]}, r"1\.parquet has list<.*> in its column 'a'"),
    ],
)
def test_one_of_many_parquet_files_with_another_schema_is_named(
    other: dict[str, Any], message: str, tmp_path: Path
) -> None:
    files = write(tmp_path, {"a": [1, 2], "b": ["x", "y"]}, other, {"a": [4], "b": ["u"]})
    with pytest.raises(CorruptShardError, match=message):
        list(ParquetShardedSource(files))
    with pytest.raises(CorruptShardError, match=message):
        list(AsyncDataLoader(ParquetShardedSource(files), batch_size=2))


def test_schemas_may_differ_in_what_samples_do_not_show(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        {"a": pa.array([1], pa.int64()), "b": pa.array(["x"]), "l": pa.array([[1]], pa.list_(pa.int32()))},
        {"l": pa.array([[2]], pa.list_(pa.int64())), "b": pa.array([None], pa.null()), "a": pa.array([2], pa.int32())},
        {"a": pa.array([3]), "b": pa.array(["y"], pa.large_string()).dictionary_encode(), "l": pa.array([[3]])},
    )
    assert [(row["a"], row["b"]) for row in ParquetShardedSource(files)] == [(1, "x"), (2, None), (3, "y")]
    more = write(tmp_path, {"a": [1], "b": ["x"]}, {"a": [2], "c": [1.0]}, {"a": [3], "d": ["y"]})
    assert list(ParquetShardedSource(more, columns=["a"])) == [{"a": 1}, {"a": 2}, {"a": 3}]


def write_arrow(path: Path, table: pa.Table, *, stream: bool = False) -> None:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


@pytest.mark.parametrize("stream", [False, True])
def test_one_of_many_arrow_files_with_another_schema_is_named(stream: bool, tmp_path: Path) -> None:
    write_arrow(tmp_path / "0.arrow", pa.table({"a": [1, 2], "b": ["x", "y"]}), stream=stream)
    write_arrow(tmp_path / "1.arrow", pa.table({"a": [1, 2], "c": ["x", "y"]}), stream=stream)
    source = ArrowShardedSource(str(tmp_path))
    with pytest.raises(CorruptShardError, match=r"1\.arrow has the columns a, c, but .*0\.arrow has a, b"):
        list(source)
    with pytest.raises(CorruptShardError, match=r"1\.arrow has the columns a, c"):
        list(source.open_shard_at_row(source.shard_names[1], row=1))
    assert [row["a"] for row in ArrowShardedSource(str(tmp_path), columns=["a"])] == [1, 2, 1, 2]
    write_arrow(tmp_path / "1.arrow", pa.table({"a": ["1"], "b": ["x"]}), stream=stream)
    with pytest.raises(CorruptShardError, match=r"1\.arrow has string in its column 'a', but .*0\.arrow has int64"):
        list(ArrowShardedSource(str(tmp_path)))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("shape", ["text", "list", "large"])
def test_text_that_is_not_utf8_is_told_with_file_and_row(kind: str, shape: str, tmp_path: Path) -> None:
    stored = pa.array([b"fine"] * 9 + [b"\xff\xfe"] + [b"fine"] * 5, pa.large_binary() if shape == "large" else None)
    text = stored.view(pa.large_string() if shape == "large" else pa.string())
    if shape == "list":
        text = pa.ListArray.from_arrays(pa.array(range(16), pa.int32()), text)
    table, path = pa.table({"n": range(15), "s": text}), tmp_path / f"bad.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=4)
    else:
        write_arrow(path, table)
    source = (ParquetShardedSource if kind == "parquet" else ArrowShardedSource)(str(path))
    rows = "rows 8 to 11" if shape == "list" else "row 9"
    for begin in (0, 9):
        with pytest.raises(CorruptShardError, match=rf"bad\.{kind}, {rows}, cannot be read: .*UTF8") as told:
            list(source.open_shard_at_row(str(path), row=begin))
        assert told.value.facts["row"] == (8 if shape == "list" else 9)
    with pytest.raises(CorruptShardError, match=rf"bad\.{kind}, {rows}"):
        list(AsyncDataLoader(source, batch_size=2))
    assert len(list(source.open_shard_at_row(str(path), row=12))) == 3
    assert [row["n"] for row in type(source)(str(path), columns=["n"])] == list(range(15))


def test_options_for_a_file_of_this_machine_are_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a": [1]})
    monkeypatch.chdir(tmp_path)
    for given in ("0.parquet", "*.parquet"):
        with pytest.raises(ConfigError, match=rf"^{re.escape(given)} takes no storage_options, but got key"):
            ParquetShardedSource(given, storage_options={"key": "x"})
    assert len(ParquetShardedSource("0.parquet", storage_options={"s3": {"key": "x"}})) == 1


def test_one_of_many_csv_files_with_another_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    (tmp_path / "1.csv").write_text("b,a\n1,2\n")
    (tmp_path / "2.csv").write_text("a,c\n1,2\n")
    with pytest.raises(CorruptShardError, match=r"2\.csv has the columns a, c, but .*0\.csv has a, b"):
        list(CsvShardedSource(str(tmp_path)))
    assert [row["a"] for row in CsvShardedSource(str(tmp_path), columns=["a"])] == ["1", "2", "1"]
    (tmp_path / "0.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(CorruptShardError, match=r"0\.csv has several columns called 'a'"):
        list(CsvShardedSource(str(tmp_path / "0.csv")))


def test_a_string_is_no_list_of_columns(tmp_path: Path) -> None:
    kinds: list[Callable[..., ShardedSource]] = [
        ParquetShardedSource,
        ArrowShardedSource,
        JsonShardedSource,
        CsvShardedSource,
    ]
    for make in kinds:
        with pytest.raises(ConfigError, match="columns='text' is a string: pass a list"):
            make(str(tmp_path), columns="text")


def test_rows_may_be_numbers_of_numpy_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(5)))
    write(tmp_path, {"n": list(range(5))})
    for source in (JsonShardedSource(str(tmp_path)), ParquetShardedSource(str(tmp_path))):
        [name] = source.shard_names
        samples = source.open_shard_at_row(name, row=np.int64(3))  # type: ignore[arg-type]
        assert json.loads(json.dumps(samples.state_dict()))["row"] == 3
        assert list(samples) == [{"n": 3}, {"n": 4}]
        wrong: Any
        for wrong in ("3", 3.0, None):
            with pytest.raises(ConfigError, match="is not a whole number"):
                source.open_shard_at_row(name, row=wrong)
        with pytest.raises(SampleIndexError):
            list(source.open_shard_at_row(name, row=6))


def test_numbers_in_names_are_sorted_as_numbers(tmp_path: Path) -> None:
    for name in ("part-10.txt", "part-9.txt", "part-2.txt", "b/part-1.txt", "part-02.txt", "part.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    names = ["part-02.txt", "part-2.txt", "part-9.txt", "part-10.txt", "part.txt"]
    assert expand_data_files(f"{tmp_path}/*.txt") == [f"{tmp_path}/{name}" for name in names]
    assert expand_data_files(str(tmp_path))[0] == f"{tmp_path}/b/part-1.txt"
