"""Digests by name: the values everybody else computes, and what happens when they differ."""

from __future__ import annotations

import hashlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs.digest import check_digest, check_hashes, digest, known_hashes, new_hasher
from penstock.errors import ConfigError, CorruptShardError

XXHASH = ["xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64"]


@pytest.mark.parametrize("name", known_hashes())
def test_digests_are_those_of_the_libraries(name: str) -> None:
    content = b"some content"
    expected = getattr(xxhash if name in XXHASH else hashlib, name)(content).hexdigest()
    assert digest([content], [name]) == {name: expected}
    assert digest([content[:3], b"", memoryview(content)[3:]], [name]) == {name: expected}


def test_digests_of_nothing() -> None:
    assert digest([], ["sha1", "xxh64"]) == {
        "sha1": "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "xxh64": "ef46db3751d8e999",
    }
    assert digest([b"x"], []) == {}


@given(st.lists(st.binary()), st.sampled_from(known_hashes()))
def test_pieces_do_not_matter(pieces: list[bytes], name: str) -> None:
    assert digest(pieces, [name]) == digest([b"".join(pieces)], [name])


def test_names_are_sorted_and_taken_once() -> None:
    assert check_hashes(None) == ()
    assert check_hashes([]) == ()
    assert check_hashes("sha1") == ("sha1",)
    assert check_hashes(["xxh64", "md5", "xxh64"]) == ("md5", "xxh64")
    assert check_hashes(iter(["sha1"])) == ("sha1",)


@pytest.mark.parametrize("name", ["", "SHA1", "sha-1", "crc32", "shake_128", "new", "algorithms_available"])
def test_unknown_hashes_list_the_known_ones(name: str) -> None:
    for check in (check_hashes, new_hasher):
        with pytest.raises(ConfigError) as caught:
            check(name)
        assert str(caught.value) == f"unknown hash {name!r}: use one of {', '.join(known_hashes())}"
        assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match="^unknown hash"):
        check_hashes(["sha1", name])


@pytest.mark.parametrize("name", known_hashes())
def test_a_wrong_digest(name: str) -> None:
    expected = digest([b"content"], [name])
    check_digest(b"content", expected, name, "some.file")
    with pytest.raises(
        CorruptShardError, match=rf"^some\.file has the {name} digest [0-9a-f]+, but the index says "
    ) as caught:
        check_digest(b"c0ntent", expected, name, "some.file")
    assert isinstance(caught.value, ValueError)
    assert expected[name] in str(caught.value)


def test_a_digest_that_was_never_recorded() -> None:
    with pytest.raises(
        ConfigError, match=r"^some\.file has no md5 digest to check: the index has sha1, xxh64"
    ) as caught:
        check_digest(b"content", {"sha1": "", "xxh64": ""}, "md5", "some.file")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match=r"^some\.file has no md5 digest to check: the index has none"):
        check_digest(b"content", {}, "md5", "some.file")
