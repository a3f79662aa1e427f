"""How files of a dataset are numbered, and how rows become tables, with plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.episodes.info import Feature
from penstock.episodes.writing.files import ParquetFiles, VideoCoding, table_of
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = {
    "x": Feature(key="x", dtype="float32", shape=(1,)),
    "at": Feature(key="at", dtype="int64", shape=(2,)),
    "m": Feature(key="m", dtype="int64", shape=(2, 2)),
    "s": Feature(key="s", dtype="string", shape=(1,)),
}


def test_rows_of_every_shape_come_back_from_a_table() -> None:
    columns: dict[str, list[Any]] = {
        "x": [np.float32(0.5), np.float32(1.5)],
        "at": [np.array([1, 2]), np.array([3, 4])],
        "m": [np.arange(4).reshape(2, 2), np.ones((2, 2), np.int64)],
        "s": ["one", "two"],
    }
    assert table_of(columns, FEATURES).to_pylist() == [
        {"x": 0.5, "at": [1, 2], "m": [[0, 1], [2, 3]], "s": "one"},
        {"x": 1.5, "at": [3, 4], "m": [[1, 1], [1, 1]], "s": "two"},
    ]


def test_a_file_that_is_full_is_followed_by_the_next_one_and_a_chunk_too(tmp_path: Path) -> None:
    files = ParquetFiles(tmp_path, "chunk-{chunk_index}/file-{file_index}.parquet", 0.000001, 2)
    places = []
    for number in range(5):
        table = table_of({"x": [np.float32(number)]}, {"x": FEATURES["x"]})
        files.make_room(table.nbytes)
        files.add(table)
        places.append((files.chunk, files.file))
    files.close()
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert pq.read_table(tmp_path / "chunk-1" / "file-1.parquet").to_pylist() == [{"x": 3.0}]


def test_a_coding_takes_known_codecs_alone() -> None:
    coding = VideoCoding.of("h264", 2, None, 29.97)
    assert (coding.crf, coding.encoder) == (23, "libx264")
    with pytest.raises(ConfigError, match="unknown video_codec 'vp9': use one of h264, hevc, av1"):
        VideoCoding.of("vp9", 2, None, 30)
