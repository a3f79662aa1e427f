"""Which files a stream is made of: seen from names and first bytes, or said outright."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Stream, StreamingDataset
from penstock.errors import ConfigError, DataError, ObjectNotFoundError, RequestRefusedError
from tests.in_place.kinds import KINDS
from tests.streaming import write_samples

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.nginx import WebServer

JSONL, CSV, PARQUET = KINDS["jsonl"], KINDS["csv"], KINDS["parquet"]


def numbers_in(place: Any, kind: Any = JSONL, **options: Any) -> list[int]:
    with StreamingDataset(remote=place, **options) as dataset:
        return sorted(kind.numbers(dataset))


def test_a_folder_holds_more_than_data(tmp_path: Path) -> None:
    JSONL.write_files(tmp_path / "deep" / "er", 2)
    for name in ("README.md", "_SUCCESS", ".DS_Store", "notes.pdf", "dataset_infos.json", "LICENSE.txt"):
        (tmp_path / name).write_text("no data")
    (tmp_path / "_temporary").mkdir()
    JSONL.write(tmp_path / "_temporary" / "part-9.jsonl", range(500, 510))
    assert numbers_in(tmp_path) == list(range(100))
    assert numbers_in(tmp_path / "deep", local=tmp_path / "local") == list(range(100))


def test_several_formats_are_an_error_that_names_a_file_of_each(tmp_path: Path) -> None:
    JSONL.write_files(tmp_path, 2)
    CSV.write(tmp_path / "more.csv", range(200, 210))
    with pytest.raises(ConfigError, match=r"several formats: more\.csv \(csv\), part-0\.jsonl \(jsonl\)\. Choose one"):
        numbers_in(tmp_path)
    assert numbers_in(tmp_path, format="jsonl") == list(range(100))
    assert numbers_in(tmp_path, CSV, format="csv") == list(range(200, 210))
    assert numbers_in(f"{tmp_path}/*.jsonl") == list(range(100))


def test_a_name_that_exists_is_taken_literally(tmp_path: Path) -> None:
    JSONL.write_files(tmp_path / "data[1]", 1)
    JSONL.write_files(tmp_path / "data1", 2)
    assert numbers_in(tmp_path / "data[1]") == list(range(50))
    assert numbers_in(tmp_path / "data[1]" / "part-0.jsonl") == list(range(50))
    assert numbers_in(f"{tmp_path}/data[1]/*.jsonl") == list(range(100))  # as a glob it names the other one
    JSONL.write_files(tmp_path / "only[2]", 1)
    assert numbers_in(f"{tmp_path}/only[2]/*.jsonl") == list(range(50))
    (tmp_path / "data[1]").rename(tmp_path / "away")
    assert numbers_in(f"{tmp_path}/data[1]/*") == list(range(100))
    ours = write_samples(tmp_path / "ours[1]", 20)
    assert numbers_in(ours, kind=_Plain()) == list(range(20))


class _Plain:
    @staticmethod
    def numbers(samples: Any) -> list[int]:
        return [int(sample["id"]) for sample in samples]


def test_an_index_makes_a_folder_what_it_was(tmp_path: Path) -> None:
    ours = write_samples(tmp_path, 20)
    JSONL.write_files(tmp_path, 1)
    assert numbers_in(ours, kind=_Plain()) == list(range(20))
    assert numbers_in(ours, format="mds", kind=_Plain()) == list(range(20))
    assert numbers_in(ours, format="jsonl") == list(range(50))


def test_first_bytes_tell_where_names_do_not(tmp_path: Path) -> None:
    PARQUET.write(tmp_path / "part-00000", range(50))
    assert numbers_in([tmp_path / "part-00000"], PARQUET) == list(range(50))
    JSONL.write(tmp_path / "lines", range(50))
    with pytest.raises(ConfigError, match=r"cannot tell the format of lines in .*pass format=, one of arrow, csv"):
        numbers_in([tmp_path / "lines"])
    assert numbers_in([tmp_path / "lines"], format="jsonl") == list(range(50))


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    JSONL.write_files(tmp_path)
    names = [tmp_path / f"part-{number}.jsonl" for number in (2, 0)]
    with StreamingDataset(remote=names) as dataset:
        assert JSONL.numbers(dataset[[0, 50]]) == [100, 0]
    with StreamingDataset(local=names) as dataset:
        assert dataset.num_samples == 100


def test_nothing_there(tmp_path: Path) -> None:
    JSONL.write_files(tmp_path / "data", 1)
    with pytest.raises(ObjectNotFoundError, match=r"no file matches .*/data/\*\.csv: `\*` stays within a folder"):
        numbers_in(f"{tmp_path}/data/*.csv")
    with pytest.raises(ObjectNotFoundError, match=r"no file or folder .*missing\.jsonl"):
        numbers_in([tmp_path / "data" / "missing.jsonl", tmp_path / "data" / "part-0.jsonl"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectNotFoundError, match="empty"):
        numbers_in(tmp_path / "empty")


def test_web_servers_have_no_lists(nginx: WebServer) -> None:
    folder = JSONL.write_files(nginx.files / "no-lists", 2)
    with pytest.raises(RequestRefusedError, match=r"cannot be listed, .* pass a list of files"):
        numbers_in(f"{nginx.url}/no-lists/*.jsonl")
    with pytest.raises(ObjectNotFoundError, match=r"index\.json"):
        numbers_in(f"{nginx.url}/no-lists")
    assert numbers_in(f"{nginx.url}/no-lists/part-1.jsonl") == list(range(50, 100))
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"format": "paquet"}, "unknown format 'paquet': use one of arrow, csv, jsonl, mds"),
        ({"types": {"id": "int"}}, "types= does not apply to jsonl files"),
        ({"subset": "en"}, "subset= is for whole repositories"),
    ],
)
def test_settings_that_mean_nothing(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    JSONL.write_files(tmp_path, 1)
    with pytest.raises(ConfigError, match=match):
        numbers_in(tmp_path, **options)


def test_lists_where_one_place_belongs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="local= is the folder for copies"):
        Stream(remote=tmp_path, local=[tmp_path / "a"])
    with pytest.raises(ConfigError, match="split= names a folder below remote"):
        StreamingDataset(remote=[tmp_path / "a.jsonl"], split="train")


def test_columns_that_differ_are_named(tmp_path: Path) -> None:
    CSV.write_files(tmp_path, 2)
    (tmp_path / "part-9.csv").write_text("id,txt\n1,a\n")
    with pytest.raises(DataError, match=r"column 'text' is \S+ in part-0\.csv and missing in part-9\.csv"):
        numbers_in(tmp_path)


def test_types_of_a_csv(tmp_path: Path) -> None:
    CSV.write_files(tmp_path, 1)
    with StreamingDataset(remote=tmp_path, types={"id": "int"}) as dataset:
        assert dataset[3]["id"] == 3
    with StreamingDataset(remote=tmp_path) as dataset:
        assert dataset[3]["id"] == "3"
    with pytest.raises(ConfigError, match=r"types= names column 'ID', but part-0\.csv has the columns id, text"):
        StreamingDataset(remote=tmp_path, types={"ID": "int"})


def test_a_compressed_parquet_file_is_refused_by_name(tmp_path: Path) -> None:
    PARQUET.write(tmp_path / "a.parquet.gz", range(5))
    with pytest.raises(ConfigError, match=r"a\.parquet\.gz cannot be read: .* Decompress it"):
        numbers_in(tmp_path)


def test_what_lies_in_a_folder_and_is_no_file_is_left_out_but_a_link_to_nothing_is_not(tmp_path: Path) -> None:
    JSONL.write_files(tmp_path, 1)
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert numbers_in(tmp_path) == list(range(50))
    assert numbers_in(f"{tmp_path}/*.jsonl") == list(range(50))
    (tmp_path / "lost.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(ObjectNotFoundError, match=r"lost\.jsonl"):
        numbers_in(tmp_path)
