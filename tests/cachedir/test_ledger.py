"""The ledger: what was brought, by whom it is read, and what a crash or a loss of power leaves of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cachedir.folder import Folder
from penstock.cachedir.layout import apart_name, boots_path, ledger_path, plain_name
from penstock.cachedir.ledger import Ledger, Record, boot_id, read_lines
from penstock.cachedir.lock import Stripes
from penstock.cachedir.presence import FileStamp, are_unchanged, look
from penstock.errors import AccessDeniedError
from penstock.fetcher.copies import CopyResolver
from penstock.fetcher.pieces import StoreHandle
from penstock.storage.base import ObjectInfo
from penstock.storage.local import LocalStore
from penstock.wire.item import Item, ItemPart, StoredFile
from tests.cache.kit import check_shard, content, left_over, write_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 1_800_000_000 * 10**9


def record_of(name: str, inode: int = 1, **changes: object) -> Record:
    record = Record(
        files=(FileStamp(name, 10, inode, 5),),
        url="s3://bucket/data",
        keys=(name,),
        stored_bytes=(10,),
        versions=('"tag"',),
        digests=("sha1:00",),
        edition="e",
        boot=None,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_a_ledger_that_comes_after_another_is_told_from_it(tmp_path: Path) -> None:
    """Who clears a cache deletes it: file systems soon give its inode to another file, which may be longer."""
    known = Ledger(tmp_path)
    for number in range(10):
        ledger_path(tmp_path).unlink(missing_ok=True)
        for more in range(number + 1):
            Ledger(tmp_path).put(record_of(f"{number}-{more}"))
        assert {record.name for record in known.all()} == {f"{number}-{more}" for more in range(number + 1)}


def test_it_says_what_was_said_last(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path), Ledger(tmp_path)
    ledger.put(record_of("a", boot="now"))
    ledger.put(record_of("b"))
    assert other.get("a") == record_of("a", boot="now")
    other.put(record_of("a", inode=2, boot="now"))
    ledger.note_flushed(record_of("a"))  # of a file that was fetched again meanwhile
    assert ledger.get("a") == record_of("a", inode=2, boot="now")
    ledger.note_flushed(record_of("a", inode=2))
    assert other.get("a") == record_of("a", inode=2)
    other.drop("b")
    assert ledger.all() == [record_of("a", inode=2)]
    ledger_path(tmp_path).unlink()  # the cache was deleted
    assert not other.all()


@given(st.integers(0, 2000))
def test_a_line_that_was_cut_says_nothing(num_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pst-ledger-") as name:
        check_cut_line(Path(name), num_bytes)


def check_cut_line(folder: Path, num_bytes: int) -> None:
    ledger = Ledger(folder)
    for name in "abcde":
        ledger.put(record_of(name))
    data = ledger_path(folder).read_bytes()
    whole = data[:num_bytes].count(b"\n")
    records: dict[str, Record] = {}
    assert whole <= read_lines(data[:num_bytes], records) <= whole + 1
    assert list(records)[:whole] == list("abcde")[:whole]
    ledger_path(folder).write_bytes(data[:num_bytes] + b"\0" * 300)  # as a journal may leave it
    ledger = Ledger(folder)
    ledger.put(record_of("f"))  # what comes after it is read all the same
    assert "f" in {record.name for record in Ledger(folder).all()}
    assert len(Ledger(folder).all()) in (whole + 1, whole + 2)


def test_it_does_not_grow_for_ever_and_loses_nothing_when_it_is_rewritten(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path) for _ in range(3)]

    def write(ledger: Ledger, first: str) -> None:
        for number in range(700):
            name = f"{first}{number % 5}"
            ledger.put(record_of(name, inode=number))
            ledger.drop(name)
            ledger.put(record_of(name, inode=number))
            if number % 50 == 0:
                ledger.all()

    threads = [threading.Thread(target=write, args=(ledger, name)) for ledger, name in zip(ledgers, "abc", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"{first}{number % 5}": number for first in "abc" for number in range(695, 700)}
    for ledger in ledgers:
        assert {record.name: record.files[0].inode for record in ledger.all()} == expected
    assert len(ledger_path(tmp_path).read_bytes().splitlines()) < 3000


def test_lines_that_name_files_elsewhere_are_not_believed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.put(record_of("a"))
    text = ledger_path(tmp_path).read_text()
    ledger_path(tmp_path).write_text(text.replace('"name":"a"', '"name":"../a"') + "[1]\n17\n" + '{"x": 1}\n')
    assert not Ledger(tmp_path).all()


def test_a_file_that_was_touched_is_no_longer_as_we_left_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    stamp = look(tmp_path, "a")
    assert stamp is not None
    record = record_of("a", files=(stamp,))
    assert are_unchanged(tmp_path, record.files)
    os.utime(tmp_path / "a", ns=(stamp.mtime_ns + 5, stamp.mtime_ns))  # to read it is no harm
    assert are_unchanged(tmp_path, record.files)
    os.utime(tmp_path / "a", ns=(stamp.mtime_ns, stamp.mtime_ns + 1))
    assert not are_unchanged(tmp_path, record.files)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert look(tmp_path, "link") is None
    os.mkfifo(tmp_path / "pipe")
    assert look(tmp_path, "pipe") is None


def test_names_apart() -> None:
    assert plain_name(apart_name("0a1b", "part.000/shard.00000.mds")) == "part.000/shard.00000.mds"
    assert plain_name("part.000/shard.00000.mds") == "part.000/shard.00000.mds"


# --- What proves what ---------------------------------------------------------------------------------------


def info(tag: str | None = None, age_s: float = 100.0, num_bytes: int = 10) -> ObjectInfo:
    return ObjectInfo("a", num_bytes, tag, NOW - int(age_s * 10**9))


def item_of(digest: str | None, num_bytes: int = 10, key: str = "a") -> Item:
    return Item((ItemPart(StoredFile("a", key, num_bytes, digest)),), edition="new", number=0)


@pytest.mark.parametrize(
    ("change", "item", "source", "expected"),
    [
        ({}, item_of("sha1:00"), "s3://bucket/data", True),
        ({}, item_of("sha1:01"), "s3://bucket/data", False),
        ({}, item_of("md5:00"), "s3://bucket/data", None),
        ({}, item_of(None), "s3://bucket/data", None),
        ({}, item_of(None, num_bytes=11), "s3://bucket/data", False),
        ({}, item_of("sha1:00", key="b"), "s3://bucket/data", False),
        ({}, item_of("sha1:00"), "s3://other/data", False),
        ({"digests": (None,)}, item_of("sha1:00"), "s3://bucket/data", None),
    ],
)
def test_what_the_index_says_of_a_copy(change: dict[str, Any], item: Item, source: str, expected: object) -> None:
    assert record_of("a", **change).is_settled_by_index(item, source) is expected


def test_what_the_store_says_of_a_copy() -> None:
    assert record_of("a").is_settled_by_store([info('"tag"')])
    assert not record_of("a").is_settled_by_store([info('"other"')])
    assert not record_of("a").is_settled_by_store([info('"tag"', num_bytes=11)])
    assert not record_of("a").is_settled_by_store([None])
    assert not record_of("a", versions=(None,)).is_settled_by_store([ObjectInfo("a", 10)])


# --- A loss of power ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_flushed", [True, False])
def test_what_was_not_flushed_is_not_trusted_after_another_boot(
    tmp_path: Path, runtime: Path, is_flushed: bool
) -> None:
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        check_shard(cache, 0)
    assert not left_over(runtime)
    path = data.local / "shard.00000.data"
    stamp = look(data.local, path.name)
    assert stamp is not None
    with path.open("r+b") as file:  # the right size, and zeros
        file.write(bytes(100_000))
    os.utime(path, ns=(stamp.mtime_ns, stamp.mtime_ns))
    text = ledger_path(data.local).read_text()
    lines = [line for line in text.splitlines() if "flushed" not in line or is_flushed]
    assert str(boot_id()) in text
    ledger_path(data.local).write_text("\n".join(lines).replace(str(boot_id()), "an-earlier-boot") + "\n")
    (table,) = data.local.glob(".penstock/editions/*/current-*")
    table.rename(table.with_name("current-earlier"))
    with data.cache() as cache, cache.lease(0, 0) as lease:
        is_old = lease.paths[0].read_bytes() == bytes(100_000)
        assert is_old is is_flushed
        assert is_old or lease.paths[0].read_bytes() == content("shard.00000.data", 100_000)


def test_a_file_whose_line_was_lost_with_the_power_is_not_believed(tmp_path: Path, runtime: Path) -> None:
    """It looks like one that the user put there, beside this very index; but it came when we brought files."""
    data = write_dataset(tmp_path)
    index = json.loads((data.remote / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["hashes"] = {}
    (data.remote / "index.json").write_text(json.dumps(index))
    with data.cache() as cache:
        for shard in data.shards:
            check_shard(cache, shard)
    assert not left_over(runtime)
    (data.local / "shard.00003.data").write_bytes(bytes(100_000))
    ledger_path(data.local).unlink(missing_ok=True)
    shutil.rmtree(data.local / ".penstock/editions")
    boots = boots_path(data.local)
    with data.cache() as cache, cache.lease(0, 3) as lease:  # in the same boot, it must be the user's
        assert lease.paths[0].read_bytes() == bytes(100_000)
    assert not left_over(runtime)
    ledger_path(data.local).unlink(missing_ok=True)
    shutil.rmtree(data.local / ".penstock/editions")
    boots.write_text(boots.read_text().replace(str(boot_id()), "an-earlier-boot"))
    with data.cache() as cache:
        for shard in data.shards:
            check_shard(cache, shard)
    assert len(boots.read_text().splitlines()) == 2


# --- Few questions ------------------------------------------------------------------------------------------


@dataclass
class CountingStore:
    """A folder that stands for a store far away, and counts what it is asked."""

    store: LocalStore
    can_list: bool = True
    lists: int = 0
    stats: int = 0

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.lists += 1
        if not self.can_list:
            raise AccessDeniedError("no")
        return self.store.list(prefix)

    def stat(self, key: str) -> ObjectInfo:
        self.stats += 1
        return self.store.stat(key)


@pytest.mark.parametrize(("can_list", "lists", "stats"), [(True, 1, 0), (False, 1, 20)])
def test_one_list_answers_for_all_shards(tmp_path: Path, can_list: bool, lists: int, stats: int) -> None:
    """Of data that were appended to, most shards are the same: it takes no question each to know that."""
    folder = Folder(tmp_path / "cache", Stripes())
    (tmp_path / "cache").mkdir()
    remote = LocalStore(tmp_path / "remote")
    (tmp_path / "remote").mkdir()
    store = CountingStore(remote, can_list)
    source = StoreHandle(store=cast("Any", store), url="s3://bucket/data", name="s3://bucket/data")
    for number in range(20):
        name = f"shard.{number:05}"
        for place in ("remote", "cache"):
            (tmp_path / place / name).write_bytes(b"0123456789")
        stamp = look(folder.directory, name)
        assert stamp is not None
        folder.ledger.put(record_of(name, files=(stamp,), versions=(remote.stat(name).etag,), digests=(None,)))
    (tmp_path / "remote/shard.00007").write_bytes(b"9876543210")
    copies = CopyResolver(threading.Semaphore())
    found = []
    for number in range(20):
        name = f"shard.{number:05}"
        item = Item((ItemPart(StoredFile(name, name, 10)),), edition="0e", number=number)
        found.append(copies.find(folder, item, source, folder.evict_held))
    assert [copy.is_right for copy in found] == [number != 7 for number in range(20)]
    assert not (tmp_path / "cache/shard.00007").exists()
    assert (store.lists, store.stats) == (lists, stats)
