"""Conversions: the same bytes however they are run and whatever is killed; only what is missing is made again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import LocalDataset, MapBatchTransform, MemoryShardedSource, StreamingDataset
from penstock.conversion.converting import convert
from penstock.errors import (
    ConfigError,
    CorruptShardError,
    EmptyDatasetError,
    OutputExistsError,
    PenstockError,
    ResumeError,
    TransformError,
)
from penstock.publish.engines import DaskEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.conversion.plan import ConvertReport
    from tests.servers.s3 import S3Server

NUM_ROWS = 400
SMALL: dict[str, Any] = {"size_limit": "4kb", "task_size": "2kb", "progress": False}


def write_rows(folder: Path, number: int, num_rows: int = NUM_ROWS) -> Path:
    first = number * num_rows
    ids = list(range(first, first + num_rows))
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:02}.parquet"
    pq.write_table(pa.table({"id": ids, "text": [f"{i} " * (i % 40) for i in ids]}), path, row_group_size=50)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number in range(3):
        write_rows(folder, number)
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def ids_of(folder: Path) -> list[int]:
    return [int(sample["id"]) for sample in StreamingDataset(local=str(folder), batch_size=8)]


def converted(data: Path, out: Path, *, out_url: str | None = None, **options: Any) -> ConvertReport:
    return convert(str(data), out_url or out, **{**SMALL, "workers": 1, **options})


def test_rows_arrive_in_order_under_the_public_name(data: Path, tmp_path: Path) -> None:
    report = penstock.convert(str(data / "*.parquet"), tmp_path / "out", compression="zstd", hashes=["xxh64"], **SMALL)
    assert (report.num_rows, report.is_whole, report.splits) == (3 * NUM_ROWS, True, {"": 3 * NUM_ROWS})
    assert report.columns == {"id": "int", "text": "str"}
    assert report.num_tasks > 3
    assert ids_of(tmp_path / "out") == list(range(3 * NUM_ROWS))
    index = json.loads((tmp_path / "out/index.json").read_text())
    assert {shard["compression"] for shard in index["shards"]} == {"zstd"}
    assert all(shard["raw_data"]["hashes"].keys() == {"xxh64"} for shard in index["shards"])


# --- The same bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["two processes", "five processes", "job array", "store"])
def test_the_same_bytes_however_the_tasks_are_run(data: Path, tmp_path: Path, how: str) -> None:
    converted(data, tmp_path / "one")
    if how == "job array":
        for number in (2, 0, 1):
            part = converted(data, tmp_path / "out", task=(number, 3))
            assert not part.is_whole
            assert not (tmp_path / "out/index.json").exists()
        assert converted(data, tmp_path / "out", finish=True).num_found == part.num_tasks
    elif how == "store":
        converted(data, Path("file:" + str(tmp_path / "out")))
    else:
        converted(data, tmp_path / "out", workers=2 if how == "two processes" else 5)
    assert digests(tmp_path / "out") == digests(tmp_path / "one")


def test_files_that_are_well_compressed_make_several_tasks_and_growing_keeps_them(tmp_path: Path) -> None:
    folder, out = tmp_path / "data", tmp_path / "out"
    folder.mkdir()
    for number in range(4):
        text = ["the same words again and again " * 20] * 1000
        pq.write_table(pa.table({"id": range(1000), "text": text}), folder / f"{number}.parquet")
        if number < 2:
            assert (folder / f"{number}.parquet").stat().st_size < 64_000
    first = convert(folder, out, size_limit="64kb", workers=1, progress=False)
    assert first.num_tasks >= 16
    pq.write_table(pa.table({"id": range(50), "text": ["new"] * 50}), folder / "9.parquet")
    grown = convert(folder, out, size_limit="64kb", workers=1, progress=False)
    assert (grown.num_found, grown.num_tasks) == (first.num_tasks, first.num_tasks + 1)
    with pytest.raises(OutputExistsError, match="task_size was"):
        convert(folder, out, size_limit="64kb", task_size="1kb", workers=1, progress=False)


def test_dask_runs_the_tasks(data: Path, tmp_path: Path) -> None:
    converted(data, tmp_path / "one")
    converted(data, tmp_path / "dask", engine="dask", workers=2)
    assert digests(tmp_path / "dask") == digests(tmp_path / "one")
    converted(data, tmp_path / "dask", engine=DaskEngine(1))  # nothing is left to do, so no cluster is started


KILLED = """
import sys
from penstock.conversion.converting import convert
if __name__ == "__main__":
    convert(
        sys.argv[1], sys.argv[2], size_limit="4kb", task_size="2kb", progress=False, workers=int(sys.argv[3]), **{}
    )
"""


@pytest.mark.parametrize(
    ("workers", "kills", "how"),
    [
        (1, 3, {}),
        (2, 3, {"splits": {"train": 0.8, "val": 0.2}}),
        (2, 3, {"shuffle": True, "shuffle_memory": "16kb"}),
        pytest.param(1, 20, {}, marks=pytest.mark.soak),
        pytest.param(2, 20, {"splits": {"train": 0.8, "val": 0.2}}, marks=pytest.mark.soak),
        pytest.param(2, 20, {"shuffle": True, "shuffle_memory": "16kb"}, marks=pytest.mark.soak),
    ],
)
def test_killed_at_any_moment_and_begun_again(
    data: Path, tmp_path: Path, workers: int, kills: int, how: dict[str, Any]
) -> None:
    converted(data, tmp_path / "one", **how)
    out, rng = tmp_path / "out", np.random.default_rng(workers)
    script = tmp_path / "job.py"
    script.write_text(KILLED.replace("**{}", f"**{how}"))
    for _ in range(kills):
        job = subprocess.Popen([sys.executable, script, data, out, str(workers)], start_new_session=True)
        while job.poll() is None and not out.exists():
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.5)))
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        whole = all((out / name / "index.json").exists() for name in how.get("splits", [""]))
        whole = whole and not (out / "_shuffle").exists()
        assert not whole or digests(out) == digests(tmp_path / "one")  # nothing looks whole that is not
    converted(data, out, **how)
    assert digests(out) == digests(tmp_path / "one")


# --- Again --------------------------------------------------------------------------------------------------


def test_nothing_is_made_again(data: Path, tmp_path: Path) -> None:
    first = converted(data, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("shard.*")}
    again = converted(data, tmp_path)
    assert (first.num_found, again.num_found) == (0, again.num_tasks)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("shard.*")} == before


def test_files_that_changed_or_came_are_converted_anew(tmp_path: Path) -> None:
    folder, out = tmp_path / "data", tmp_path / "out"
    for number in range(2):
        write_rows(folder, number)
    before = converted(folder, out)
    write_rows(folder, 2)
    grown = converted(folder, out)
    assert grown.num_found == before.num_tasks
    assert ids_of(out) == list(range(3 * NUM_ROWS))
    pq.write_table(pa.table({"id": [-1] * 5, "text": ["new"] * 5}), folder / "01.parquet")
    converted(folder, out)
    assert ids_of(out) == [*range(NUM_ROWS), *[-1] * 5, *range(2 * NUM_ROWS, 3 * NUM_ROWS)]
    (folder / "02.parquet").unlink()
    converted(folder, out)
    assert ids_of(out) == [*range(NUM_ROWS), *[-1] * 5]
    converted(folder, tmp_path / "fresh")
    assert digests(out) == digests(tmp_path / "fresh")


def test_other_options_and_other_data_in_the_place_are_refused(data: Path, tmp_path: Path) -> None:
    converted(data, tmp_path / "out", compression="zstd")
    with pytest.raises(OutputExistsError, match=r"compression was 'zstd' and is None.*overwrite=True"):
        converted(data, tmp_path / "out")
    with pytest.raises(OutputExistsError, match="resume=True"):
        converted(data, tmp_path / "out", compression="zstd", resume=False)
    with pytest.raises(OutputExistsError, match="is not empty"):
        converted(data, data)
    converted(data, tmp_path / "out", overwrite=True)
    converted(data, tmp_path / "fresh")
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


# --- Transforms and splits ----------------------------------------------------------------------------------


def some(sample: dict[str, Any]) -> Any:
    if sample["id"] % 3 == 0:
        return None
    return [sample, sample] if sample["id"] % 3 == 1 else sample


def doubled(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**sample, "twice": 2 * sample["id"]} for sample in samples]


def test_a_function_gives_one_several_or_none(data: Path, tmp_path: Path) -> None:
    converted(data, tmp_path / "out", transform=some, workers=2)
    expected = [i for i in range(3 * NUM_ROWS) for _ in range(i % 3 and 3 - i % 3)]
    assert ids_of(tmp_path / "out") == expected
    converted(data, tmp_path / "batch", transform=MapBatchTransform(doubled, 7))
    assert StreamingDataset(local=str(tmp_path / "batch"))[5]["twice"] == 10


@pytest.mark.parametrize("split_by", [None, "id"])
def test_splits_part_the_rows_and_none_changes_sides(tmp_path: Path, split_by: str | None) -> None:
    folder, sides = tmp_path / "data", {}
    write_rows(folder, 0)
    for num_files in (1, 2):
        out = tmp_path / f"out{num_files}"
        report = converted(folder, out, splits={"train": 0.8, "val": 0.2}, split_by=split_by)
        found = {name: ids_of(out / name) for name in ("train", "val")}
        assert sorted(found["train"] + found["val"]) == list(range(num_files * NUM_ROWS))
        assert report.splits == {name: len(ids) for name, ids in found.items()}
        assert 0.7 < len(found["train"]) / (num_files * NUM_ROWS) < 0.9
        sides[num_files] = {number: name for name, ids in found.items() for number in ids}
        write_rows(folder, 1)
    assert sides[2].items() >= sides[1].items()


@pytest.mark.parametrize("splits", [None, {"train": 0.8, "val": 0.2}])
def test_rows_are_shuffled_over_all_tasks(data: Path, tmp_path: Path, splits: dict[str, float] | None) -> None:
    how: dict[str, Any] = {"shuffle": True, "shuffle_memory": "16kb", "splits": splits, "seed": 3}
    plain = converted(data, tmp_path / "plain", splits=splits, seed=3)
    report = converted(data, tmp_path / "out", **how)
    assert (report.splits, report.num_rows) == (plain.splits, 3 * NUM_ROWS)
    assert report.num_tasks > 3
    for name in report.splits:
        ids = ids_of(tmp_path / "out" / name)
        assert sorted(ids) == sorted(ids_of(tmp_path / "plain" / name))
        first = np.mean(ids[: len(ids) // 4])
        assert abs(float(first) - 1.5 * NUM_ROWS) < 0.3 * NUM_ROWS
        assert np.abs(np.corrcoef(ids, range(len(ids)))[0, 1]) < 0.2
    assert not (tmp_path / "out/_shuffle").exists()
    again = converted(data, tmp_path / "out", **how)
    assert again.num_found == again.num_tasks
    converted(data, tmp_path / "two", workers=2, **how)
    assert digests(tmp_path / "two") == digests(tmp_path / "out")
    other = converted(data, tmp_path / "other", **{**how, "seed": 4})
    assert digests(tmp_path / "other") != digests(tmp_path / "out")
    assert other.num_rows == 3 * NUM_ROWS


def test_what_shuffling_leaves_to_others_is_said(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="writes MDS"):
        converted(data, tmp_path / "out", shuffle=True, format="parquet")
    with pytest.raises(ConfigError, match="two passes"):
        converted(data, tmp_path / "out", shuffle=True, task=(0, 2))
    with pytest.raises(ResumeError, match="task 0 of .* is not done"):
        converted(data, tmp_path / "none", finish=True)


# --- What is wrong ------------------------------------------------------------------------------------------


def fails_on_some(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] % 100 == 7:
        raise ValueError("no sevens")
    return sample


def test_inputs_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="nothing-here"):
        convert(tmp_path / "nothing-here", tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_of_a_file_that_is_damaged_the_others_are_kept(tmp_path: Path) -> None:
    for number in range(4):
        write_rows(tmp_path / "data", number)
    damaged = tmp_path / "data/02.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:200] + bytes(400) + whole[600:])
    with pytest.raises(PenstockError, match=r"02\.parquet"):
        converted(tmp_path / "data", tmp_path / "out")
    assert not (tmp_path / "out/index.json").exists()
    damaged.write_bytes(whole)
    mended = converted(tmp_path / "data", tmp_path / "out")
    assert mended.num_found >= mended.num_tasks // 2
    assert ids_of(tmp_path / "out") == list(range(4 * NUM_ROWS))


FULL = """
import resource, signal, sys
from penstock.conversion.converting import convert
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5500, 5500))
convert(sys.argv[1], sys.argv[2], size_limit=sys.argv[3], task_size="2kb", progress=False, workers=1)
"""


def test_a_disk_that_takes_no_more_is_one_error(data: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(FULL)
    job = [sys.executable, str(tmp_path / "job.py"), str(data), str(tmp_path / "out"), "16kb"]
    done = subprocess.run(job, capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stderr.count("Traceback") <= 2
    assert "too large" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out/index.json").exists()
    found = convert(data, tmp_path / "out", size_limit="16kb", task_size="2kb", progress=False, workers=1)
    assert found.num_rows == 3 * NUM_ROWS


def test_a_store_that_refuses_is_one_error(data: Path, tmp_path: Path, moto: S3Server) -> None:
    with pytest.raises(PenstockError, match="not-there"):
        converted(data, Path("out"), out_url="s3://not-there/out", storage_options={"s3": moto.options})
    moto.make_bucket("converted")
    report = converted(data, Path("out"), out_url="s3://converted/out", storage_options={"s3": moto.options})
    assert (report.num_rows, report.is_whole) == (3 * NUM_ROWS, True)
    with StreamingDataset(remote="s3://converted/out", storage_options=moto.options, batch_size=8) as dataset:
        assert sorted(int(sample["id"]) for sample in dataset) == list(range(3 * NUM_ROWS))


def test_a_bad_row_is_an_error_that_names_it(data: Path, tmp_path: Path) -> None:
    with pytest.raises(TransformError, match=r"row 7 of .*00\.parquet: ValueError: no sevens"):
        converted(data, tmp_path / "out", transform=fails_on_some)
    assert not (tmp_path / "out/index.json").exists()


def test_bad_rows_are_left_out_and_listed(tmp_path: Path) -> None:
    rows = [json.dumps({"id": i}) for i in range(300)]
    rows[50] = "{broken"
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    source, options = str(tmp_path / "data.jsonl"), {**SMALL, "task_size": "1kb", "workers": 1}
    with pytest.raises(CorruptShardError, match=r"data\.jsonl"):
        convert(source, tmp_path / "out", **options)
    report = convert(source, tmp_path / "skip", on_error="skip", transform=fails_on_some, **options)
    left_out = {7, 50, 107, 207}
    assert ids_of(tmp_path / "skip") == [i for i in range(300) if i not in left_out]
    assert report.num_rejected == len(left_out)
    told = [json.loads(line) for name in report.rejected for line in Path(name).read_text().splitlines()]
    assert [each["where"].partition(" of ")[0] for each in told] == [f"row {number}" for number in sorted(left_out)]
    assert "no sevens" in told[0]["error"]
    again = convert(source, tmp_path / "skip", on_error="skip", transform=fails_on_some, **options)
    assert (again.num_found, again.num_rejected) == (again.num_tasks, len(left_out))


@pytest.mark.parametrize("format_name", ["mds", "parquet"])
def test_rows_that_do_not_fit_the_columns_are_left_out(tmp_path: Path, format_name: str) -> None:
    rows: list[dict[str, Any]] = [{"id": number} for number in range(1000)]
    rows[700]["id"] = "many"
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {**SMALL, "format": format_name, "workers": 1}
    with pytest.raises(Exception, match=r"id|many"):
        convert(str(tmp_path / "data.jsonl"), tmp_path / "out", **options)
    report = convert(str(tmp_path / "data.jsonl"), tmp_path / "skip", on_error="skip", **options)
    assert (report.num_rows, report.num_rejected) == (999, 1)
    assert "row 700 of" in Path(report.rejected[0]).read_text()


def test_no_row_at_all_is_an_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptyDatasetError):
        converted(data, tmp_path / "out", transform=lambda sample: None)


def test_a_dry_run_writes_nothing(data: Path, tmp_path: Path) -> None:
    report = converted(data, tmp_path / "out", dry_run=True)
    assert [sample["id"] for sample in report.samples] == [0, 1, 2]
    assert report.num_tasks > 3
    assert not (tmp_path / "out").exists()


# --- Other formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_name", ["parquet", "arrow", "jsonl", "webdataset"])
def test_exports_are_read_back(data: Path, tmp_path: Path, format_name: str) -> None:
    converted(data, tmp_path / "mds")
    converted(tmp_path / "mds", tmp_path / "out", format=format_name)
    with StreamingDataset(remote=str(tmp_path / "out"), batch_size=8) as dataset:
        assert sorted(int(sample["id"]) for sample in dataset) == list(range(3 * NUM_ROWS))
    inputs = tmp_path / ("out/*/*.tar" if format_name == "webdataset" else "out")
    assert converted(inputs, tmp_path / "back").num_rows == 3 * NUM_ROWS


def three() -> Iterator[dict[str, Any]]:
    yield from ({"id": number} for number in range(3))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ({"id": number} for number in range(6)), id="generator"),
        pytest.param(lambda: [{"id": number} for number in range(6)], id="list"),
        pytest.param(lambda: [three, lambda: ({"id": 3 + each["id"]} for each in three())], id="functions"),
        pytest.param(lambda: pa.table({"id": range(6)}), id="arrow"),
        pytest.param(lambda: penstock.MemoryShardedSource([{"id": number} for number in range(6)]), id="source"),
    ],
)
def test_all_that_gives_rows_is_converted(tmp_path: Path, make: Any) -> None:
    convert(make(), tmp_path / "out", progress=False, workers=1)
    assert ids_of(tmp_path / "out") == list(range(6))


def test_tables_of_polars(tmp_path: Path) -> None:
    import polars as pl  # not where engines are tested, which take helpers from here

    convert(pl.DataFrame({"id": range(6)}), tmp_path / "out", progress=False, workers=1)
    assert ids_of(tmp_path / "out") == list(range(6))


def test_a_sample_that_cannot_be_written_is_named_by_its_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"id": number, **({} if number == 70 else {"n": 1})}) + "\n" for number in range(90))
    )
    with pytest.raises(TransformError, match=r"row 70 of .*rows\.jsonl cannot be converted: column 'n' is missing"):
        converted(path, tmp_path / "out", columns={"id": "int", "n": "int"})
    assert not (tmp_path / "out/index.json").exists()


@pytest.mark.parametrize("make", [list, iter, MemoryShardedSource], ids=["list", "iterator", "source"])
def test_rows_that_nothing_tells_from_others_do_not_go_on(tmp_path: Path, make: Any) -> None:
    rows = [{"id": number} for number in range(8)]
    penstock.convert(make(rows[:5]), tmp_path / "out", workers=1)
    with pytest.raises(OutputExistsError, match="nothing tells whether its rows are these.*overwrite=True"):
        penstock.convert(make(rows), tmp_path / "out", workers=1)
    report = penstock.convert(make(rows), tmp_path / "out", workers=1, overwrite=True)
    assert report.num_rows == len(LocalDataset(tmp_path / "out")) == 8
