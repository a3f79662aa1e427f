"""What can be asked of the fetcher, as plain values."""

from __future__ import annotations

from penstock.wire.item import Item, ItemPart, StoredFile, StoredSpan


def test_an_item_is_named_by_its_first_file_and_counts_what_stays() -> None:
    raw = StoredFile("a", "a", None, estimate=30)
    item = Item((ItemPart(raw, StoredFile("a.zstd", "a.zstd", 10)), ItemPart(StoredFile("b", "b", 5))), edition="new")
    assert (item.name, item.identity) == ("a", "new:a")
    assert (item.raw_bytes, item.packed_bytes) == (35, 10)
    assert [part.stored.name for part in item.parts] == ["a.zstd", "b"]


def test_a_digest_or_a_version_says_which_bytes_a_file_has() -> None:
    assert not StoredFile("a", "a", 10).is_pinned
    assert not StoredFile("a", "a", 10, span=StoredSpan(0, 100, None)).is_pinned
    assert StoredFile("a", "a", 10, span=StoredSpan(0, 100, "v1")).is_pinned
    assert StoredFile("a", "a", 10, digest="xxh64:00").is_pinned
