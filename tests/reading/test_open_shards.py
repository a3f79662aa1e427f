"""Which shards keep their pages: no more bytes than allowed, whatever is read in whatever order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock import MDSWriter, StreamingDataset
from penstock.reading.open_shards import MappedPages, memory_limit, pages_budget

if TYPE_CHECKING:
    from pathlib import Path

SIZES = np.array([1 << 20] * 40 + [10, 0, 64 << 20])


@given(st.lists(st.lists(st.tuples(st.integers(0, 42), st.integers(1, 50)), max_size=20), max_size=20), st.integers(0))
def test_never_more_than_allowed_after_a_use(uses: list[list[tuple[int, int]]], max_bytes: int) -> None:
    pages = MappedPages(SIZES)
    dropped: set[int] = set()
    for use in uses:
        for shard, num_rows in use:
            pages.note(shard, num_rows)
            dropped.discard(shard)
        pages.num_uses += 1
        dropped.update(pages.to_drop(max_bytes))
        assert 0 <= pages.num_bytes <= max_bytes
    used = {shard for use in uses for shard, _ in use}
    assert pages.num_bytes <= SIZES[list(used - dropped)].sum()
    for shard in used:
        pages.forget(shard)
    assert pages.num_bytes == 0


def test_of_a_window_that_does_not_fit_a_part_stays() -> None:
    """If those used least recently dropped, all would have to be mapped again in every round."""
    pages = MappedPages(SIZES)
    for _ in range(5):
        for shard in range(40):
            pages.note(shard, 100)
        pages.num_uses += 1
        dropped = pages.to_drop(30 << 20)
        assert dropped == list(range(39, 29, -1))


def test_what_lies_idle_rests() -> None:
    pages = MappedPages(SIZES)
    for shard in range(40):
        pages.note(shard, 1)
    pages.num_uses += 100
    assert pages.to_drop(1 << 40) == list(range(8))
    assert pages.to_drop(1 << 40) == []


def test_the_limit_of_the_smallest_group_counts(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_limit(tmp_path) == machine
    for path, text in {
        "proc/self/cgroup": "4:cpu,memory:/docker/abc\n0::/user/job\n",
        "sys/fs/cgroup/user/job/memory.max": "max\n",
        "sys/fs/cgroup/user/memory.max": "3000000\n",
        "sys/fs/cgroup/memory.max": "5000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert memory_limit(tmp_path) == 2000000
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(tmp_path) == 3000000
    (tmp_path / "sys/fs/cgroup/user/job/memory.high").write_text("1000000\n")
    assert memory_limit(tmp_path) == 1000000


def test_readers_share_the_budget() -> None:
    assert pages_budget(4) == pages_budget(1) // 4 > 0


def test_a_budget_of_nothing_changes_no_sample(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "data", columns={"id": "int", "text": "str"}, size_limit=2000) as writer:
        for number in range(2000):
            writer.write({"id": number, "text": str(number)})
    with StreamingDataset(local=tmp_path / "data", shuffle=True, batch_size=16) as dataset:
        wanted = [sample["id"] for sample in dataset]
    with StreamingDataset(local=tmp_path / "data", shuffle=True, batch_size=16) as dataset:
        stream = iter(dataset)
        found = [next(stream)]
        dataset.readers.here.main.shards.max_mapped_bytes = 0
        found += list(stream)
        assert [sample["id"] for sample in found] == wanted
        assert all(sample["text"] == str(sample["id"]) for sample in found)
