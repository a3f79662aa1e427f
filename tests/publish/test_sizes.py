"""How large a shard may become: the rule of cutting, and the 4 GB that no shard passes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import CSVWriter, LocalDataset, MDSWriter
from penstock.errors import BadSampleError, ConfigError, ShardTooLargeError
from penstock.formats import body
from penstock.index.model import FileInfo, Index, IndexedShard, Part, ShardLayout
from penstock.publish import sizes
from penstock.publish.sizes import ShardSizes, is_full, is_shard_file, next_number, shard_name

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 60), st.integers(0, 10))
def test_shards_are_cut_where_the_next_sample_would_not_fit(costs: list[int], limit: int, empty: int) -> None:
    shards: list[list[int]] = [[]]
    num_bytes = empty
    for cost in costs:
        if is_full(num_bytes, cost, limit):
            shards.append([])
            num_bytes = empty
        shards[-1].append(cost)
        num_bytes += cost
    assert [cost for shard in shards for cost in shard] == costs
    for shard, after in zip(shards, [*shards[1:], []], strict=True):
        assert empty + sum(shard) <= limit or len(shard) <= 1
        assert not after or empty + sum(shard) + after[0] > limit
    assert all(shards[1:])


def test_without_limit_nothing_is_full() -> None:
    assert not is_full(10**12, 10**12, None)


@pytest.mark.parametrize("kind", [MDSWriter, CSVWriter])
@pytest.mark.parametrize("size_limit", [None, 900])
def test_no_shard_passes_what_offsets_can_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[MDSWriter], size_limit: int | None
) -> None:
    for module in (body, sizes):
        monkeypatch.setattr(module, "MAX_SHARD_BYTES", 1000)
    with kind(out=tmp_path, columns={"s": "str"}, size_limit=size_limit) as writer:
        writer.write({"s": "a" * 400})
        with pytest.raises(ShardTooLargeError, match=r"sample 1: .*4 GB: lower size_limit") as caught:
            writer.write({"s": "b" * 2000})
        assert isinstance(caught.value, BadSampleError)
        writer.write({"s": "c" * 100})
    assert [sample["s"][0] for sample in LocalDataset(tmp_path)] == ["a", "c"]


def index(*names: str) -> Index:
    layout = ShardLayout(format="mds", columns=())
    return Index(tuple(IndexedShard(layout, 1, (Part(FileInfo(name, 1)),)) for name in names))


def test_names() -> None:
    assert shard_name(7, "mds") == "shard.00007.mds"
    assert shard_name(1234567, "json") == "shard.1234567.json"
    assert next_number(index()) == 0
    assert next_number(index("shard.00004.mds", "shard.00002.mds", "a/shard.00099.mds", "other")) == 5
    for name in ("shard.00000.mds", "shard.123456.json.meta", "shard.00000.csv.meta.gz", "shard.00001.mds.zstd"):
        assert is_shard_file(name)
    for name in ("shard.txt", "shard.1.mds", "index.json", "shard.00000", "a/shard.00000.mds", "shard.00000.mds.a.b.c"):
        assert not is_shard_file(name)


MEMORY_OF_A_WRITER = """
import resource, sys
from penstock import MDSWriter
options = {"compression": "zstd", "size_limit": 4_000_000, "max_workers": 2}
with MDSWriter(out=sys.argv[1], columns={"x": "bytes"}, **options) as writer:
    sample = {"x": bytes(1_000_000)}
    for i in range(4):
        writer.write(sample)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(int(sys.argv[2])):
        writer.write(sample)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_memory_stays_at_a_few_shards(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY_OF_A_WRITER, str(tmp_path), "600"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150  # MB, while 600 MB go through


@pytest.mark.soak
def test_a_shard_of_almost_4_gb(tmp_path: Path) -> None:
    giga = bytes(1 << 30)
    with MDSWriter(out=tmp_path, columns={"x": "bytes"}, size_limit=None) as writer:
        for _ in range(3):
            writer.write({"x": giga})
        with pytest.raises(ShardTooLargeError, match="sample 3: "):
            writer.write({"x": giga})
        writer.write({"x": giga[:-500]})
    dataset = LocalDataset(tmp_path)
    assert [shard.num_samples for shard in dataset.index.shards] == [4]
    assert 2**32 - 500 < (tmp_path / "shard.00000.mds").stat().st_size < 2**32
    assert [len(dataset[i]["x"]) for i in range(4)] == [2**30, 2**30, 2**30, 2**30 - 500]


@pytest.mark.soak
def test_a_sample_of_more_than_4_gb(tmp_path: Path) -> None:
    huge: dict[str, Any] = {"x": bytes(1 << 32), "y": 1}
    with MDSWriter(out=tmp_path, columns={"x": "bytes", "y": "int"}) as writer:
        with pytest.raises(ShardTooLargeError, match=r"sample 0: the sample takes 4 GB"):
            writer.write(huge)
        writer.write({"x": b"", "y": 2})
    assert list(LocalDataset(tmp_path)) == [{"x": b"", "y": 2}]


# --- Blocks of rows ---------------------------------------------------------------------------------------------


@given(
    num_rows=st.integers(1, 400),
    num_shards=st.integers(1, 20),
    sizes=st.lists(st.integers(1, 10**8), min_size=1, max_size=20),
)
def test_an_exact_number_of_shards_of_equally_many_rows(num_rows: int, num_shards: int, sizes: list[int]) -> None:
    if num_rows < num_shards:
        with pytest.raises(ConfigError):
            ShardSizes(1, num_shards, num_rows)
        return
    plan = ShardSizes(1, num_shards, num_rows)
    written = []
    for shard in range(num_shards):
        filled = 0
        while block := plan.next_block(shard, filled, 0, sizes[(shard + filled) % len(sizes)]):
            filled += block
        written.append(filled)
    assert sum(written) == num_rows
    assert max(written) - min(written) <= 1


@given(max_bytes=st.integers(1, 10**9), per_row=st.integers(1, 10**9))
def test_a_shard_of_equal_rows_is_nearly_full_and_never_more(max_bytes: int, per_row: int) -> None:
    plan = ShardSizes(max_bytes)
    filled = 0
    while filled < 10**6 and (block := plan.next_block(0, filled, filled * per_row, per_row)):
        filled += block
    assert filled == 1 or filled * per_row <= max_bytes
    assert filled >= 10**6 or (filled + 1) * per_row > 0.85 * max_bytes
