"""What users give by mistake, and one wrong file among many: one clear error each, which names the file."""

from __future__ import annotations

import json
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
