"""Crawling: rows in the order of the file, each video that cannot be had listed, and no video fetched twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadSampleError, EmptyDatasetError, TransformError
from penstock.recipes.multimodal.crawl_webvid import parse_duration, recipe
from penstock.testing.recipes import read_rows
from tests.recipes.web_videos import video_server, write_csv

KINDS = ["good", "missing", "busy", "slow", "good", "cut", "page", "odd", "file", "good"]


def crawl(path: Path, out: Path, **flags: Any) -> Any:
    return recipe.convert(in_root=path, out_root=out, progress_bar=0, timeout=0.4, **flags)[""]


def test_what_can_be_had_is_written_in_order_and_the_rest_is_listed(tmp_path: Path) -> None:
    with video_server() as (url, asked):
        rows = write_csv(tmp_path / "videos.csv", url, KINDS)
        report = crawl(tmp_path / "videos.csv", tmp_path / "out")
        assert [asked.count(f"/good-{number}.mp4") for number in (0, 4, 9)] == [1, 1, 1]
        once = len(asked)
        assert crawl(tmp_path / "videos.csv", tmp_path / "out").num_found == 1
        assert len(asked) == once
    assert read_rows(tmp_path / "out") == rows
    assert (report.num_rows, report.num_rejected) == (4, 6)
    listed = [json.loads(line) for line in Path(report.rejected[0]).read_text().splitlines()]
    said = [
        "404",
        "no whole reply",
        "ended after",
        "no mp4 file",
        "not written as PT00H00M10S",
        "no address of the web",
    ]
    for number, each, text in zip((1, 3, 5, 6, 7, 8), listed, said, strict=True):
        assert each["where"] == f"row {number} of {tmp_path / 'videos.csv'}"
        assert f"video {7000 + number}: " in each["error"]
        assert text in each["error"] or (text == "no whole reply" and "timed out" in each["error"])


def test_files_of_five_columns_limits_and_errors(tmp_path: Path) -> None:
    with video_server() as (url, _):
        rows = write_csv(tmp_path / "videos.csv", url, ["good"] * 5 + ["missing"], page_idx=False)
        crawl(tmp_path / "videos.csv", tmp_path / "few", limit=3)
        with pytest.raises(TransformError, match=r"row 5 of .*video 7005: http://127.0.0.1:\d+/missing-5.mp4: .*404"):
            crawl(tmp_path / "videos.csv", tmp_path / "strict", on_error="raise")
        write_csv(tmp_path / "bad.csv", url, ["missing"] * 2)
        with pytest.raises(EmptyDatasetError, match="all 2 rows were left out"):
            crawl(tmp_path / "bad.csv", tmp_path / "none")
    assert read_rows(tmp_path / "few") == rows[:3]
    assert not [*tmp_path.glob("strict/index.json"), *tmp_path.glob("none/index.json")]
    (tmp_path / "other.csv").write_text("videoid,name\n1,a\n")
    with pytest.raises(BadSampleError, match=r"other\.csv has no column 'page_dir': it has videoid, name"):
        crawl(tmp_path / "other.csv", tmp_path / "other")


def test_a_crawl_that_was_killed_goes_on(tmp_path: Path) -> None:
    with video_server() as (url, asked):
        rows = write_csv(tmp_path / "videos.csv", url, ["good"] * 500)
        command = [
            sys.executable,
            "-m",
            "penstock.recipes.multimodal.crawl_webvid",
            "--in",
            str(tmp_path / "videos.csv"),
        ]
        flags = ["--out_root", str(tmp_path / "out"), "--num_procs", "2", "--size_limit", "4000", "--progress_bar", "0"]
        crawling = subprocess.Popen([*command, *flags])
        while len(list((tmp_path / "out").rglob("shard.*"))) < 80:
            assert crawling.poll() is None
            time.sleep(0.01)
        crawling.kill()
        crawling.wait()
        assert not (tmp_path / "out/index.json").exists()
        num_asked = len(asked)
        crawl(tmp_path / "videos.csv", tmp_path / "out", size_limit="4000", num_procs=2)
        assert num_asked < len(asked) <= num_asked + 500 - 256  # of rows that are read together, all are fetched again
    assert read_rows(tmp_path / "out") == rows


@pytest.mark.parametrize(("text", "seconds"), [("PT00H00M10S", 10), ("PT01H02M03S", 3723), ("PT99H59M59S", 359999)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds
    with pytest.raises(BadSampleError):
        parse_duration(text.lower())
