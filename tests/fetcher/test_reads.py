"""Many ranges by few calls: which bytes come, of which version, and what happens if that changes meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ObjectChangedError
from penstock.fetcher.copies import EditionWatch
from penstock.fetcher.counts import FetcherCounts
from penstock.fetcher.pieces import MOST_AT_ONCE, PiecePool, StoreHandle
from penstock.fetcher.reads import ObjectReader
from penstock.storage.base import ObjectInfo, StoreSettings, check_version
from penstock.storage.ranges import RANGES_AT_ONCE, bundle
from penstock.types import Span
from penstock.wire.settings import CachedStream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NUM_BYTES, HOUR_NS = 1 << 20, 3600 * 10**9
SPANS = [Span(begin, begin + 10) for begin in range(0, 200 * 5000, 5000)]


class VersionedStore:
    """One object. Each time that a version is asked for, the next of `versions` is there: its letter is its bytes."""

    reads_together = True

    def __init__(self, versions: str, age_ns: int) -> None:
        self.versions, self.age_ns = versions, age_ns
        self.num_bundles = 0

    @property
    def now(self) -> str:
        return self.versions[0]

    def read_ranges(self, key: str, spans: Sequence[Span]) -> list[bytes]:
        self.num_bundles += 1
        return [self.now.encode() * len(span) for span in spans]

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[bytes, ObjectInfo]:
        self.versions = self.versions[1:] or self.versions
        info = ObjectInfo(key, NUM_BYTES, f'"{self.now}"', time.time_ns() - self.age_ns)
        check_version(key, info, etag)
        return self.now.encode() * len(span), info


class OneOrigin:
    def __init__(self, store: Any) -> None:
        self.store = store

    def of(self, _: CachedStream) -> StoreHandle:
        return StoreHandle(store=self.store, url="memory://bundles")


@pytest.fixture
def pool() -> Iterator[PiecePool]:
    pool = PiecePool()
    yield pool
    pool.close()


def read(pool: PiecePool, folder: Path, store: VersionedStore, spans: Sequence[Span] = SPANS) -> set[bytes]:
    """Read ranges, all of which have one version, and give that."""
    reader = ObjectReader(pool, FetcherCounts(), OneOrigin(store), EditionWatch())  # type: ignore[arg-type]
    stream = CachedStream(directory=folder, store=StoreSettings("memory://bundles"))
    reading = reader.start(stream, [("x", span) for span in spans], "0e", {})
    found = reading.future.result(30)
    assert [sum(memoryview(each).nbytes for each in pieces) for pieces in found] == [len(span) for span in spans]
    return {bytes(each)[:1] for pieces in found for each in pieces}


def test_what_was_written_long_before_is_of_one_version(pool: PiecePool, tmp_path: Path) -> None:
    store = VersionedStore("aa", HOUR_NS)
    assert read(pool, tmp_path, store) == {b"a"}
    assert store.num_bundles == 20


def test_more_than_all_threads_ask_for_at_once_take_no_more_calls_but_longer_ones(
    pool: PiecePool, tmp_path: Path
) -> None:
    store = VersionedStore("aa", HOUR_NS)
    spans = [Span(begin, begin + 10) for begin in range(0, 400 * 2500, 2500)]
    assert read(pool, tmp_path, store, spans) == {b"a"}
    assert store.num_bundles == 20


def test_few_are_read_one_by_one(pool: PiecePool, tmp_path: Path) -> None:
    store = VersionedStore("aa", HOUR_NS)
    assert read(pool, tmp_path, store, SPANS[:MOST_AT_ONCE]) == {b"a"}
    assert store.num_bundles == 0


def test_what_was_written_just_now_is_read_again_until_its_version_is_certain(pool: PiecePool, tmp_path: Path) -> None:
    store = VersionedStore("aa", 0)
    assert read(pool, tmp_path, store) == {b"a"}
    assert store.num_bundles == 40


def test_ranges_of_two_versions_are_never_given_together(pool: PiecePool, tmp_path: Path) -> None:
    assert read(pool, tmp_path, VersionedStore("abbb", 0)) == {b"b"}
    with pytest.raises(ObjectChangedError):
        read(pool, tmp_path, VersionedStore("abcd", 0))


@given(st.lists(st.integers(1, 1000), max_size=100), st.integers(1, 5000), st.integers(1, 4))
def test_bundles_hold_all_ranges_in_order(sizes: list[int], most_bytes: int, num_rounds: int) -> None:
    spans = [Span(2000 * number, 2000 * number + size) for number, size in enumerate(sizes)]
    bundles = bundle(spans, most_bytes=most_bytes, num_rounds=num_rounds)
    assert [span for each in bundles for span in each] == spans
    assert all(1 <= len(each) <= num_rounds * RANGES_AT_ONCE for each in bundles)
