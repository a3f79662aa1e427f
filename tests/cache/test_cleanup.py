"""Clearing and pruning by hand: what goes, in which order, and what never does."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import clear_cache, list_cache, prune_cache
from penstock.cache.cleanup import RemovalOutcome, removal_order, remove_in_order, sum_up
from penstock.cache.contents import CachedCopy, Contents, Standing, mark_newest, standings
from penstock.cachedir.folder import Folder
from penstock.cachedir.layout import apart_name, default_directory, new_part_path, stripe_of
from penstock.cachedir.lock import Stripes
from penstock.errors import CacheError, ConfigError
from tests.cache.found import FOLDER, make_copy, make_edition
from tests.cache.kit import Dataset, check_shard, finish, start_client, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.cache.cleanup import Removable


def fill(data: Dataset) -> None:
    with data.cache() as cache:
        for shard in data.shards:
            check_shard(cache, shard)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "own"))
    return tmp_path / "own"


# --- Plain values -------------------------------------------------------------------------------------------

COPIES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=20).map(
    lambda rows: [
        make_copy(
            apart_name(f"e{edition}", f"s{number}") if is_apart else f"s{number}",
            num_bytes,
            edition=f"e{edition}",
            used=used,
        )
        for number, (num_bytes, used, edition, is_apart) in enumerate(rows)
    ]
)
OUTCOMES = st.lists(st.sampled_from(RemovalOutcome), min_size=40, max_size=40)


def name_of(copy: Removable) -> str:
    assert isinstance(copy, CachedCopy)
    return copy.record.name


@given(COPIES, st.booleans())
def test_outdated_copies_go_first_then_those_used_longest_ago(copies: list[CachedCopy], is_open: bool) -> None:
    editions = [make_edition("e0", "s3://b/a", 2), make_edition("e1", "s3://b/a", 1, is_open=is_open)]
    contents = Contents(directory=FOLDER, copies=tuple(copies), index=None, editions=mark_newest(editions))
    standing = dict(zip((copy.record.name for copy in copies), standings(contents), strict=True))
    kept, going = removal_order([contents])
    assert {copy.record.name for copy in kept} == {name for name in standing if standing[name] is Standing.NEEDED}
    assert len(kept) + len(going) == len(copies)
    ranks = [(standing[name_of(copy)] is not Standing.OUTDATED, copy.last_used_s) for copy in going]
    assert ranks == sorted(ranks)


@given(COPIES, OUTCOMES, st.integers(-1, 500))
def test_no_more_goes_than_has_to(copies: list[CachedCopy], outcomes: list[RemovalOutcome], to_bytes: int) -> None:
    answers = iter(outcomes)
    asked: Counter[str] = Counter()
    waits: list[float] = []

    def remove(copy: CachedCopy, wait_s: float) -> RemovalOutcome:
        asked[copy.record.name] += 1
        waits.append(wait_s)
        return next(answers)

    before = sum(copy.num_bytes for copy in copies)
    tried, left = remove_in_order(copies, remove, left_bytes=before, to_bytes=to_bytes)
    freed = [copy.num_bytes for copy, outcome in tried if outcome in (RemovalOutcome.REMOVED, RemovalOutcome.GONE)]
    assert left == before - sum(freed)
    assert left <= to_bytes or {name_of(copy) for copy, _ in tried} == {copy.record.name for copy in copies}
    assert not freed or left + freed[-1] > to_bytes  # the last one was needed
    assert max(asked.values(), default=0) <= 2
    assert all(count == 1 for count in Counter(name_of(copy) for copy, _ in tried).values())
    totals = sum_up(tried)
    assert sum(dataset.num_removed for dataset in totals) == sum(
        outcome is RemovalOutcome.REMOVED for _, outcome in tried
    )


# --- Clearing -----------------------------------------------------------------------------------------------


def test_clearing_takes_our_files_and_nothing_else(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_parts=2, compression="zstd")
    data.local.mkdir()
    (data.local / "mine.txt").write_text("mine")
    (data.local / "shard.00009.data").write_text("mine, too")
    fill(data)
    (data.local / "shard.00003.data").write_text("changed by me")
    removal = clear_cache(folders=[data.local])
    (dataset,) = removal.datasets
    assert dataset.source == str(data.remote)
    assert dataset.num_removed == 5
    assert (removal.removed_bytes, removal.left_bytes) == (1_000_000, 0)
    left = {path.name for path in data.local.iterdir()}
    assert left == {"mine.txt", "shard.00009.data", "shard.00003.data", "shard.00003.meta"}
    assert (data.local / "shard.00003.data").read_text() == "changed by me"
    assert clear_cache(folders=[data.local]).datasets == ()


def test_in_the_users_own_cache_the_folder_goes_too(tmp_path: Path, own_cache: Path) -> None:
    data = write_dataset(tmp_path / "a")
    mine = Dataset(data.remote, default_directory(str(data.remote), None), data.index)
    other = write_dataset(tmp_path / "b")
    theirs = Dataset(other.remote, default_directory(str(other.remote), None), other.index)
    fill(mine)
    fill(theirs)
    (theirs.local / "notes.txt").write_text("put there by the user")
    assert len(list_cache()) == 2
    assert clear_cache(data.remote).removed_bytes == 600_000
    assert not mine.local.exists()
    assert clear_cache().removed_bytes == 600_000
    assert [path.name for path in theirs.local.iterdir()] == ["notes.txt"]
    assert list_cache() == ()
    assert [path.name for path in own_cache.iterdir()] == [theirs.local.name]


def test_folders_of_shards_go_when_they_are_empty_but_no_link_is_followed(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", num_shards=1)
    for key in ("videos/a/1.mp4", "videos/b/2.mp4", "sounds/3.wav"):
        (data.remote / key).parent.mkdir(parents=True, exist_ok=True)
        (data.remote / key).write_bytes(bytes(1000))
    with data.cache() as cache:
        for key in ("videos/a/1.mp4", "videos/b/2.mp4", "sounds/3.wav"):
            cache.fetch_object(0, key)
    (data.local / "videos/b/mine").touch()
    elsewhere = tmp_path / "elsewhere"
    (data.local / "sounds").rename(elsewhere)
    (data.local / "sounds").symlink_to(elsewhere)
    assert clear_cache(folders=[data.local]).removed_bytes == 2000
    assert (elsewhere / "3.wav").exists()
    assert sorted(path.name for path in (data.local / "videos").rglob("*")) == ["b", "mine"]


def test_of_two_datasets_in_one_folder_the_other_stays(tmp_path: Path) -> None:
    one = write_dataset(tmp_path / "one")
    other = write_dataset(tmp_path / "other", num_shards=3, num_bytes=50_000)
    shared = Dataset(other.remote, one.local, other.index)
    fill(one)
    with one.cache() as first:
        check_shard(first, 0)  # while it is open, the other one's copies are kept apart
        fill(shared)
    assert clear_cache(one.remote, [one.local]).removed_bytes == 600_000
    (left,) = list_cache([one.local])
    assert (left.source, left.num_bytes) == (str(other.remote), 150_000)
    with shared.cache() as cache:
        for shard in shared.shards:
            check_shard(cache, shard)
        assert cache.stats().total.downloads == 1  # the index: all shards were there
    assert clear_cache(other.remote, [one.local]).left_bytes == 0
    assert list(one.local.iterdir()) == []


def test_a_dataset_that_is_not_there_is_an_error_that_shows_no_secret(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    fill(data)
    with pytest.raises(CacheError, match="https://host/x is not in any of 1 cache folders") as caught:
        clear_cache("https://me:planted@host/x?sig=planted", [data.local])
    assert "planted" not in str(caught.value) + str(caught.value.facts)
    assert len(data.cached_names()) == 6


_LEASE = """
import sys
from pathlib import Path
from tests.cache.found import FOLDER, make_copy, make_edition
from tests.cache.kit import check_shard, open_dataset
data = open_dataset(Path(sys.argv[1]))
with data.cache() as cache:
    for shard in data.shards:
        check_shard(cache, shard)
    lease = cache.lease(0, 2)
    print("here", flush=True)
    sys.stdin.readline()
    for shard in data.shards:
        check_shard(cache, shard)
    print(cache.stats().total.downloads, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("action", ["clear", "prune"])
def test_what_a_process_reads_stays_until_it_dies(tmp_path: Path, action: str) -> None:
    def act() -> int:
        removal = clear_cache(folders=[data.local]) if action == "clear" else prune_cache(0, [data.local])
        assert removal.left_bytes == removal.in_use_bytes
        return removal.in_use_bytes

    data = write_dataset(tmp_path)
    reader = start_client(_LEASE, tmp_path)
    assert reader.stdin is not None
    assert reader.stdout is not None
    assert reader.stdout.readline() == "here\n"
    assert act() == 100_000
    assert data.cached_names() == {"shard.00002.data"}
    assert len(list_cache([data.local])[0].editions) == 1  # the edition of a dataset that is open stays
    reader.stdin.write("\n")
    reader.stdin.flush()
    assert reader.stdout.readline() == "12\n"  # the index, six shards, and then the five that had gone
    reader.kill()
    reader.communicate()
    assert act() == 0
    assert data.cached_names() == set()


def test_pinned_shards_stay(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    with data.cache() as cache:
        for shard in data.shards:
            check_shard(cache, shard)
        cache.pin(0, [1, 4])
    for removal in (prune_cache(0, [data.local]), clear_cache(folders=[data.local])):
        assert (removal.pinned_bytes, removal.left_bytes) == (200_000, 200_000)
    assert data.cached_names() == {"shard.00001.data", "shard.00004.data"}
    with data.cache() as cache:
        check_shard(cache, 1)
        assert cache.stats().total.downloads == 1  # the index alone
        cache.unpin(0, [1, 4])
    assert clear_cache(folders=[data.local]).removed_bytes == 200_000
    assert list(data.local.iterdir()) == []


_OLD = """
import sys
from pathlib import Path
from tests.cache.found import FOLDER, make_copy, make_edition
from tests.cache.kit import open_dataset
data = open_dataset(Path(sys.argv[1]))
with data.cache() as cache:
    cache.open_index(0)
    for shard in data.shards:
        cache.lease(0, shard).close()
    print("here", flush=True)
    sys.stdin.readline()
    for shard in data.shards:
        with cache.lease(0, shard) as lease:
            assert lease.paths[0].read_bytes() == bytes(1000)
"""


def test_what_a_job_reads_of_data_that_were_replaced_stays(tmp_path: Path) -> None:
    """The store no longer has it: a job that lost it could not go on."""
    data = write_dataset(tmp_path, num_shards=3, num_bytes=1000)
    for path in data.remote.glob("shard*"):
        path.write_bytes(bytes(1000))
    (data.remote / "index.json").write_text((data.remote / "index.json").read_text().replace("xxh64", "none"))
    reader = start_client(_OLD, tmp_path)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "here\n"
    for path in data.remote.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\0", b"\1"))
    with data.cache() as cache:
        for shard in data.shards:
            with cache.lease(0, shard) as lease:
                assert lease.paths[0].read_bytes() == b"\1" * 1000
    (listed,) = list_cache([data.local])
    assert listed.num_bytes == 6000
    assert prune_cache(0, [data.local]).in_use_bytes == 3000
    assert clear_cache(folders=[data.local]).in_use_bytes == 3000
    finish(reader)
    assert clear_cache(folders=[data.local]).removed_bytes == 3000
    assert list(data.local.iterdir()) == []


def test_what_killed_processes_left_goes_too(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    fill(data)
    control = data.local / ".penstock"
    (control / "17-0123456789abcdef.part").write_bytes(bytes(1000))
    (control / "editions" / "abcdef").mkdir()  # its fetcher was killed before it was complete
    moved = data.local / ".penstock.01234567.part"
    moved.mkdir()
    (moved / "ledger.jsonl").touch()
    clear_cache(folders=[data.local])
    assert list(data.local.iterdir()) == []


def test_what_a_fetcher_holds_stays_and_so_do_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cache.cleanup.PATIENCE_S", 0.1)
    data = write_dataset(tmp_path)
    fill(data)
    stripes = Stripes()
    held = stripes.take(data.local, "shard.00002.data", 5)
    assert clear_cache(folders=[data.local]).in_use_bytes == 100_000
    assert data.cached_names() == {"shard.00002.data"}
    assert held.stripe.exists()
    stripes.leave(held)
    assert clear_cache(folders=[data.local]).removed_bytes == 100_000
    assert list(data.local.iterdir()) == []


def test_an_index_that_is_being_fetched_stays_though_its_name_is_free(tmp_path: Path) -> None:
    data = write_dataset(tmp_path)
    stripes = Stripes()
    held = stripes.try_take_any(data.local, "index.json")
    assert held is not None
    assert stripe_of(held.name) != stripe_of("index.json")
    part = new_part_path(data.local, stripe_of(held.name))
    part.touch()
    clear_cache(folders=[data.local])
    Folder(data.local, Stripes()).sweep()  # as another fetcher does that opens the directory
    assert part.exists()
    stripes.leave(held)
    clear_cache(folders=[data.local])
    assert list(data.local.iterdir()) == []


# --- Pruning ------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first_over_all_folders(tmp_path: Path) -> None:
    folders = [write_dataset(tmp_path / name) for name in ("a", "b")]
    for data in folders:
        fill(data)
    order = [(folders[number % 2], f"shard.{number // 2:05}.data") for number in (7, 2, 11, 0, 3, 5, 9, 1, 4, 10, 8, 6)]
    for age, (data, name) in enumerate(order):
        path = data.local / name
        os.utime(path, ns=(age * 10**9, path.stat().st_mtime_ns))
    for num_left in (12, 9, 4):
        removal = prune_cache(num_left * 100_000, [data.local for data in folders])
        assert removal.left_bytes == num_left * 100_000
        left = {(data.local, name) for data in folders for name in data.cached_names()}
        assert left == {(data.local, name) for data, name in order[-num_left:]}
    assert prune_cache("1gb", [tmp_path]).removed_bytes == 0
    with folders[0].cache() as cache:
        for shard in folders[0].shards:
            check_shard(cache, shard)


def test_pruning_removes_what_a_killed_fetcher_left(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, num_shards=1)
    with data.cache() as cache:
        check_shard(cache, 0)
    left = new_part_path(data.local, stripe_of(data.infos[0].name))
    left.write_bytes(b"half")
    prune_cache("1gb", [data.local])
    assert not left.exists()
    assert data.cached_names() == {data.infos[0].name}


@pytest.mark.parametrize("size", ["much", -1, "1.5b"])
def test_a_size_that_is_none(tmp_path: Path, size: str | int) -> None:
    with pytest.raises(ConfigError):
        prune_cache(size, [tmp_path])


# --- Beside others ------------------------------------------------------------------------------------------


_JOBS = """
import sys
from pathlib import Path
from tests.cache.found import FOLDER, make_copy, make_edition
from tests.cache.kit import check_shard, open_dataset
data = open_dataset(Path(sys.argv[1]))
for _ in range(8):
    with data.cache() as cache:
        cache.expect([(0, shard, shard) for shard in data.shards])
        for shard in data.shards:
            check_shard(cache, shard)
"""


def test_clearing_again_and_again_disturbs_no_job(tmp_path: Path, own_cache: Path) -> None:
    """Jobs open and close their datasets, each in a folder that is removed whenever it is empty."""
    own_cache.mkdir()
    jobs = []
    for number in range(2):
        write_dataset(tmp_path / str(number), num_shards=12, num_parts=2, num_bytes=20_000)
        (tmp_path / str(number) / "local").symlink_to(own_cache / str(number))
        jobs.append(start_client(_JOBS, tmp_path / str(number)))
    is_over = threading.Event()
    failures: list[BaseException] = []

    def clear() -> None:
        try:
            while not is_over.is_set():
                clear_cache()
                prune_cache(100_000)
                list_cache()
        except BaseException as error:
            failures.append(error)
            raise

    cleaners = [threading.Thread(target=clear) for _ in range(2)]
    for cleaner in cleaners:
        cleaner.start()
    try:
        for job in jobs:
            finish(job)
    finally:
        is_over.set()
        for cleaner in cleaners:
            cleaner.join(60)
    assert not failures
    clear_cache()
    assert list(own_cache.iterdir()) == []
