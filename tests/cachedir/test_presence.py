"""A file is there if it is the one that was put there: every other one is none."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cachedir.presence import FileStamp, ShardStamp, are_unchanged, look, status_if_unchanged
from penstock.errors import BadIndexError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


NUMBERS = st.integers(0, 2**63 - 1)


FILES = st.lists(st.builds(FileStamp, st.just("a"), st.integers(0, 100), NUMBERS, NUMBERS), min_size=1, max_size=4)


@given(FILES, st.booleans(), st.data())
def test_a_shard_is_known_by_every_one_of_its_files(
    files: list[FileStamp], is_apart: bool, data: st.DataObject
) -> None:
    stamp = ShardStamp.of(files, is_apart=is_apart)
    assert stamp.place
    assert stamp.is_of(files)
    number = data.draw(st.integers(0, len(files) - 1))
    changed = files[number]
    others = [replace(changed, inode=changed.inode + 1), replace(changed, mtime_ns=changed.mtime_ns + 1)]
    for other in others:
        assert not stamp.is_of([*files[:number], other, *files[number + 1 :]])


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    """The same number of bytes, in the same file, at another time."""
    before = path.stat().st_mtime_ns
    path.write_bytes(bytes(100))
    os.utime(path, ns=(before, before + 1))


def replace_whole(path: Path) -> None:
    """The same number of bytes at the same time, in another file."""
    before = path.stat().st_mtime_ns
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(before, before))
    other.replace(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [append, rewrite, replace_whole, link, become_folder, os.unlink])
def test_a_file_that_was_changed_is_not_there(tmp_path: Path, change: Callable[[Path], None]) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        path.write_bytes(bytes(100))
    stamps = [found for path in paths if (found := look(tmp_path, path.name))]
    shard = ShardStamp.of(stamps, is_apart=False)

    def answers() -> list[bool]:
        return [
            status_if_unchanged(tmp_path, stamps[0]) is not None,
            are_unchanged(tmp_path, stamps),
            shard.is_first_at(str(paths[0]), 100),
            shard.are_others_at([str(paths[1])], [100]),
        ]

    assert answers() == [True, True, True, True]
    assert not shard.is_first_at(str(paths[0]), 99)
    assert not shard.are_others_at([str(paths[1])], [99])
    change(paths[1])
    assert answers() == [True, False, True, False]
    change(paths[0])
    assert answers() == [False, False, False, False]


def test_a_file_in_a_folder_that_became_a_link_is_not_there(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    (directory / "below").mkdir(parents=True)
    (directory / "below" / "a").write_bytes(b"a")
    stamp = look(directory, "below/a")
    assert stamp is not None
    assert are_unchanged(directory, [stamp])
    (directory / "below").rename(elsewhere)
    (directory / "below").symlink_to(elsewhere)
    assert not are_unchanged(directory, [stamp])
    with pytest.raises(BadIndexError):
        look(directory, "below/a")
