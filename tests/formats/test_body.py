"""Records keep their bytes and their places, however they fall on chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ShardTooLargeError
from penstock.formats import body as module
from penstock.formats.body import BodyBuilder, ChunkPool
from penstock.index.model import MAX_SHARD_BYTES

CHUNK, SPILL = 16, 5
records_of_any_size = st.lists(st.integers(0, 50) | st.sampled_from([CHUNK, CHUNK - 1, CHUNK + 1, SPILL]), max_size=30)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEFAULT_CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(module, "_SPILL_BYTES", SPILL)


def new_body(pool: ChunkPool, *, num_bytes: int, overhead: int, front_bytes: int = 0) -> BodyBuilder:
    class Builder(BodyBuilder):
        sample_overhead = overhead

    return Builder(pool, num_bytes=num_bytes, front_bytes=front_bytes)


def make_records(sizes: list[int], seed: int = 0) -> list[bytes]:
    return [bytes((seed + number * 7 + i) % 256 for i in range(size)) for number, size in enumerate(sizes)]


def check(body: BodyBuilder, records: list[bytes], num_bytes: int) -> None:
    assert body.num_samples == len(records)
    assert body.num_bytes == num_bytes
    for front in (b"", b"#", b"front", b"a long front " * 3):
        assert b"".join(body.pieces(front)) == front + b"".join(records)
    ends, end = [], 0
    for record in records:
        end += len(record)
        ends.append(end)
    assert body.ends().tolist() == ends


@settings(max_examples=200)
@given(sizes=records_of_any_size, overhead=st.integers(0, 4), begin=st.integers(0, 100), front_bytes=st.integers(0, 20))
def test_records_of_any_size(sizes: list[int], overhead: int, begin: int, front_bytes: int) -> None:
    body = new_body(ChunkPool(), num_bytes=begin, overhead=overhead, front_bytes=front_bytes)
    records = make_records(sizes)
    for number, record in enumerate(records):
        assert body.num_samples == number
        body.append(record)
    check(body, records, begin + sum(sizes) + overhead * len(sizes))


@settings(max_examples=100)
@given(groups=st.lists(records_of_any_size, max_size=4), overhead=st.integers(0, 4))
def test_records_that_come_together_are_as_if_one_by_one(groups: list[list[int]], overhead: int) -> None:
    body = new_body(ChunkPool(), num_bytes=7, overhead=overhead, front_bytes=3)
    records: list[bytes] = []
    for number, sizes in enumerate(groups):
        made = make_records(sizes, seed=number)
        body.extend(made)
        records += made
        if number % 2:
            body.append(b"alone")
            records.append(b"alone")
    check(body, records, 7 + sum(map(len, records)) + overhead * len(records))


@settings(max_examples=100)
@given(sizes=records_of_any_size, looks=st.sets(st.integers(0, 29)))
def test_looking_at_it_changes_nothing(sizes: list[int], looks: set[int]) -> None:
    body = new_body(ChunkPool(), num_bytes=0, overhead=0)
    records = make_records(sizes)
    for number, record in enumerate(records):
        if number in looks:
            check(body, records[:number], sum(sizes[:number]))
        body.append(record)
    check(body, records, sum(sizes))


@settings(max_examples=100)
@given(shards=st.lists(st.tuples(records_of_any_size, st.booleans()), max_size=6))
def test_chunks_are_used_again_but_not_while_in_use(shards: list[tuple[list[int], bool]]) -> None:
    pool = ChunkPool()
    alive: list[tuple[BodyBuilder, list[bytes], int]] = []
    for seed, (sizes, is_released) in enumerate(shards):
        body = new_body(pool, num_bytes=0, overhead=0)
        records = make_records(sizes, seed)
        for record in records:
            body.append(record)
        check(body, records, sum(sizes))
        alive.append((body, records, sum(sizes)))
        if is_released:
            alive.pop(0)[0].release()
        for other in alive:
            check(*other)


@pytest.mark.parametrize(("size_limit", "num_records"), [(100, 10), (1000, 99), (1 << 20, 1)])
def test_a_shard_within_its_limit_is_one_piece(size_limit: int, num_records: int) -> None:
    pool = ChunkPool(size_limit)
    body = new_body(pool, num_bytes=0, overhead=0, front_bytes=size_limit // 4)
    for _ in range(num_records):
        body.append(b"x" * (size_limit // num_records))
    assert len(body.pieces(b"y" * (size_limit // 4))) == 1


def test_released_chunks_come_back() -> None:
    pool = ChunkPool()
    body = new_body(pool, num_bytes=0, overhead=0)
    body.append(b"x" * 3 * CHUNK)
    used = [memoryview(piece).obj for piece in body.pieces(b"")]
    assert len(used) == 3
    body.release()
    taken = [pool.take() for _ in range(4)]
    assert sum(any(chunk is other for other in used) for chunk in taken) == 3


@pytest.mark.parametrize("overhead", [0, 4])
def test_a_shard_ends_below_4_gib(overhead: int) -> None:
    room = 100
    body = new_body(ChunkPool(), num_bytes=MAX_SHARD_BYTES - room, overhead=overhead)
    with pytest.raises(ShardTooLargeError, match=r"the shard would grow to 4 GB.* below 4 GB"):
        body.append(b"x" * (room - overhead + 1))
    check(body, [], MAX_SHARD_BYTES - room)
    body.append(b"x" * (room - overhead))
    check(body, [b"x" * (room - overhead)], MAX_SHARD_BYTES)
    with pytest.raises(ShardTooLargeError):
        body.append(b"x" * (1 - overhead // 4))
    check(body, [b"x" * (room - overhead)], MAX_SHARD_BYTES)
