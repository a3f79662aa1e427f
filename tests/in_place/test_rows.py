"""Lines and tars through the whole path: keys that differ, bad rows, compressed files, headers that disagree."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from typing import TYPE_CHECKING, Any

import brotli
import cramjam
import pytest

from penstock import StreamingDataset
from penstock.errors import CorruptShardError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: bytes(cramjam.zstd.compress(data)),
    "bz2": bz2.compress,
    "br": brotli.compress,
    "xz": lzma.compress,
}


def write_lines(folder: Path, files: dict[str, list[Any]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (folder / name).write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(folder)


def test_keys_may_differ_between_rows_and_files(tmp_path: Path) -> None:
    rows = [{"id": number} | ({"odd": str(number)} if number % 2 else {}) for number in range(60)]
    rows[50]["late"] = 1
    place = write_lines(tmp_path / "data", {"a.jsonl": rows[:20:2], "b.jsonl": rows[1:20:2], "c.jsonl": rows[20:]})
    dataset = StreamingDataset(local=place, shuffle=True, batch_size=7)
    assert sorted(dataset, key=lambda sample: sample["id"]) == rows
    columnar = StreamingDataset(local=place, shuffle=True, batch_size=7, columnar=True)
    found: dict[int, dict[str, Any]] = {}
    for batch in columnar:
        assert batch.keys() >= {"id", "odd"}
        for place_in_batch, number in enumerate(batch["id"]):
            values = {name: column[place_in_batch] for name, column in batch.items()}
            found[int(number)] = {name: value for name, value in values.items() if value is not None}
    assert found == dict(enumerate(rows))
    chosen = StreamingDataset(local=place, batch_size=7, columns=["odd"])
    assert [sample for sample in chosen if sample] == [{"odd": row["odd"]} for row in rows if "odd" in row]


@pytest.mark.parametrize("columnar", [False, True])
def test_bad_lines_are_skipped_or_named(tmp_path: Path, columnar: bool) -> None:
    rows: list[Any] = [{"id": number} for number in range(40)]
    rows[13] = "nonsense"
    place = write_lines(tmp_path / "data", {"a.jsonl": rows[:10], "b.jsonl": rows[10:]})
    failing = StreamingDataset(local=place, batch_size=8, columnar=columnar)
    with pytest.raises(CorruptShardError, match=r"b\.jsonl, line 4: the line is not JSON"), failing:
        list(failing)
    with StreamingDataset(local=place, batch_size=8, on_error="skip", columnar=columnar) as dataset:
        batches = list(dataset)
        skipped = dataset.stats().skipped
    numbers = [number for batch in batches for number in batch["id"]] if columnar else [row["id"] for row in batches]
    assert len(numbers) == 40
    assert set(numbers) == set(range(40)) - {13}
    assert skipped == 1


@pytest.mark.parametrize("codec", COMPRESS)
def test_compressed_files_are_read(tmp_path: Path, codec: str) -> None:
    lines = [b"%d,text %d\n" % (number, number) for number in range(100)]
    for file in range(2):
        half = lines[50 * file : 50 * file + 50]
        frames = [b"id,text\n", b"".join(half[:20])[:-3], b"".join(half[:20])[-3:] + b"".join(half[20:])]
        if codec == "br":
            frames = [b"".join(frames)]
        (tmp_path / f"{file}.csv.{codec}").write_bytes(b"".join(map(COMPRESS[codec], frames)))
    dataset = StreamingDataset(remote=str(tmp_path), local=str(tmp_path / "cache"), shuffle=True, batch_size=4)
    assert sorted(int(sample["id"]) for sample in dataset) == list(range(100))
    assert dataset[77] == {"id": "77", "text": "text 77"}


def test_compressed_tars_are_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        for number in range(20):
            info = tarfile.TarInfo(f"{number:03}.cls")
            info.size = len(str(number))
            tar.addfile(info, io.BytesIO(str(number).encode()))
    dataset = StreamingDataset(remote=str(tmp_path), local=str(tmp_path / "cache"), batch_size=4)
    assert [sample["cls"] for sample in dataset] == list(range(20))


def test_headers_that_differ_name_both_files(tmp_path: Path) -> None:
    place = write_lines(tmp_path / "data", {"a.csv": ["x,y", "1,2"], "b.csv": ["x,z", "1,2"]})
    with pytest.raises(DataError, match=r"'y'.* a\.csv .*b\.csv"):
        StreamingDataset(local=place, batch_size=1)


def test_types_of_csv(tmp_path: Path) -> None:
    place = write_lines(tmp_path / "data", {"a.csv": ["x,y", "1,2", "3,4"]})
    dataset = StreamingDataset(local=place, batch_size=1, types={"x": "int"})
    assert list(dataset) == [{"x": 1, "y": "2"}, {"x": 3, "y": "4"}]
