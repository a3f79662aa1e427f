"""Names are escaped in URLs where they would mean something else, and found again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scan.patterns import find_source, take_queries
from penstock.storage.url_names import join_url, real_name, unescaped

NAMES = [
    "x y",
    "x%20y",
    "per%cent",
    "100%",
    "a#b",
    "what?",
    "ü-日",
    "a+b=c,d&e;f@g:h",
    "[1]",
    "{a,b}",
    "s*",
    "it's~\"<|>^",
]


KEYS = [f"{name}.jsonl" for name in NAMES]


ROOTS = ["http://host/a%20b", "https://host", "file:///a%20b", "sftp://me@host/~/a%23b", "s3://bucket/a%20b", "/a%20b"]


@given(st.sampled_from(ROOTS), st.lists(st.text("ab %2Fü#?&+*[{'\"~.", min_size=1, max_size=9), min_size=1, max_size=3))
def test_the_url_of_a_name_finds_it_again(root: str, parts: list[str]) -> None:
    name = "/".join(f"x{part}" for part in parts) + ".jsonl"
    url = join_url(root, name)
    for given_place in (url, [url]):
        assert take_queries(given_place) == (given_place, {})
        found = find_source(given_place, [".jsonl"])
        assert join_url(found.root, found.patterns[0]) == url
        assert f"{real_name(root, found.root)}/{found.patterns[0]}" == f"{real_name(root, root)}/{name}"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://host/x%20y", "x y"),
        ("http://host/x y", "x y"),
        ("http://host/per%25cent", "per%cent"),
        ("http://host/per%cent", "per%cent"),
        ("http://host/%C3%BC", "ü"),
        ("sftp://host/x%20y", "x y"),
        ("file:///x%20y", "x y"),
        ("/x%20y", "x%20y"),
        ("s3://bucket/x%20y", "x%20y"),
        ("hf://datasets/org/name/x%20y", "x%20y"),
    ],
)
def test_which_names_are_escaped(url: str, name: str) -> None:
    assert find_source([url], ()).patterns == (name,)


def test_a_part_that_is_no_escaped_text_leaves_others_alone() -> None:
    assert unescaped("per%cent/x%20y") == "per%cent/x y"
