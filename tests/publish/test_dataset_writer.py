"""Saving: all rows and no others, real sizes, exact numbers of shards, whole or not at all, resumed after a kill."""

from __future__ import annotations

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
import pytest

from penstock import (
    ArrowShardedSource,
    JsonShardedSource,
    LimitedShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    ParquetShardedSource,
    StreamingDataset,
    create_writer,
    save_dataset,
    save_iterator,
)
from penstock.errors import (
    ColumnTypeError,
    ColumnValueError,
    ConfigError,
    EmptyDatasetError,
    ExtraColumnError,
    OutputExistsError,
    ResumeError,
    WriterClosedError,
)
from penstock.pipeline.save import save_by_column
from penstock.publish.dataset_writer import SaveSettings
from penstock.publish.target import LEDGER_NAME, FilesTarget, FolderTarget
from penstock.storage.base import open_store, resolve_store

if TYPE_CHECKING:
    from tests.servers.s3 import S3Server

FORMATS = ["parquet", "arrow", "jsonl", "mds"]


def rows(count: int = 1000, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"row {number} " * (number % 7 + 1)} for number in range(start, start + count)]


def source(count: int = 1000, num_shards: int = 3) -> MemoryShardedSource:
    return MemoryShardedSource(rows(count), num_shards=num_shards, fingerprint=f"rows-{count}")


def read(folder: Path, form: str) -> list[dict[str, Any]]:
    if form == "mds":
        return list(StreamingDataset(local=str(folder), shuffle=False))
    kind = {"parquet": ParquetShardedSource, "arrow": ArrowShardedSource, "jsonl": JsonShardedSource}[form]
    return list(kind(str(folder)))


@pytest.mark.parametrize(
    ("form", "compression"),
    [
        ("parquet", None),
        ("parquet", "zstd"),
        ("arrow", None),
        ("arrow", "lz4"),
        ("jsonl", None),
        ("jsonl", "gzip"),
        ("jsonl", "zstd"),
        ("mds", None),
        ("mds", "zstd"),
    ],
)
def test_what_is_saved_is_read_again(tmp_path: Path, form: Any, compression: str | None) -> None:
    out = tmp_path / "out"
    stats = save_dataset(source(), out, form, max_shard_size="1kb", compression=compression)
    assert read(out, form) == rows()
    assert stats.num_examples == 1000
    assert stats.num_shards == len(stats.output_paths) > 1
    assert stats.total_bytes == sum(Path(path).stat().st_size for path in stats.output_paths)
    manifest = json.loads((out / "_manifest.json").read_text())
    assert {file["name"] for file in manifest["files"]} == {p.name for p in out.iterdir()} - {"_manifest.json"}
    assert manifest["num_rows"] == sum(shard["rows"] for shard in manifest["shards"]) == 1000
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("form", ["jsonl", "mds"])
def test_shards_have_about_the_size_asked_for(tmp_path: Path, form: Any) -> None:
    stats = save_dataset(source(5000), tmp_path / "out", form, max_shard_size="20kb")
    sizes = [Path(path).stat().st_size for path in stats.output_paths]
    assert max(sizes) <= 20 * 1024 * 1.1
    assert min(sizes[:-1]) >= 20 * 1024 * 0.7


@pytest.mark.parametrize("form", FORMATS)
def test_the_number_of_shards_is_exact(tmp_path: Path, form: Any) -> None:
    stats = save_dataset(source(100), tmp_path / "a", form, num_shards=7, max_shard_size=1)
    assert stats.num_shards == 7
    assert read(tmp_path / "a", form) == rows(100)
    filtered = source(100).filter(lambda row: row["id"] % 2)  # of unknown length: counted by a pass
    assert save_dataset(filtered, tmp_path / "b", form, num_shards=4).num_shards == 4
    assert [row["id"] for row in read(tmp_path / "b", form)] == list(range(1, 100, 2))
    assert save_iterator(rows(10), tmp_path / "c", form, num_shards=3).num_shards == 3
    assert save_iterator(iter(rows(10)), tmp_path / "d", form, num_shards=3, num_rows=10).num_shards == 3


@pytest.mark.parametrize("given", [9, 11])
def test_another_number_of_rows_than_announced_publishes_nothing(tmp_path: Path, given: int) -> None:
    with pytest.raises(ConfigError, match="num_rows=10"):
        save_iterator(iter(rows(given)), tmp_path / "out", num_shards=10, num_rows=10)
    assert not (tmp_path / "out").exists()


def test_a_number_of_shards_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 rows cannot fill num_shards=4"):
        save_dataset(source(3), tmp_path / "out", num_shards=4)
    with pytest.raises(ConfigError, match="pass num_rows="):
        save_iterator(iter(rows(3)), tmp_path / "out", num_shards=2)


def test_what_is_there_is_refused_or_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    save_dataset(source(1000), out, max_shard_size="4kb")
    many = len(list(out.iterdir()))
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        save_dataset(source(10), out)
    assert len(read(out, "parquet")) == 1000
    save_dataset(source(10), out, overwrite=True)
    assert read(out, "parquet") == rows(10)  # and no old shards beside the new ones
    assert len(list(out.iterdir())) == 2 < many
    (out / "thesis.tex").write_text("precious")
    with pytest.raises(OutputExistsError, match="'thesis.tex', which is no part"):
        save_dataset(source(10), out, overwrite=True)
    assert (out / "thesis.tex").read_text() == "precious"
    with pytest.raises(ConfigError, match="choose one"):
        save_dataset(source(10), out, overwrite=True, resume=True)


def test_a_failure_leaves_the_old_dataset(tmp_path: Path) -> None:
    out = tmp_path / "out"
    save_dataset(source(10), out)
    with pytest.raises(ZeroDivisionError), create_writer(out, overwrite=True) as writer:
        writer.write({"id": 1})
        raise ZeroDivisionError
    assert read(out, "parquet") == rows(10)


def test_a_finished_writer_takes_no_more(tmp_path: Path) -> None:
    writer = create_writer(tmp_path / "out")
    writer.write({"id": 1})
    assert writer.finish().num_examples == 1
    with pytest.raises(WriterClosedError):
        writer.write({"id": 2})
    with pytest.raises(EmptyDatasetError, match="no row"):
        save_iterator([], tmp_path / "empty")


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with create_writer(tmp_path / "out") as writer:
        writer.write({"id": 1})
        with pytest.raises(OutputExistsError, match="another process is making"):
            create_writer(tmp_path / "out")


def test_columns_that_only_later_rows_have(tmp_path: Path) -> None:
    late = [{"a": 1}] * 300 + [{"a": 1, "b": 2}]
    with pytest.raises(ExtraColumnError, match="row 300 has a column 'b'"):
        save_iterator(late, tmp_path / "a")
    save_iterator(late, tmp_path / "b", schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    assert read(tmp_path / "b", "parquet")[-1] == {"a": 1, "b": 2}
    assert save_iterator([{"a": 1}, {"b": 2}], tmp_path / "c").num_examples == 2  # columns of all first rows
    with pytest.raises(ColumnTypeError, match="row 300: column 'a' does not fit int64"):
        save_iterator([{"a": 1}] * 300 + [{"a": "x"}], tmp_path / "d")
    with pytest.raises(ExtraColumnError, match="row 300: column 'b'"):
        save_iterator(late, tmp_path / "e", "mds")


def test_numpy_values_are_written(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"ids": np.arange(number, dtype=np.int32), "n": np.int64(number)} for number in range(1, 5)
    ]
    for form in FORMATS:
        save_iterator(samples, tmp_path / form, form)  # type: ignore[arg-type]
        again = read(tmp_path / form, form)
        assert [list(row["ids"]) for row in again] == [list(row["ids"]) for row in samples]
        assert [row["n"] for row in again] == [1, 2, 3, 4]
    with pytest.raises(ColumnTypeError, match="row 0 cannot be written as JSON: it holds a bytes"):
        save_iterator([{"x": b""}], tmp_path / "bytes", "jsonl")
    with pytest.raises(ColumnValueError, match="row 0 cannot be written as JSON"):
        save_iterator([{"x": float("nan")}], tmp_path / "nan", "jsonl")


def test_a_source_without_an_end_is_refused(tmp_path: Path) -> None:
    mixed = MixedShardedSource({"a": source(10), "b": source(20)})
    for endless in (mixed, mixed.map(dict)):
        with pytest.raises(ConfigError, match="never ends"):
            save_dataset(endless, tmp_path / "out")
    assert save_dataset(LimitedShardedSource(mixed, 100), tmp_path / "out").num_examples == 100


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "xml"}, "format='xml'"),
        ({"compression": "rar"}, "unknown to parquet"),
        ({"format": "jsonl", "compression": "snappy"}, "unknown to jsonl"),
        ({"max_shard_size": 0}, "no room"),
        ({"format": "jsonl", "schema": 1}, "schema= is for"),
        ({"columns": {}}, "columns= and hashes= are for"),
    ],
)
def test_wrong_settings(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        create_writer(tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_a_store(tmp_path: Path) -> None:
    url = "memory://saving/out"
    stats = save_dataset(source(), url, "jsonl", max_shard_size="8kb")
    assert stats.output_paths[0] == f"{url}/shard-00000.jsonl"
    assert list(JsonShardedSource(f"{url}/*.jsonl")) == rows()
    with pytest.raises(OutputExistsError):
        save_dataset(source(), url, "jsonl")
    save_dataset(source(10), url, "jsonl", overwrite=True)
    assert list(JsonShardedSource(f"{url}/*.jsonl")) == rows(10)


@pytest.mark.parametrize("form", ["parquet", "mds"])
def test_a_bucket(moto: S3Server, form: Any) -> None:
    moto.make_bucket("saving")
    url, options = f"s3://saving/{form}", moto.options

    def broken() -> Any:
        yield from rows()[:700]
        raise ZeroDivisionError

    def names() -> list[str]:
        return [info.key for info in open_store(resolve_store(url, options)).list()]

    def save(samples: Any, **how: Any) -> Any:
        return save_iterator(samples, url, form, max_shard_size="2kb", storage_options=options, **how)

    with pytest.raises(ZeroDivisionError):
        save(broken())
    assert "_unfinished.json" in names()
    assert not {"_manifest.json", "index.json"} & set(names())  # what says that a dataset is whole
    with pytest.raises(OutputExistsError, match="was not finished"):
        save(rows())
    stats = save(rows(), resume=True)
    assert "_manifest.json" in names()
    assert "_unfinished.json" not in names()
    if form == "mds":
        again = list(StreamingDataset(remote=url, shuffle=False, storage_options=options))
    else:
        again = list(ParquetShardedSource(f"{url}/*.parquet", storage_options=options))
    assert again == rows()
    assert stats.output_paths[0].startswith(url)
    assert save(rows(), resume=True) == stats
    assert save(rows(10), overwrite=True).num_examples == 10
    assert len(names()) == (3 if form == "mds" else 2)


def test_a_store_where_a_save_ended_before_its_first_shard_was_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://saving/noted"
    real = FilesTarget.write

    def fail(self: FilesTarget, name: str, data: bytes) -> None:
        if name == LEDGER_NAME and json.loads(data)["shards"]:
            raise ZeroDivisionError
        real(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(FilesTarget, "write", fail)
        save_dataset(source(), url, "jsonl", max_shard_size="8kb")
    assert save_dataset(source(), url, "jsonl", max_shard_size="8kb", resume=True).num_examples == 1000
    assert list(JsonShardedSource(f"{url}/*.jsonl")) == rows()


# --- Killed ---------------------------------------------------------------------------------------------------

SLOWLY = """
import sys, time
from penstock import MemoryShardedSource, save_dataset
samples = [{"id": n, "text": f"row {n} " * (n % 7 + 1)} for n in range(1000)]
def slowly(sample):
    time.sleep(0.002)
    return sample
source = MemoryShardedSource(samples, num_shards=3).map(slowly)
save_dataset(source, sys.argv[1], sys.argv[2], max_shard_size="2kb")
"""


@pytest.mark.parametrize("form", FORMATS)
def test_killed_midway(tmp_path: Path, form: Any) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", SLOWLY, str(out), form])
    ledger = tmp_path / ".out.saving" / "_unfinished.json"
    try:
        deadline = time.monotonic() + 60
        while not (ledger.exists() and len(json.loads(ledger.read_text())["shards"]) >= 3):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not out.exists()
    with pytest.raises(OutputExistsError, match="was not finished"):
        save_dataset(source(), out, form, max_shard_size="2kb")
    touched: list[int] = []

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        touched.append(sample["id"])
        return sample

    unmarked = MemoryShardedSource(rows(), num_shards=3).map(note)
    with pytest.raises(ResumeError, match="another max_shard_size"):
        save_dataset(unmarked, out, form, max_shard_size="3kb", resume=True)
    stats = save_dataset(unmarked, out, form, max_shard_size="2kb", resume=True)
    assert read(out, form) == rows()
    assert 0 < len(touched) < 1000  # what was written is not read again
    whole = save_dataset(MemoryShardedSource(rows(), num_shards=3), tmp_path / "whole", form, max_shard_size="2kb")
    assert [Path(path).name for path in stats.output_paths] == [Path(path).name for path in whole.output_paths]
    touched.clear()
    assert save_dataset(unmarked, out, form, max_shard_size="2kb", resume=True) == stats
    assert not touched
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("ends_after", [0, 1, 300, 999])
def test_a_save_that_fails_anywhere_goes_on(tmp_path: Path, form: Any, ends_after: int) -> None:
    def broken() -> Any:
        yield from rows()[:ends_after]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_iterator(broken(), tmp_path / "out", form, max_shard_size="2kb")
    assert not (tmp_path / "out").exists()
    save_iterator(iter(rows()), tmp_path / "out", form, max_shard_size="2kb", resume=True)
    assert read(tmp_path / "out", form) == rows()


def test_a_save_that_was_killed_before_its_manifest_is_only_published(tmp_path: Path, monkeypatch: Any) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FolderTarget, "publish", killed)
        save_dataset(source(), tmp_path / "out", max_shard_size="8kb")
    save_dataset(source(), tmp_path / "out", max_shard_size="8kb", resume=True)
    assert read(tmp_path / "out", "parquet") == rows()


def test_a_save_by_column_that_failed_between_its_shards_begins_anew(tmp_path: Path, monkeypatch: Any) -> None:
    settings = SaveSettings("jsonl", resume=True)
    source = MemoryShardedSource([{"n": n, "kind": n % 5} for n in range(100)], fingerprint="kinds")
    real, kept = FolderTarget.keep, []

    def fail(self: FolderTarget, names: Any) -> None:
        kept.extend(names)
        if [name for name in kept if name.startswith("shard")][1:]:
            raise ZeroDivisionError
        real(self, names)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(FolderTarget, "keep", fail)
        save_by_column(source, "kind", 3, tmp_path / "out", settings)
    assert save_by_column(source, "kind", 3, tmp_path / "out", settings).num_examples == 100
    assert sorted(row["n"] for row in read(tmp_path / "out", "jsonl")) == list(range(100))
