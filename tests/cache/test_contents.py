"""What a listing of the cache says: which datasets, how much of each, and who reads it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import list_cache
from penstock.cache.contents import Contents, Standing, describe, is_at, mark_newest, standings
from penstock.cachedir.layout import apart_name
from penstock.errors import CacheError, ObjectNotFoundError
from tests.cache.found import FOLDER, make_copy, make_edition
from tests.cache.kit import Dataset, check_shard, finish, start_client, write_dataset, write_index

if TYPE_CHECKING:
    from penstock.cache.contents import FoundEdition

# --- Plain values -------------------------------------------------------------------------------------------


EDITIONS = st.lists(
    st.tuples(st.sampled_from(["s3://b/a", "s3://b/c", None]), st.integers(0, 3), st.booleans()), max_size=8
).map(lambda rows: [make_edition(f"{n:x}", source, at, is_open=up) for n, (source, at, up) in enumerate(rows)])


@given(EDITIONS)
def test_each_source_has_one_newest_edition_and_it_was_opened_last(editions: list[FoundEdition]) -> None:
    marked = mark_newest(editions)
    assert {found.edition.name for found in marked} == {found.edition.name for found in editions}
    for source in {found.source for found in editions} - {None}:
        (newest,) = [found for found in marked if found.source == source and found.is_newest]
        assert newest.opened_s == max(found.opened_s for found in editions if found.source == source)
    assert not any(found.is_newest for found in marked if found.source is None)


@given(EDITIONS, st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.integers(1, 99)), max_size=20))
def test_sums_are_complete_and_only_what_no_process_reads_is_outdated(
    editions: list[FoundEdition], rows: list[tuple[int, bool, int]]
) -> None:
    copies = []
    for number, (owner, is_apart, num_bytes) in enumerate(rows):
        name = apart_name(f"{owner:x}", f"s{number}") if is_apart else f"s{number}"
        copies.append(make_copy(name, num_bytes, edition=f"{owner:x}"))
    contents = Contents(directory=FOLDER, copies=tuple(copies), index=None, editions=mark_newest(editions))
    listed = describe(contents, {})
    assert sum(dataset.num_bytes for dataset in listed) == contents.num_bytes
    assert sum(dataset.num_shards for dataset in listed) == len(copies)
    known = {found.edition.name: found for found in contents.editions}
    for copy, standing in zip(copies, standings(contents), strict=True):
        edition = known.get(copy.record.edition)
        is_open = edition is not None and edition.is_open
        is_newest = edition is not None and edition.is_newest
        assert (standing is Standing.NEEDED) == (is_open and not is_newest)
        assert (standing is Standing.OUTDATED) == (copy.is_apart and not is_open and not is_newest)


@pytest.mark.parametrize(
    ("source", "url", "expected"),
    [
        ("s3://b/data", "s3://b/data", True),
        ("s3://b/data", "s3://b/data/", True),
        ("s3://b/data/train", "s3://b/data", True),
        ("s3://b/data", "s3://b/data/train", False),
        ("s3://b/database", "s3://b/data", False),
        ("s3://b/data at http://127.0.0.1:9000", "s3://b/data", True),
        ("s3://b/data at http://127.0.0.1:9000", "s3://b/data at http://127.0.0.1:9000", True),
        ("https://host/data", "https://me:word@host/data?signature=x", True),
        ("/data/a", "/data/b/../a", True),
        ("/data/a", "file:///data/a", True),
        ("file:///data/a", "/data/a", True),
        ("/data/a at home", "/data/a", False),
        ("/data", "/", True),
    ],
)
def test_a_url_means_its_dataset_and_splits_below_it(source: str, url: str, expected: bool) -> None:
    assert is_at(source, url) is expected


# --- Real directories ---------------------------------------------------------------------------------------


_HOLD = """
import sys
from pathlib import Path
from tests.cache.kit import check_shard, open_dataset
with open_dataset(Path(sys.argv[1])).cache() as cache:
    cache.open_index(0)
    for shard in range(int(sys.argv[2])):
        check_shard(cache, shard)
    print("here", flush=True)
    sys.stdin.read()
"""


def test_a_listing_says_how_much_since_when_and_who(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_parts=2)
    before = time.time() - 1
    reader = start_client(_HOLD, tmp_path, 3)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "here\n"
    (listed,) = list_cache([data.local])
    assert (listed.source, listed.directory) == (str(data.remote), str(data.local))
    assert (listed.num_shards, listed.num_files, listed.num_bytes) == (3, 6, 600_000)
    assert (listed.pinned_bytes, listed.outdated_bytes) == (0, 0)
    assert listed.since is not None
    assert listed.last_used is not None
    assert before < listed.since <= listed.last_used < time.time() + 1
    (edition,) = listed.editions
    assert edition.is_newest
    assert edition.num_bytes == 600_000
    assert listed.is_open
    assert listed.processes == (reader.pid,)
    reader.kill()
    reader.communicate()
    (listed,) = list_cache([data.local])
    assert not listed.is_open
    assert listed.processes == ()


def test_two_datasets_in_one_folder_are_listed_apart(tmp_path: Path) -> None:
    one = write_dataset(tmp_path / "one")
    other = write_dataset(tmp_path / "other", num_shards=2)
    shared = Dataset(other.remote, one.local, other.index)
    with one.cache() as first, shared.cache() as second:
        for shard in range(2):
            check_shard(first, shard)
            check_shard(second, shard)
        second.pin(0, [1])
    found = {dataset.source: dataset for dataset in list_cache([one.local])}
    assert set(found) == {str(one.remote), str(other.remote)}
    assert [dataset.num_shards for dataset in found.values()] == [2, 2]
    assert found[str(other.remote)].pinned_bytes == 100_000


def test_an_old_edition_is_outdated_once_no_process_reads_it(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=2)
    reader = start_client(_HOLD, tmp_path, 2)
    assert reader.stdout is not None
    reader.stdout.readline()
    os.utime(data.remote / "index.json", (1, 1))  # written again, with the same bytes
    with data.cache() as cache:
        check_shard(cache, 0)
        (listed,) = list_cache([data.local])
        assert [edition.is_newest for edition in listed.editions] == [True, False]
        assert [edition.processes for edition in listed.editions] == [(os.getpid(),), (reader.pid,)]
    finish(reader)


def test_only_what_is_as_we_left_it_is_counted(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    data.local.mkdir()
    (data.local / "mine.txt").write_bytes(bytes(1000))
    with data.cache() as cache:
        for shard in data.shards:
            check_shard(cache, shard)
    (data.local / "shard.00000.data").write_bytes(bytes(100_000))
    (data.local / "shard.00001.data").unlink()
    (listed,) = list_cache([data.local])
    assert listed.num_bytes == 400_000


def test_folders_that_are_no_caches(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert list_cache([tmp_path / "empty"]) == ()
    with pytest.raises(ObjectNotFoundError, match="is not a folder"):
        list_cache([tmp_path / "missing"])


def test_links_are_not_followed(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data")
    with data.cache() as cache:
        check_shard(cache, 0)
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / ".penstock").symlink_to(data.local / ".penstock")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "below").symlink_to(data.local)
    assert list_cache([tmp_path / "other"]) == ()
    assert len(list_cache([tmp_path])) == 1
    with pytest.raises(CacheError, match="is a link"):
        list_cache([tmp_path / "trap"])


def test_a_split_is_found_below_its_folder(tmp_path: Path) -> None:
    for name in ("train", "val"):
        data = write_dataset(tmp_path / name, num_shards=1)
        write_index(data)
        moved = Dataset(data.remote, tmp_path / "local" / name, data.index)
        with moved.cache() as cache:
            check_shard(cache, 0)
    assert [Path(found.directory).name for found in list_cache([tmp_path / "local"])] == ["train", "val"]
