"""Plain text: every line is a sample."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptShardError
from penstock.formats.lines import scan
from tests.formats.in_place import InPlace, MemoryFile, scan_and_read

lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0\ufeff"), max_size=20)


@given(
    texts=st.lists(lines, min_size=1, max_size=20),
    ending=st.sampled_from(["\n", "\r\n"]),
    is_ended=st.booleans(),
    chunk_bytes=st.integers(1, 50),
    span_bytes=st.integers(1, 50),
)
def test_every_line_is_a_sample(
    texts: list[str], ending: str, is_ended: bool, chunk_bytes: int, span_bytes: int
) -> None:
    data = (ending.join(texts) + ending * is_ended).encode()
    expected = texts if is_ended or texts[-1] else texts[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "SPAN_BYTES", span_bytes)
        patch.setattr(scan, "_SMALLEST_SPAN_BYTES", span_bytes // 8)
        found = InPlace("text", MemoryFile("a.txt", data, chunk_bytes))
        assert found.samples() == [{"text": text} for text in expected]
        assert [text for columns in found.columns() for text in columns["text"]] == expected


def test_a_mark_of_byte_order_is_no_text() -> None:
    assert scan_and_read("text", b"\xef\xbb\xbfa\n\n b \n") == [{"text": "a"}, {"text": ""}, {"text": " b "}]


def test_a_line_that_is_not_utf8_names_file_and_line() -> None:
    found = InPlace("text", MemoryFile("a.txt", b"a\n\xff\nb\n"))
    with found.opened() as [reader]:
        assert reader.read([0, 2]) == [{"text": "a"}, {"text": "b"}]
        with pytest.raises(CorruptShardError, match=r"a\.txt, line 2: the line is not UTF-8"):
            reader.read([0, 1, 2])


def test_binary_files_are_refused() -> None:
    with pytest.raises(CorruptShardError, match=r"a\.txt contains null bytes"):
        InPlace("text", MemoryFile("a.txt", bytes(range(256))))
    with pytest.raises(CorruptShardError, match=r"a\.txt is encoded as UTF-16"):
        InPlace("text", MemoryFile("a.txt", "ab".encode("utf-16")))


def test_a_file_without_lines_has_no_shards() -> None:
    assert InPlace("text", MemoryFile("a.txt", b"")).scanned.shards == ()


def test_no_columns() -> None:
    found = InPlace("text", MemoryFile("a.txt", b"a\nb\n"))
    assert found.samples(columns=()) == [{}, {}]
    assert found.columns(columns=()) == [{}]
