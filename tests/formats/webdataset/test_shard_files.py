"""Rows as members of tar files: read again, they are the same, by the extension that says what they are."""

from __future__ import annotations

import hashlib
import tarfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import StreamingDataset
from penstock.errors import ColumnTypeError, ConfigError
from penstock.formats.webdataset.shard_files import TarSaveFormat, member_of

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [{"jpg": b"\xff\xd8", "txt": "a \u00fc", "cls": 3, "about": {"n": [1]}, "row": np.arange(3)} for _ in range(4)]


def write(folder: Path) -> Path:
    folder.mkdir()
    with closing(TarSaveFormat(None).open(folder, 0)) as shard:
        shard.add(ROWS[:3], 0)
        shard.add(ROWS[3:], 3)
    return folder / "shard-00000.tar"


def test_samples_are_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "data")
    with tarfile.open(path) as tar:
        assert tar.getnames()[:5] == [f"000000000.{end}" for end in ("jpg", "txt", "cls", "about.json", "row.npy")]
    with StreamingDataset(remote=str(tmp_path / "data"), batch_size=1, image_decoder="raw") as dataset:
        samples = list(dataset)
    assert [sample["__key__"] for sample in samples] == [f"{number:09}" for number in range(4)]
    for sample in samples:
        assert (sample["jpg"], sample["txt"], sample["cls"], sample["about.json"]) == (
            b"\xff\xd8",
            "a \u00fc",
            3,
            {"n": [1]},
        )
        np.testing.assert_array_equal(sample["row.npy"], np.arange(3))


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    digests = {hashlib.sha256(write(tmp_path / name).read_bytes()).digest() for name in "ab"}
    assert len(digests) == 1


@pytest.mark.parametrize(("name", "value", "error"), [("a/b", b"", ConfigError), ("a", object(), ColumnTypeError)])
def test_what_is_no_member(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="cannot be a member of a tar file"):
        member_of(name, value)


def test_compression_is_refused() -> None:
    with pytest.raises(ConfigError, match="not for webdataset"):
        TarSaveFormat("zstd")
