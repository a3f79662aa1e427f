"""A dataset for each word: the rows whose captions have it, and an error that names words without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import EmptyDatasetError
from penstock.recipes.multimodal.crawl_webvid_subsets import recipe
from penstock.testing.recipes import read_rows
from tests.recipes.web_videos import video_server, write_csv

if TYPE_CHECKING:
    from pathlib import Path


def test_subsets_have_the_rows_with_their_word(tmp_path: Path) -> None:
    with video_server() as (url, _):
        rows = write_csv(tmp_path / "videos.csv", url, ["good", "busy", "missing", "good"])
        flags: dict[str, Any] = {"in_root": tmp_path / "videos.csv", "out_root": tmp_path / "out", "progress_bar": 0}
        with pytest.raises(EmptyDatasetError, match="no video could be had for 'zebra': the other datasets are whole"):
            recipe.convert(filters="cat,zebra,pets", **flags)
        assert {path.name for path in (tmp_path / "out").iterdir()} >= {"cat", "pets"}
        assert not (tmp_path / "out/zebra/index.json").exists()
        recipe.convert(filters="cat", limit=1, **{**flags, "out_root": tmp_path / "one"})
    assert read_rows(tmp_path / "out/cat") == [row for row in rows if "cat" in row["name"]]
    assert read_rows(tmp_path / "out/pets") == [row for row in rows if "pets" in row["name"]]
    assert len(read_rows(tmp_path / "one/cat")) == 1
