"""What a user calls the data: roots, globs, lists, names. Pure."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.scan.patterns import NamedFiles, find_source, fits, has_magic, literal_prefix, split_suffix

SUFFIXES = (".parquet", ".jsonl", ".tar")


@pytest.mark.parametrize(
    ("given_place", "root", "patterns"),
    [
        ("s3://bucket/train", "s3://bucket/train", [""]),
        ("s3://bucket/train/", "s3://bucket/train/", [""]),
        ("s3://bucket", "s3://bucket", [""]),
        ("s3://bucket/train/*.parquet", "s3://bucket/train", ["*.parquet"]),
        ("s3://bucket/*/a-?.parquet", "s3://bucket", ["*/a-?.parquet"]),
        ("s3://bucket/train/a.parquet", "s3://bucket/train", ["a.parquet"]),
        ("s3://bucket/train/a.jsonl.GZ", "s3://bucket/train", ["a.jsonl.GZ"]),
        ("s3://bucket/table.parquet/", "s3://bucket/table.parquet/", [""]),
        ("/data/train/{a,b}.jsonl", "/data/train", ["{a,b}.jsonl"]),
        ("data/*.tgz", "data", ["*.tgz"]),
        ("a.tar", ".", ["a.tar"]),
        ("*.tar", ".", ["*.tar"]),
        ("/*.tar", "/", ["*.tar"]),
        ("file:///data/*.tar", "file:///data", ["*.tar"]),
        ("https://host/a/b.parquet", "https://host/a", ["b.parquet"]),
        ("https://host/b.parquet", "https://host", ["b.parquet"]),
        ("https://host/data", "https://host/data", [""]),
        ("hf://datasets/org/name/data/*.parquet", "hf://datasets/org/name/data", ["*.parquet"]),
        (
            "hf://datasets/org/name@refs/convert/parquet/*/*.parquet",
            "hf://datasets/org/name@refs/convert/parquet",
            ["*/*.parquet"],
        ),
        (["s3://b/x/1.tar", "s3://b/x/2.tar"], "s3://b/x", ["1.tar", "2.tar"]),
        (["s3://b/x/2.tar", "s3://b/y/1.tar", "s3://b/x/2.tar"], "s3://b", ["x/2.tar", "y/1.tar"]),
        (["s3://b/x/1/*.tar", "s3://b/x/2/*.tar"], "s3://b/x", ["1/*.tar", "2/*.tar"]),
        (["/data/a.tar"], "/data", ["a.tar"]),
    ],
)
def test_places(given_place: str | list[str], root: str, patterns: list[str]) -> None:
    assert find_source(given_place, SUFFIXES) == NamedFiles(root, tuple(patterns))


def test_lists_that_name_several_places() -> None:
    with pytest.raises(ConfigError, match="several places, such as s3://a/ and s3://b/: make a stream for each"):
        find_source(["s3://a/1.tar", "s3://b/1.tar"], SUFFIXES)
    with pytest.raises(ConfigError, match="the list of files is empty"):
        find_source([], SUFFIXES)


def test_a_question_mark_on_the_web_is_no_glob() -> None:
    assert not has_magic("https://host/a.parquet?token=1")
    assert has_magic("s3://bucket/a-?.parquet")
    assert has_magic("https://host/*.parquet")


@pytest.mark.parametrize(
    ("glob", "fitting", "others"),
    [
        ("*.tar", ["a.tar", "ü.tar"], ["a/b.tar", ".a.tar", "a.tar.gz"]),
        ("**/*.tar", ["a.tar", "x/y/a.tar"], ["x/.git/a.tar", "a.tax"]),
        ("**", ["a", "x/y"], [".x"]),
        ("x/**", ["x/a", "x/y/a"], ["y/a"]),
        ("a-[0-9].tar", ["a-3.tar"], ["a-x.tar", "a-12.tar"]),
        ("a-[!0-9].tar", ["a-x.tar"], ["a-3.tar"]),
        ("{train,test}-*.tar", ["train-1.tar", "test-.tar"], ["dev-1.tar"]),
        (".hidden/*.tar", [".hidden/a.tar"], ["hidden/a.tar"]),
        ("a+(b).tar", ["a+(b).tar"], ["aab.tar"]),
        ("a[.tar", ["a[.tar"], ["a.tar"]),
    ],
)
def test_globs(glob: str, fitting: list[str], others: list[str]) -> None:
    assert [name for name in fitting + others if fits(glob, name)] == fitting


@given(st.text("ab*?.-", min_size=1, max_size=8), st.text("ab.-", min_size=1, max_size=8))
def test_within_a_folder_globs_are_those_of_shells(glob: str, name: str) -> None:
    if "**" not in glob and not name.startswith("."):
        assert fits(glob, name) == bool(re.fullmatch(fnmatch.translate(glob), name))
    if fits(glob, name):
        assert name.startswith(literal_prefix(glob))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x/A.JSONL.gz", ("a.jsonl", "gz")),
        ("a.tgz", ("a.tar", "gz")),
        ("a.csv.zst", ("a.csv", "zstd")),
        ("part-0.snappy.parquet", ("part-0.snappy.parquet", None)),
    ],
)
def test_suffixes(name: str, expected: tuple[str, str | None]) -> None:
    assert split_suffix(name) == expected
