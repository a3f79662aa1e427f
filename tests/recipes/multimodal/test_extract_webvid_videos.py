"""Videos are taken out of shards by their number, each to a file that appears whole, by any number of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadSampleError
from penstock.recipes.multimodal.extract_webvid_videos import recipe
from penstock.testing.recipes import bytes_of, read_rows
from tests.recipes.web_videos import NUM_VIDEOS, extract, make_webvid, video

if TYPE_CHECKING:
    from pathlib import Path


def shards_of(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in bytes_of(folder).items() if "shard." in name}


def test_videos_are_taken_out_by_number(tmp_path: Path) -> None:
    data = make_webvid(tmp_path)
    names = sorted(path.relative_to(data / "videos").as_posix() for path in (data / "videos").rglob("*.mp4"))
    assert names == [f"000/{number:03}.mp4" for number in range(NUM_VIDEOS)]
    for number, sample in enumerate(read_rows(data / "outside")):
        about = {"videoid": f"{number}", "duration": number, "content_size": len(video(number))}
        assert sample == {**about, "content_path": names[number]}
        assert (data / "videos" / names[number]).read_bytes() == video(number)
    extract(data, "2", workers=2)
    assert bytes_of(data / "videos2") == bytes_of(data / "videos")
    assert shards_of(data / "outside2") == shards_of(data / "outside")
    with pytest.raises(BadSampleError, match="no column 'content'"):
        recipe.convert(in_root=data / "outside", out_root=data / "no", out_mp4=data / "no4", progress_bar=0)
