"""LAION-400M: files that finish in any order, a crawl that ends mid-scan, and kills at every step."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import StreamingDataset
from penstock.errors import BadSampleError
from penstock.failpoints import CRAWL_POINTS, VARIABLE
from penstock.recipes.multimodal.laion400m import recipe
from penstock.testing.recipes import read_rows

if TYPE_CHECKING:
    from pathlib import Path

ROWS_OF_FILE = 5


def crawl_row(number: int) -> dict[str, Any]:
    failed = number % 5 == 4
    return {
        "NSFW": None if failed else "UNLIKELY",
        "similarity": None if failed else number / 7,
        "LICENSE": "?",
        "caption": f"caption {number}",
        "url": f"http://x/{number}.jpg",
        "key": f"{number:09}",
        "status": "failed_to_download" if failed else "success",
        "error_message": "404" if failed else None,
        **dict.fromkeys(("width", "height", "original_width", "original_height"), None if failed else 256),
        "exif": None if failed else "{}",
        "jpg": None if failed else b"\xff\xd8\xff%d" % number,
        "md5": "x",
    }


def stored_row(number: int) -> dict[str, Any]:
    row = {name.lower(): value for name, value in crawl_row(number).items() if name != "md5"}
    empty = {"similarity": math.nan, "jpg": b"", **dict.fromkeys(("width", "height"), 0)}
    empty |= dict.fromkeys(("original_width", "original_height"), 0)
    return {name: empty.get(name, "") if value is None else value for name, value in row.items()}


def fetched(folder: Path, file: int, *, is_complete: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    first = file * ROWS_OF_FILE
    rows = [crawl_row(number) for number in range(first, first + ROWS_OF_FILE)]
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{file:05}.parquet")
    if is_complete:
        (folder / f"{file:05}_stats.json").write_text("{}")


def run(folder: Path, **flags: Any) -> None:
    places = {"local": folder / "crawl", "remote": folder / "store"}
    recipe.convert(**places, **{"progress_bar": 0, "poll_interval": 0.01, "workers": 1, **flags})


def check_rows(folder: Path, files: int, keeps: Any = lambda _: True) -> None:
    found = read_rows(folder / "store")
    expected = [row for row in map(stored_row, range(files * ROWS_OF_FILE)) if keeps(row)]
    for ours, theirs in zip(found, expected, strict=True):
        assert math.isnan(theirs["similarity"]) == math.isnan(ours["similarity"])
        assert ours == theirs | {"similarity": ours["similarity"]}


def test_files_are_stored_as_they_come_in_any_order_until_the_crawl_is_over(tmp_path: Path) -> None:
    fetched(tmp_path / "crawl", 2)
    fetched(tmp_path / "crawl", 0, is_complete=False)
    watching = threading.Thread(target=run, args=(tmp_path,), kwargs={"keep_parquet": 0, "keep_mds": 0}, daemon=True)
    watching.start()
    wait_for(tmp_path / "store/00002/index.json")
    assert not (tmp_path / "store/00000").exists()
    fetched(tmp_path / "crawl", 1)
    wait_for(tmp_path / "store/00001/index.json")
    assert not (tmp_path / "store/index.json").exists()
    (tmp_path / "crawl/00000_stats.json").write_text("{}")  # completes at the same time as the crawl
    (tmp_path / "crawl/done").touch()
    watching.join(60)
    check_rows(tmp_path, 3)
    assert sorted(path.name for path in (tmp_path / "crawl").glob("[!.]*")) == [
        *(f"0000{number}_stats.json" for number in range(3)),
        "done",
    ]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("point", [*CRAWL_POINTS, "target.kept", "target.published"])
def test_killed_anywhere_it_goes_on_and_loses_nothing(tmp_path: Path, point: str) -> None:
    for number in range(2):
        fetched(tmp_path / "crawl", number)
    (tmp_path / "crawl/done").touch()
    flags = ["--keep_parquet", "0", "--keep_mds", "0", "--size_limit", "600", "--workers", "1", "--poll_interval", "0"]
    places = ["--local", str(tmp_path / "crawl"), "--remote", str(tmp_path / "store")]
    command = [sys.executable, "-m", "penstock.recipes.multimodal.laion400m", *places, *flags]
    killed = subprocess.run(command, env={**os.environ, VARIABLE: point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "store/index.json").exists()
    for number in range(2):  # what is not safe in the store is still here
        is_safe = (tmp_path / f"store/{number:05}/index.json").exists()
        assert is_safe or (tmp_path / f"crawl/{number:05}.parquet").exists()
    run(tmp_path, keep_parquet=0, keep_mds=0, size_limit=600)
    check_rows(tmp_path, 2)
    assert not list((tmp_path / "crawl").glob("*.parquet"))


def test_failed_rows_may_be_left_out_and_files_kept(tmp_path: Path) -> None:
    fetched(tmp_path / "crawl", 0)
    fetched(tmp_path / "crawl", 1)
    (tmp_path / "crawl/done").touch()
    run(tmp_path, keep_failed=0, workers=2)
    check_rows(tmp_path, 2, lambda row: row["jpg"])
    assert len(list((tmp_path / "crawl").glob("*.parquet"))) == 2
    assert StreamingDataset(local=str(tmp_path / "crawl/00001.mds"), batch_size=1).num_samples == 4
    shard = next((tmp_path / "store/00000").rglob("shard.*"))
    shard.write_bytes(shard.read_bytes()[:-1])  # damaged in the store: it is stored again
    run(tmp_path, keep_failed=0)
    check_rows(tmp_path, 2, lambda row: row["jpg"])


def test_what_is_not_complete_when_the_crawl_is_over_is_an_error(tmp_path: Path) -> None:
    fetched(tmp_path / "crawl", 0)
    fetched(tmp_path / "crawl", 1, is_complete=False)
    (tmp_path / "crawl/done").touch()
    with pytest.raises(BadSampleError, match=r"00001\.parquet has no 00001_stats\.json"):
        run(tmp_path)
    assert not (tmp_path / "store/index.json").exists()
    (tmp_path / "crawl/00001.parquet").rename(tmp_path / "crawl/00002.parquet")
    (tmp_path / "crawl/00001_stats.json").touch()
    with pytest.raises(BadSampleError, match=r"00001_stats\.json is there, but neither"):
        run(tmp_path)
    (tmp_path / "crawl/00001.parquet").write_bytes(b"PAR1 no file PAR1")
    with pytest.raises(Exception, match=r"00001\.parquet"):
        run(tmp_path)
    assert not (tmp_path / "store/index.json").exists()
