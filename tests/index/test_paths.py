"""Names in an index stay inside its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadIndexError
from penstock.index.catalog import parse_index
from penstock.index.model import Column, FileInfo, Index, IndexedShard, Part, ShardLayout
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import resolve_inside

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = ShardLayout(format="csv", columns=(Column("a", "str"),), compression="zstd", settings={"newline": "\n"})


def parse_with(raw: str = "a", packed: str = "b", meta: str = "c") -> Index:
    """Read an index whose files have these names."""
    parts = (Part(FileInfo(raw, 100), FileInfo(packed, 100)), Part(FileInfo(meta, 100), FileInfo("d", 100)))
    return parse_index(dump_index(Index((IndexedShard(LAYOUT, 1, parts),))), "here")


OUTSIDE = [
    "",
    ".",
    "..",
    "/",
    "../x",
    "a/../../x",
    "a/../x",
    "a/..",
    "./x",
    "a/./x",
    "/etc/passwd",
    "//x",
    "a//b",
    "a/",
    "\\x",
    "..\\x",
    "C:\\x",
    "a\\..\\x",
    "x\0",
    "\0",
    "a/\0/b",
    "\ud800",
    "a/\udcff",
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("field", ["raw", "packed", "meta"])
def test_names_that_lead_out(name: str, field: str) -> None:
    with pytest.raises(BadIndexError) as caught:
        parse_with(**{field: name})
    assert str(caught.value).startswith(
        f"Index file at here: shard 0 names the file {name!r}, which is not a plain path inside"
    )
    assert isinstance(caught.value, ValueError)


RESERVED = [
    ".x",
    "..x",
    "...",
    ".bashrc",
    ".git/hooks/pre-commit",
    ".penstock/locks",
    "a/.penstock/x",
    "a/.ssh",
    "index.json",
    "a/index.json",
    "a/b/Index.JSON",
    "index.json/x",
    "x\n",
    "\x1b[2J",
    "a/\x7f",
    "a\x9bb",
]


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("field", ["raw", "packed", "meta"])
def test_names_that_belong_to_others(name: str, field: str) -> None:
    with pytest.raises(BadIndexError) as caught:
        parse_with(**{field: name})
    assert str(caught.value).startswith(
        f"Index file at here: shard 0 names the file {name!r}, which is not allowed: names that begin with a"
        " dot, index.json and control characters are refused"
    )


NAMES = [
    "x", "a/b", "a/b/c.mds", "x..", "a b", "é", "~", "a/~/b", "shard.00000.mds", "shard.00000.mds.zstd",
    "2024-01-01/part=7/shard.00012.json.meta.gz", "index.json.zstd", "my.index.json", "index", "日本語", "a:b",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_stay(name: str, tmp_path: Path) -> None:
    assert parse_with(name).shards[0].name == name
    assert resolve_inside(tmp_path, name) == tmp_path.joinpath(*name.split("/"))


@given(st.text(st.sampled_from("./\\ab\0\x1b~"), max_size=8))
def test_accepted_names_never_leave(name: str) -> None:
    has_odd = any(letter in name for letter in "\\\0\x1b")
    if has_odd or any(not part or part.startswith(".") for part in name.split("/")):
        with pytest.raises(BadIndexError):
            parse_with(name)
    else:
        assert parse_with(name).shards[0].name == name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_text("secret")
    folder = tmp_path / "dataset"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("fine")
    return folder


@pytest.mark.parametrize(
    ("link", "target", "name"),
    [
        ("link", "../secret", "link"),
        ("link", "../elsewhere", "link/file"),
        ("sub/link", "../../secret", "sub/link"),
        ("sub/link", "../..", "sub/link/secret"),
        ("link", "../missing", "link"),
        ("link", "..", "link"),
        ("link", "/", "link/etc/passwd"),
    ],
)
def test_links_that_lead_out(folder: Path, link: str, target: str, name: str) -> None:
    (folder / link).symlink_to(target)
    with pytest.raises(BadIndexError) as caught:
        resolve_inside(folder, name)
    assert str(caught.value).startswith(
        f"{folder / name} leads outside the folder of the dataset through a symbolic link"
    )
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("link", "target", "name"), [("link", "file", "link"), ("sub/up", "..", "sub/up/file")])
def test_links_that_stay(folder: Path, link: str, target: str, name: str) -> None:
    (folder / link).symlink_to(target)
    assert resolve_inside(folder, name).read_text() == "fine"


def test_a_folder_may_itself_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert resolve_inside(tmp_path / "link", "file").read_text() == "fine"


def test_a_neighbour_with_a_longer_name_is_outside(folder: Path) -> None:
    (folder.parent / "dataset2").mkdir()
    (folder.parent / "dataset2/file").write_text("secret")
    (folder / "link").symlink_to("../dataset2/file")
    with pytest.raises(BadIndexError, match="leads outside"):
        resolve_inside(folder, "link")
