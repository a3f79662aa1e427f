"""What a cache asks: the node's fetcher, and the scheduler of this process for stores in memory, do the same."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.cache.client import Group, shared_client
from penstock.cache.local_line import local_line
from penstock.cachedir.items import item_of_object, item_of_shard, resolved
from penstock.errors import CacheTooSmallError, ObjectNotFoundError
from penstock.fetcher.pieces import MOST_AT_ONCE
from penstock.types import Span
from penstock.wire.item import Item, Want
from penstock.wire.messages import Expect, Fetch, GetStats, GetStreamCounts, LeaseAcquired, Read, Released
from tests.cache.kit import Dataset, content, wait_until, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.types import Place
    from penstock.wire.messages import GroupUpdate
    from penstock.wire.quota import OpenShardQuota


class Heard:
    """What a cache hears of whom it asks."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.shares: list[OpenShardQuota] = []
        self.caused: Counter[str] = Counter()

    def hear(self, news: GroupUpdate) -> None:
        self.warnings += news.warnings
        if news.quota is not None:
            self.shares.append(news.quota)
        for stream, caused in news.counts.items():
            self.caused.update({"stream": stream, "downloads": caused.downloads, "bytes": caused.num_bytes})
            self.caused["again"] += caused.again


@pytest.fixture(params=["fetcher", "this process"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


class Asked(NamedTuple):
    """What is asked, and the group that it is asked for."""

    line: Any
    group: Group

    def fetch(self, wanted: Item) -> Any:
        return self.line.request(Fetch(self.group.number, 0, wanted, is_urgent=True))[0]

    def read(self, places: Sequence[Place], shards: Mapping[str, int] | None = None) -> list[bytes]:
        found, payload = self.line.request(Read(self.group.number, 0, tuple(places), "0e", dict(shards or {})))
        ends = list(accumulate(found.sizes))
        return [payload[begin:end] for begin, end in pairwise([0, *ends])]

    def refresh_counts(self) -> None:
        self.group.on_update(self.line.request(GetStreamCounts(self.group.number))[0])


@contextmanager
def opened(kind: Any, data: Dataset, limit_bytes: int | None = None, heard: Heard | None = None) -> Iterator[Asked]:
    line = (local_line if kind == "this process" else shared_client).get()
    group = Group([resolved(data.stream())], limit_bytes, (heard or Heard()).hear)
    line.join(group)
    try:
        line.connect()
        yield Asked(line, group)
    finally:
        line.leave(group)


def item(data: Dataset, number: int) -> Item:
    return item_of_shard(data.infos[number], number, "0e")


def test_it_brings_an_item_once_and_counts_it(tmp_path: Path, kind: Any) -> None:
    data, heard = write_dataset(tmp_path, compression="zstd"), Heard()
    with opened(kind, data, None, heard) as asked:
        assert asked.line.is_connected
        first, again = asked.fetch(item(data, 0)), asked.fetch(item(data, 0))
        assert (data.local / first.name).read_bytes() == content(first.name, 100_000)
        assert first.name == again.name
        assert (first.num_downloaded > 0, again.num_downloaded) == (True, 0)
        for _ in range(2):
            asked.refresh_counts()  # nothing is told twice
            assert heard.caused == {"stream": 0, "downloads": 1, "bytes": first.num_downloaded, "again": 0}
        stats = asdict(asked.line.request(GetStats())[0])
        assert (stats["downloads"], stats["groups"], stats["queued"]) == (1, 1, 0)


def test_it_brings_what_is_expected_and_tells_unasked(tmp_path: Path, kind: Any) -> None:
    data, heard = write_dataset(tmp_path), Heard()
    with opened(kind, data, None, heard) as asked:
        wants = tuple(Want(0, item(data, number), number, is_present=False) for number in data.shards)
        asked.line.request(Expect(asked.group.number, wants))
        wait_until(lambda: len(data.cached_names()) == 6)
        wait_until(lambda: heard.caused["downloads"] == 6)
        assert heard.caused["bytes"] == 600_000


def test_it_reads_objects_and_ranges_in_the_order_asked_for(tmp_path: Path, kind: Any) -> None:
    data = write_dataset(tmp_path)
    names = [item(data, number).name for number in (0, 1)]
    places = [(names[1], None), (names[0], Span(5, 50)), (names[1], Span(0, 3)), (names[0], Span(7, 7))]
    with opened(kind, data) as asked:
        found = asked.read(places)
        assert found[0] == content(names[1], 100_000)
        assert found[1:] == [content(names[0], 50)[5:], content(names[1], 3), b""]
        assert asked.read(places[1:2], {names[0]: 0}) == [content(names[0], 50)[5:]]
        assert not data.cached_names()


def test_more_reads_than_threads_all_end(tmp_path: Path, kind: Any) -> None:
    data = write_dataset(tmp_path)
    name = item(data, 0).name
    with opened(kind, data) as asked, ThreadPoolExecutor(150) as pool:
        spans = [Span(number, number + 10) for number in range(300)]
        found = list(pool.map(lambda span: asked.read([(name, span)])[0], spans))
        assert found == [content(name, 1000)[span.begin : span.end] for span in spans]
        assert sum(thread.name.startswith("penstock-piece") for thread in threading.enumerate()) <= MOST_AT_ONCE


def test_its_errors_are_of_our_tree(tmp_path: Path, kind: Any) -> None:
    data = write_dataset(tmp_path)
    with opened(kind, data) as asked:
        with pytest.raises(ObjectNotFoundError):
            asked.fetch(item_of_object("absent", "absent", 10, edition="0e"))
        with pytest.raises(ObjectNotFoundError):
            asked.read([("absent", None)])


def test_it_keeps_to_a_limit_and_says_what_may_stay_open(tmp_path: Path, kind: Any) -> None:
    data, heard = write_dataset(tmp_path), Heard()
    with opened(kind, data, 250_000, heard) as asked:
        wait_until(lambda: heard.shares)
        assert heard.shares[0].num_bytes == 125_000
        for number in data.shards:
            asked.fetch(item(data, number))
            asked.line.note(LeaseAcquired(asked.group.number, 0, item(data, number).identity))
            asked.line.note(Released())
        assert len(data.cached_names()) == 2
        asked.fetch(item(data, 0))
        asked.refresh_counts()
        assert (heard.caused["downloads"], heard.caused["again"]) == (7, 1)
        with pytest.raises(CacheTooSmallError, match="raise cache_limit"):
            asked.fetch(item_of_object(item(data, 0).name, "copy", 300_000, edition="0e"))
        with opened(kind, data, None, heard):
            assert "another dataset on this node limits" in heard.warnings[0]
