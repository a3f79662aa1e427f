"""A real Spark on this machine runs conversions and writes its tables: one copy of each partition, signs kept."""

from __future__ import annotations

import sys
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Pipeline, StreamingDataset
from penstock.conversion.spark import SparkRows, dataframe_to_mds, infer_dataframe_schema
from penstock.errors import ConfigError
from tests.conversion.test_converting import converted, digests, write_rows
from tests.pipeline.texts import settings, write_texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore")]  # those of Spark itself


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        yield session
        session.stop()


def test_the_same_files_as_without_it(spark: Any, tmp_path: Path) -> None:
    for number in range(2):
        write_rows(tmp_path / "data", number)
    here = converted(tmp_path / "data", tmp_path / "here")
    there = converted(tmp_path / "data", tmp_path / "there", engine="spark")
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
    assert (there.num_rows, there.num_tasks) == (here.num_rows, here.num_tasks)


def test_a_table_becomes_a_dataset(spark: Any, tmp_path: Path) -> None:
    rows = [
        (number, -number, -number, f"text {number}", bytearray([number]), [number / 2] * 3) for number in range(100)
    ]
    kinds = "id long, tiny tinyint, small smallint, text string, raw binary, scores array<float>"
    table = spark.createDataFrame(rows, kinds).repartition(3, "id")
    assert dataframe_to_mds(table, mds_kwargs={"out": str(tmp_path / "out")}) == (str(tmp_path / "out"), "")
    samples = sorted(StreamingDataset(local=str(tmp_path / "out")), key=lambda sample: int(sample["id"]))
    for number, sample in enumerate(samples):
        assert (int(sample["tiny"]), int(sample["small"]), sample["raw"]) == (-number, -number, bytes([number]))
        np.testing.assert_array_equal(sample["scores"], np.full(3, number / 2, np.float32))
    assert len(samples) == 100
    with pytest.raises(ConfigError, match="is not empty"):
        dataframe_to_mds(table, mds_kwargs={"out": str(tmp_path / "out")})


def test_a_table_is_an_input_like_any_other(spark: Any, tmp_path: Path) -> None:
    table = spark.createDataFrame([(number, f"text {number}") for number in range(1000)], "id long, text string")
    table = table.repartition(3)
    splits = {"train": 0.8, "val": 0.2}
    report = penstock.convert(table, tmp_path / "out", splits=splits, transform=_even, progress=False)
    assert (report.num_tasks, report.num_rows, report.columns) == (3, 500, {"id": "int64", "text": "str"})
    kept = [int(each["id"]) for name in splits for each in StreamingDataset(local=str(tmp_path / "out" / name))]
    assert sorted(kept) == list(range(0, 1000, 2))
    again = penstock.convert(table, tmp_path / "out", splits=splits, transform=_even, progress=False)
    assert again.num_found == again.num_tasks
    flags = spark.createDataFrame([(True, None)], "flag boolean, number int")
    penstock.convert(flags, tmp_path / "flags", format="parquet", progress=False)
    assert pq.read_table(next((tmp_path / "flags").rglob("*.parquet"))).to_pylist() == [{"flag": True, "number": None}]


def _even(sample: dict[str, Any]) -> Any:
    return None if sample["id"] % 2 else sample


def test_spark_builds_a_cache(spark: Any, tmp_path: Path) -> None:
    data, made = write_texts(tmp_path), []
    for engine in ("local", "spark"):
        cache = {"cache_dir": str(tmp_path / engine), "part_size": 1000, "max_shard_size": 2000, "engine": engine}
        Pipeline.from_config(settings(data, cache=cache)).source().tokenize().cache().build()
        files = (tmp_path / engine).rglob("shard.*")
        made.append({path.relative_to(tmp_path / engine): path.read_bytes() for path in files})
    assert made[0] == made[1]
    assert len(made[0]) > 10


def test_a_partition_is_not_held_in_memory() -> None:
    """Rows are read as they are written: of a partition without an end, the first can be had."""
    source = SparkRows.__new__(SparkRows)
    source._make = partial(list)
    assert [*islice(source.samples_of({"id": number} for number in count()), 3)] == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_samples_of_a_function(spark: Any, tmp_path: Path) -> None:
    table = spark.createDataFrame([(number,) for number in range(10)], "id long")
    options = {"out": str(tmp_path / "out"), "columns": {"twice": "int"}, "compression": None}
    dataframe_to_mds(table, mds_kwargs=options, udf_iterable=_twice, udf_kwargs={"factor": 2})
    assert sorted(int(each["twice"]) for each in StreamingDataset(local=str(tmp_path / "out"))) == list(range(0, 20, 2))


def _twice(rows: Any, factor: int) -> Iterator[dict[str, int]]:
    yield from ({"twice": factor * int(number)} for number in rows["id"])


def test_what_has_no_encoding_is_said(spark: Any, tmp_path: Path) -> None:
    table = spark.createDataFrame([(True, None)], "flag boolean, number int")
    with pytest.raises(ConfigError, match="column 'flag' is of Spark's type boolean"):
        infer_dataframe_schema(table)
    with pytest.raises(ConfigError, match="no column 'none'"):
        infer_dataframe_schema(table, {"none": "int"})
    numbers = table.select("number")
    with pytest.raises(Exception, match="column 'number' has a null"):
        dataframe_to_mds(numbers, mds_kwargs={"out": str(tmp_path / "a")})
    dataframe_to_mds(numbers, mds_kwargs={"out": str(tmp_path / "b"), "nulls": "default"})
    assert int(StreamingDataset(local=str(tmp_path / "b"))[0]["number"]) == 0
