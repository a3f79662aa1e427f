"""Writers as their users meet them: arguments, output places, safety, errors."""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import CSVWriter, JSONWriter, LocalDataset, MDSWriter, TSVWriter, XSVWriter
from penstock.errors import (
    BadSampleError,
    ColumnNameError,
    ColumnRangeError,
    ColumnSizeError,
    ColumnTypeError,
    ColumnValueError,
    ConfigError,
    EncodingConfigError,
    ExtraColumnError,
    MissingColumnError,
    OutputExistsError,
    PenstockError,
    StoreError,
    UnknownEncodingError,
    UnknownSchemeError,
    WriterClosedError,
)
from penstock.index.catalog import parse_index
from penstock.status_line import ProgressBar, progress_line
from penstock.storage.base import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.publish.writer import Writer
    from penstock.types import Sample

COLUMNS = {"id": "int", "text": "str"}
TEXT_COLUMNS = {"count": "int", "name": "str", "score": "float"}


def rows(count: int, start: int = 0) -> list[Sample]:
    return [{"id": i, "text": f"row {i} " * 5} for i in range(start, start + count)]


def write(out: Any, samples: list[Sample], **options: Any) -> None:
    with MDSWriter(**{"out": out, "columns": COLUMNS, "size_limit": 1000, **options}) as writer:
        for sample in samples:
            writer.write(sample)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "data", rows(100))
    dataset = LocalDataset(tmp_path / "data")
    assert list(dataset) == rows(100)
    assert len(dataset.index.shards) > 5


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (JSONWriter, {}),
        (CSVWriter, {"newline": "\r\n"}),
        (TSVWriter, {}),
        (XSVWriter, {"separator": "||"}),
    ],
)
@pytest.mark.parametrize("compression", [None, "zstd:1"])
def test_text_writers(tmp_path: Path, kind: type[MDSWriter], options: dict[str, Any], compression: str | None) -> None:
    samples = [{"count": i, "name": f"n {i} é", "score": i / 4} for i in range(50)]
    with kind(
        out=tmp_path, columns=TEXT_COLUMNS, size_limit=200, hashes="md5", compression=compression, **options
    ) as writer:
        for sample in samples:
            writer.write(sample)
    dataset = LocalDataset(tmp_path, validate_hash="md5")
    assert list(dataset) == samples
    columns = dataset.read_columns(range(50))
    assert isinstance(columns["count"], np.ndarray)
    assert columns["count"].tolist() == list(range(50))
    assert columns["name"] == [sample["name"] for sample in samples]


def test_bytes_do_not_depend_on_timing(tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("many", 7)):
        write(tmp_path / name, rows(200), compression="gz", hashes=["xxh64", "sha1"], max_workers=workers)
    assert files(tmp_path / "one") == files(tmp_path / "many")


def test_a_sample_may_be_changed_after_write(tmp_path: Path) -> None:
    array, items = np.zeros(4, np.int32), [0]
    sample = {"array": array, "items": items}
    with MDSWriter(out=tmp_path, columns={"array": "ndarray:int32:4", "items": "json"}) as writer:
        for i in range(10):
            array[:], items[0] = i, i
            writer.write(sample)
    dataset = LocalDataset(tmp_path)
    assert [(int(s["array"][3]), s["items"]) for s in dataset] == [(i, [i]) for i in range(10)]


def test_no_samples_give_an_empty_index(tmp_path: Path) -> None:
    write(tmp_path / "data", [])
    assert files(tmp_path / "data") == {"index.json": b'{"shards": [], "version": 2}'}


@pytest.mark.parametrize("limit", [None, 0])
def test_no_size_limit_is_one_shard(tmp_path: Path, limit: int | None) -> None:
    write(tmp_path, rows(100), size_limit=limit)
    index = parse_index((tmp_path / "index.json").read_bytes(), "")
    assert [shard.num_samples for shard in index.shards] == [100]
    assert index.shards[0].layout.size_limit is None


@pytest.mark.parametrize("limit", ["2KB", "2kb", " 2048b ", 2048, 2048.9])
def test_size_limits_as_people_write_them(tmp_path: Path, limit: Any) -> None:
    write(tmp_path, rows(100), size_limit=limit)
    index = parse_index((tmp_path / "index.json").read_bytes(), "")
    assert index.shards[0].layout.size_limit == 2048
    assert all(shard.parts[0].raw.num_bytes <= 2048 for shard in index.shards)


@pytest.mark.parametrize("hashes", ["sha1", ["sha1"], ("xxh64", "sha1", "sha1")])
def test_hashes_as_one_name_or_any_list(tmp_path: Path, hashes: Any) -> None:
    write(tmp_path, rows(10), hashes=hashes)
    entry = json.loads((tmp_path / "index.json").read_bytes())["shards"][0]
    assert entry["hashes"] == sorted({hashes} if isinstance(hashes, str) else set(hashes))


# --- Columns left out ---------------------------------------------------------------------------------------


def test_columns_are_taken_from_the_first_sample(tmp_path: Path) -> None:
    sample = {
        "a": 1,
        "b": "x",
        "c": b"y",
        "d": 0.5,
        "e": np.float32(2),
        "f": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "g": {"k": [1, None]},
        "h": True,
    }
    with MDSWriter(out=tmp_path) as writer:
        writer.write(sample)
        writer.write({**sample, "f": np.zeros((1, 1), np.uint16)})
    dataset = LocalDataset(tmp_path)
    encodings = {column.name: column.encoding for column in dataset.index.shards[0].layout.columns}
    assert encodings == {
        "a": "int",
        "b": "str",
        "c": "bytes",
        "d": "float64",
        "e": "float32",
        "f": "ndarray:uint16",
        "g": "json",
        "h": "json",
    }
    first = dataset[0]
    np.testing.assert_array_equal(first.pop("f"), sample.pop("f"))
    assert first == sample


def test_an_inferred_column_that_does_not_fit_later_is_shown(tmp_path: Path) -> None:
    with JSONWriter(out=tmp_path) as writer:
        writer.write({"a": 1})
        with pytest.raises(ColumnTypeError, match=r"sample 1: column 'a' expects int.*first sample: a: int"):
            writer.write({"a": "one"})


@pytest.mark.parametrize("writer_class", [MDSWriter, JSONWriter, CSVWriter])
def test_a_column_that_only_later_samples_have_is_refused(tmp_path: Path, writer_class: type[Writer]) -> None:
    with writer_class(out=tmp_path) as writer:
        writer.write({"a": 1})
        with pytest.raises(
            ExtraColumnError, match=r"sample 1: column 'b' is not in .*pass columns=.*first sample: a: int"
        ):
            writer.write({"a": 2, "b": 3})
        writer.write({"a": 4})
    with (
        writer_class(out=tmp_path, append=True) as writer,
        pytest.raises(ExtraColumnError, match="sample 2: column 'c'"),
    ):
        writer.write({"c": 5, "a": 6})
    assert list(LocalDataset(tmp_path)) == [{"a": 1}, {"a": 4}]


def test_with_columns_given_others_are_left_out(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"a": "int"}) as writer:
        writer.write({"a": 1})
        writer.write({"a": 2, "b": 3})
    assert list(LocalDataset(tmp_path)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("first", [None, [], {}, {"a": object()}, {"a": np.array(["x"])}])
def test_a_first_sample_that_tells_nothing(tmp_path: Path, first: Any) -> None:
    with MDSWriter(out=tmp_path) as writer:
        with pytest.raises(ColumnTypeError, match="sample 0: "):
            writer.write(first)
        writer.write({"a": 1})
    assert LocalDataset(tmp_path)[0] == {"a": 1}


# --- Bad samples: named, and nothing else is lost -----------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "value", "kind", "builtin"),
    [
        ("int", "1", ColumnTypeError, AttributeError),
        ("int", True, ColumnTypeError, AttributeError),
        ("int", 2**63, ColumnRangeError, OverflowError),
        ("str", 1, ColumnTypeError, AttributeError),
        ("bytes", bytearray(b"x"), ColumnTypeError, AttributeError),
        ("uint8", 256, ColumnRangeError, OverflowError),
        ("int32", "many", ColumnTypeError, AttributeError),
        ("int32", 0.5, ColumnValueError, ValueError),
        ("float32", [1.0, 2.0], ColumnTypeError, TypeError),
        ("int64", b"123", ColumnSizeError, KeyError),
        ("ndarray:int32:3", np.zeros(4, np.int32), ColumnValueError, ValueError),
        ("ndarray:int32", np.zeros(4, np.int64), ColumnValueError, ValueError),
        ("ndarray", np.zeros(0, np.int64), ColumnValueError, ValueError),
        ("ndarray", [1, "2"], ColumnTypeError, TypeError),
        ("json", {1, 2}, ColumnTypeError, TypeError),
        ("str", "\ud800", ColumnValueError, ValueError),
        ("jpeg", "photo.jpg", ColumnTypeError, AttributeError),
        ("list[png]", (), ColumnTypeError, AttributeError),
        ("jpeg_array", [1], ColumnTypeError, TypeError),
    ],
)
def test_a_value_that_does_not_fit(
    tmp_path: Path, encoding: str, value: Any, kind: type[PenstockError], builtin: type[Exception]
) -> None:
    with MDSWriter(out=tmp_path, columns={"good": "int", "the column": encoding}) as writer:
        with pytest.raises(kind, match=r"sample 0: column 'the column' ") as caught:
            writer.write({"good": 1, "the column": value})
        assert isinstance(caught.value, builtin)
        assert isinstance(caught.value, BadSampleError)
        assert caught.value.facts == {"sample": 0, "column": "the column"}


def test_a_bad_sample_leaves_the_others(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns=COLUMNS, size_limit=500) as writer:
        for sample in rows(50):
            writer.write(sample)
            with pytest.raises(MissingColumnError, match=r"column 'text' is missing: the sample has 'id'") as caught:
                writer.write({"id": 1})
            assert isinstance(caught.value, KeyError)
    assert list(LocalDataset(tmp_path)) == rows(50)


@pytest.mark.parametrize("sample", [None, 3, [1, 2], "id"])
def test_a_sample_that_is_no_dict(tmp_path: Path, sample: Any) -> None:
    with MDSWriter(out=tmp_path, columns=COLUMNS) as writer, pytest.raises(ColumnTypeError, match="must be a dict"):
        writer.write(sample)


def test_separators_in_values(tmp_path: Path) -> None:
    with CSVWriter(out=tmp_path, columns={"a": "str", "b": "str"}) as writer:
        with pytest.raises(ColumnValueError, match="column 'b' contains the separator") as caught:
            writer.write({"a": "x", "b": "y,z"})
        assert isinstance(caught.value, AssertionError)
        with pytest.raises(ColumnValueError, match="column 'a' contains"):
            writer.write({"a": "x\n", "b": "y"})
        writer.write({"a": "", "b": "y;z"})
    assert list(LocalDataset(tmp_path)) == [{"a": "", "b": "y;z"}]


# --- Arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "builtin", "message"),
    [
        ({"columns": {"a": "complex64"}}, UnknownEncodingError, TypeError, "unknown column encoding 'complex64'.*str"),
        ({"columns": {"a": "nope:1"}}, UnknownEncodingError, KeyError, "unknown column encoding"),
        ({"columns": {"a": "str:x"}}, EncodingConfigError, AttributeError, "takes no settings"),
        ({"columns": {"a": "ndarray:int12"}}, EncodingConfigError, AssertionError, "unknown dtype"),
        ({"columns": {"a": "ndarray:int32:0"}}, EncodingConfigError, AssertionError, "bad shape"),
        ({"columns": {}}, ConfigError, ValueError, "columns is empty"),
        ({"columns": {"a": 3}}, ConfigError, ValueError, "both must be strings"),
        ({"compression": "lzma"}, ConfigError, ValueError, r"unknown compression 'lzma'.*zstd\[:1-22\]"),
        ({"compression": "zstd:23"}, ConfigError, ValueError, "zstd does not have the level"),
        ({"compression": "snappy:1"}, ConfigError, ValueError, "snappy does not have the level"),
        ({"hashes": "crc"}, ConfigError, ValueError, "unknown hash 'crc'.*sha1.*xxh64"),
        ({"size_limit": -1}, ConfigError, ValueError, "negative"),
        ({"size_limit": 2**32}, ConfigError, ValueError, "too large"),
        ({"size_limit": "10k"}, ConfigError, ValueError, "unknown unit"),
        ({"size_limit": float("nan")}, ConfigError, ValueError, "not a size"),
        ({"retry": 0}, ConfigError, ValueError, "no attempt"),
        ({"max_workers": 0}, ConfigError, ValueError, "max_workers=0 is too small"),
        ({"workers": 3}, ConfigError, ValueError, "MDSWriter has no argument 'workers'"),
        ({"exist_ok": True, "append": True}, ConfigError, ValueError, "choose one"),
        ({"out": ("a", "b", "c")}, ConfigError, ValueError, "Invalid `out` argument"),
        ({"out": ("a", "b"), "remote": "c"}, ConfigError, ValueError, "Invalid `out` argument"),
        ({"out": ("s3://a", "b")}, ConfigError, ValueError, "Invalid `out` argument"),
        ({"out": 3}, ConfigError, ValueError, "Invalid `out` argument"),
        ({"out": ("same", "same")}, ConfigError, ValueError, "Invalid `out` argument"),
        ({"out": "gopher://x/y"}, UnknownSchemeError, ValueError, "Invalid Cloud provider prefix: gopher"),
        ({"remote": "gopher://x/y"}, UnknownSchemeError, ValueError, "Invalid Cloud provider prefix: gopher"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    kind: type[PenstockError],
    builtin: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        MDSWriter(**{"out": "data", "columns": COLUMNS, **options})
    assert isinstance(caught.value, builtin)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_arguments_of_another_format() -> None:
    with pytest.raises(ConfigError, match="CSVWriter has no argument 'separator'"):
        CSVWriter(out="x", columns={"a": "str"}, separator=";")
    with pytest.raises(ConfigError, match="MDSWriter has no argument 'newline', 'separator'"):
        MDSWriter(out="x", columns={"a": "str"}, separator=";", newline=",")


def test_text_columns_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UnknownEncodingError) as caught:
        JSONWriter(out=tmp_path, columns={"a": "bytes"})
    assert isinstance(caught.value, AssertionError)
    with pytest.raises(ColumnNameError) as caught_name:
        CSVWriter(out=tmp_path, columns={"a,b": "str"})
    assert isinstance(caught_name.value, AssertionError)
    with pytest.raises(ConfigError, match="newline is empty"):
        CSVWriter(out=tmp_path, columns={"a": "str"}, newline="")
    with pytest.raises(ConfigError, match="separator is empty"):
        XSVWriter(out=tmp_path, columns={"a": "str"}, separator="")


# --- Output places ------------------------------------------------------------------------------------------


def test_remote_keeps_the_local_copy(tmp_path: Path) -> None:
    write(tmp_path / "local", rows(50), remote=str(tmp_path / "remote"), compression="zstd")
    assert files(tmp_path / "local") == files(tmp_path / "remote")
    assert list(LocalDataset(tmp_path / "remote")) == rows(50)


def test_a_pair_moves_the_files(tmp_path: Path) -> None:
    write((tmp_path / "local", f"file://{tmp_path}/remote"), rows(50))
    assert not (tmp_path / "local").exists()
    assert list(LocalDataset(tmp_path / "remote")) == rows(50)


def test_a_pair_keeps_the_local_files_if_asked(tmp_path: Path) -> None:
    write([str(tmp_path / "local"), str(tmp_path / "remote")], rows(50), keep_local=True)
    assert files(tmp_path / "local") == files(tmp_path / "remote")


def test_a_url_passes_through_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write("memory://test-url/train", rows(50))
    assert list(tmp_path.iterdir()) == []
    store = open_store("memory://test-url/train")
    index = parse_index(store.read("index.json"), "")
    assert index.num_samples == 50
    assert [info.key for info in store.list()] == ["index.json", *(shard.name for shard in index.shards)]


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    write(f"file://{tmp_path}/data%20set", rows(5))
    assert list(LocalDataset(tmp_path / "data set")) == rows(5)


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write("~/data", rows(5))
    assert list(LocalDataset("~/data")) == rows(5)
    assert (tmp_path / "data" / "index.json").is_file()


# --- What is there already ----------------------------------------------------------------------------------


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    write(tmp_path, rows(5))
    before = files(tmp_path)
    with pytest.raises(OutputExistsError, match="^Directory is not empty: ") as caught:
        write(tmp_path, rows(7))
    assert isinstance(caught.value, FileExistsError)
    assert files(tmp_path) == before


def test_a_remote_that_holds_a_dataset_is_refused(tmp_path: Path) -> None:
    write("memory://test-taken", rows(5))
    with pytest.raises(OutputExistsError, match="^Directory is not empty: memory://test-taken"):
        write("memory://test-taken", rows(7))
    write("memory://test-taken", rows(7), exist_ok=True)
    assert parse_index(open_store("memory://test-taken").read("index.json"), "").num_samples == 7


def test_exist_ok_replaces_the_dataset_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, rows(100), compression="zstd")
    (tmp_path / "shard.99999.mds").write_bytes(b"of a writer that died")
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, rows(5), exist_ok=True)
    assert sorted(files(tmp_path)) == ["index.json", "notes.txt", "shard.00000.mds"]
    assert list(LocalDataset(tmp_path)) == rows(5)


def test_exist_ok_replaces_a_broken_index(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(b"{")
    write(tmp_path, rows(5), exist_ok=True)
    assert list(LocalDataset(tmp_path)) == rows(5)


def test_append_continues(tmp_path: Path) -> None:
    write(tmp_path, rows(40))
    before = files(tmp_path)
    write(tmp_path, rows(30, start=40), append=True, compression="zstd", columns=None)
    after = files(tmp_path)
    assert {name: after[name] for name in before if name != "index.json"} == {
        name: data for name, data in before.items() if name != "index.json"
    }
    assert list(LocalDataset(tmp_path)) == rows(70)


def test_append_counts_samples_on(tmp_path: Path) -> None:
    write(tmp_path, rows(40))
    with (
        MDSWriter(out=tmp_path, append=True) as writer,
        pytest.raises(MissingColumnError, match="sample 40: ") as caught,
    ):
        writer.write({})
    assert "first sample" not in str(caught.value)


def test_append_to_nothing_begins(tmp_path: Path) -> None:
    write(tmp_path / "new", rows(5), append=True)
    assert list(LocalDataset(tmp_path / "new")) == rows(5)


def test_append_needs_the_same_columns(tmp_path: Path) -> None:
    write(tmp_path, rows(5))
    with pytest.raises(
        ConfigError, match=r"mds shards of id: int64, .* to a dataset of mds shards of id: int, text: str"
    ):
        write(tmp_path, rows(5), append=True, columns={"id": "int64", "text": "str"})
    with pytest.raises(ConfigError, match="appending json shards"):
        JSONWriter(out=tmp_path, columns=COLUMNS, append=True)


def test_append_to_a_remote(tmp_path: Path) -> None:
    write("memory://test-append", rows(40))
    write("memory://test-append", rows(30, start=40), append=True)
    store = open_store("memory://test-append")
    for info in store.list():
        store.download(info.key, tmp_path / info.key)
    assert list(LocalDataset(tmp_path)) == rows(70)


def test_append_to_two_places_that_differ(tmp_path: Path) -> None:
    write(tmp_path / "local", rows(5))
    write(tmp_path / "remote", rows(6))
    with pytest.raises(ConfigError, match="hold different datasets"):
        write(tmp_path / "local", rows(5), remote=tmp_path / "remote", append=True)


# --- Failure ------------------------------------------------------------------------------------------------


def test_an_exception_publishes_no_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"), pytest.raises(ZeroDivisionError):
        with MDSWriter(out=tmp_path, columns=COLUMNS, size_limit=500, remote="memory://test-failed") as writer:
            for sample in rows(50):
                writer.write(sample)
            raise ZeroDivisionError
    assert "no index was published; shards written: shard.00000.mds" in caplog.text
    assert not (tmp_path / "index.json").exists()
    assert "index.json" not in [info.key for info in open_store("memory://test-failed").list()]
    assert not list(tmp_path.glob(".*"))


def test_a_background_failure_reaches_the_next_write(tmp_path: Path) -> None:
    writer = MDSWriter(out=tmp_path / "data", columns=COLUMNS, size_limit=500)
    for path in (tmp_path / "data").parent.iterdir():
        path.rmdir()
    (tmp_path / "data").write_text("a file where the folder was")
    with pytest.raises(StoreError, match=r"cannot write shard shard\.0000\d\.mds: .*File exists") as caught:
        for sample in rows(100_000):
            writer.write(sample)
    assert caught.value.facts["shard"].startswith("shard.0000")
    with pytest.raises(StoreError, match="cannot write shard"):
        writer.finish()
    with pytest.raises(WriterClosedError):
        writer.write(rows(1)[0])


def test_a_background_failure_reaches_the_end(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write shard shard\.00000\.mds"):
        with MDSWriter(out=tmp_path / "data", columns=COLUMNS) as writer:
            writer.write(rows(1)[0])
            (tmp_path / "data").rmdir()
            (tmp_path / "data").write_text("a file where the folder was")
    assert (tmp_path / "data").is_file()


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = MDSWriter(out=tmp_path, columns=COLUMNS)
    writer.write(rows(1)[0])
    writer.finish()
    writer.finish()
    with pytest.raises(WriterClosedError, match="append=True"):
        writer.write(rows(1)[0])
    assert list(LocalDataset(tmp_path)) == rows(1)


def test_threads_end_with_the_writer(tmp_path: Path) -> None:
    before = threading.active_count()
    write(tmp_path, rows(500), max_workers=5)
    assert threading.active_count() <= before


# --- Progress -----------------------------------------------------------------------------------------------


def test_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, rows(1000), progress_bar=True)
    shown = capsys.readouterr().err
    assert shown.startswith(f"\r{tmp_path}: ")
    assert "1,000 samples, " in shown
    assert shown.endswith("\n")


def test_progress_line() -> None:
    assert progress_line(3_000, 3 << 20, 2.0) == "3,000 samples, 3 MB, 1,500 samples/s, 1.5 MB/s"
    assert progress_line(0, 0, 0.0) == "0 samples, 0 B, 0 samples/s, 0 B/s"
    stream = io.StringIO()
    ProgressBar("here", stream).update(1, 1)
    assert stream.getvalue() == ""
