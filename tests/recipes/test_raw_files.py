"""Raw files: few bytes for each name, an order by a key, and images that are looked at."""

from __future__ import annotations

import os
import pickle
import resource
import time
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadSampleError, EmptyDatasetError
from penstock.recipes.raw_files import keyed_records, list_files, read_image
from penstock.recipes.vision.imagenet import ClassFolders
from tests.recipes.raw_images import image_bytes, write

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_listed_by_name_and_told_apart_by_their_versions(tmp_path: Path) -> None:
    for name in ("a/2.JPG", "a/10.jpg", "b/é.jpeg", "a/.hidden.jpg", "a/notes.txt"):
        write(tmp_path / "raw" / name, name.encode())
    found = list_files(str(tmp_path), "raw", [".jpg", ".jpeg"])
    assert list(found) == ["raw/a/10.jpg", "raw/a/2.JPG", "raw/b/é.jpeg"]
    assert (found[2], len(found), found.num_bytes) == ("raw/b/é.jpeg", 3, 8 + 7 + 9)
    assert list(pickle.loads(pickle.dumps(found))) == list(found)
    os.utime(tmp_path / "raw/a/2.JPG", (1, 1))
    assert list_files(str(tmp_path), "raw", [".jpg", ".jpeg"]).fingerprint != found.fingerprint
    with pytest.raises(EmptyDatasetError, match=r"no file \*\.png below"):
        list_files(str(tmp_path), "raw", [".png"])


def test_records_are_written_in_an_order_that_a_key_decides() -> None:
    records = [{"value": n * n} for n in range(500)]
    for key in (None, ("x", 0), ("x", 1)):
        rows = list(keyed_records(records, key, "told", 1 << 20, root="r"))
        assert sorted(row["i"] for row in rows) == list(range(500))
        assert all(row == {"i": row["i"], "root": "r", "value": row["i"] ** 2} for row in rows)
        assert ([row["i"] for row in rows] == list(range(500))) == (key is None)
    assert (
        keyed_records(records, ("x", 0), "told", 1).fingerprint
        != keyed_records(records, ("x", 1), "told", 1).fingerprint
    )


def test_images_that_are_none_are_named(tmp_path: Path) -> None:
    write(tmp_path / "good.jpg", image_bytes(1))
    write(tmp_path / "cut.jpg", image_bytes(1, size=(64, 64))[:-500])
    write(tmp_path / "text.jpg", b"<html>")
    row = {"root": str(tmp_path), "validates": 1}
    assert read_image(row, "good.jpg") == image_bytes(1)
    for name in ("cut.jpg", "text.jpg"):
        with pytest.raises(BadSampleError, match=rf"{name} is no image, or a damaged one"):
            read_image(row, name)
    row["validates"] = 0
    assert len(read_image(row, "cut.jpg")) > 1000
    with pytest.raises(BadSampleError, match=r"text\.jpg is no image file"):
        read_image(row, "text.jpg")


@pytest.mark.soak
def test_a_million_files_are_listed_in_bounded_memory(tmp_path: Path) -> None:
    for number in range(1_000_000):
        path = tmp_path / f"train/n{number // 1000:08}/n{number // 1000:08}_{number:07}.JPEG"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    found = ClassFolders.list(str(tmp_path), "train", (".jpeg",))
    print(f"listed in {time.monotonic() - begun:.1f} s")
    assert (len(found), len(found.classes)) == (1_000_000, 1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10
    assert len(pickle.dumps(found)) < 64_000_000
