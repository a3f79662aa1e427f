"""The small names of MosaicML Streaming's: sizes, worlds, spans, compression, digests, orders, encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.as_streaming
from penstock.as_streaming.helpers import Array
from tests.streaming import write_samples

GOLDEN = Path(__file__).parents[1] / "golden"


def test_sizes_counts_and_lists() -> None:
    from streaming.base.util import bytes_to_int, get_list_arg, number_abbrev_to_int

    assert bytes_to_int("1.5kb") == 1536
    assert number_abbrev_to_int("2.5m") == 2_500_000
    assert bytes_to_int(bytes_str="1.39gb") == 1_492_501_135
    assert bytes_to_int("1.11eb") == 1_279_742_870_113_600_256  # as a float is rounded
    assert number_abbrev_to_int(abbrev_str="1k") == 1000
    assert get_list_arg("a,b") == ["a", "b"]
    assert get_list_arg("") == []


@pytest.mark.parametrize("expected", [KeyError, (KeyError, TypeError)])
def test_a_function_is_called_again(expected: Any) -> None:
    from streaming.base.util import retry

    called: list[int] = []
    cleaned: list[int] = []

    @retry(expected, clean_up_fn=lambda: cleaned.append(1), num_attempts=3, initial_backoff=0, max_jitter=0)  # type: ignore[untyped-decorator]
    def fail(error: Exception, times: int) -> str:
        """Fail so many times."""
        called.append(1)
        if len(called) <= times:
            raise error
        return "done"

    assert fail.__doc__ == "Fail so many times."
    assert (fail(KeyError(), 2), len(called), len(cleaned)) == ("done", 3, 2)
    called.clear()
    with pytest.raises(KeyError):
        fail(KeyError(), 9)
    assert len(called) == 3
    called.clear()
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError(), 9)
    assert len(called) == 1
    assert retry(len)([1, 2]) == 2


def test_a_spanner_finds_shard_and_row() -> None:
    from streaming.base.spanner import Spanner

    spanner = Spanner([3, 0, 2])
    assert [spanner[number] for number in range(5)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    for outside in (5, -1):
        with pytest.raises(IndexError, match=f"Invalid sample index {outside}: there are 5 samples"):
            spanner[outside]


def test_an_array_takes_any_key() -> None:
    class Squares(Array):
        @property
        def size(self) -> int:
            return 10

        def get_item(self, idx: int) -> int:
            return idx * idx

    squares = Squares()
    assert len(squares) == 10
    assert squares[-1] == 81
    assert squares[2:4] == [4, 9]
    assert squares[np.array([[1, 2], [3, 4]])] == [[1, 4], [9, 16]]


def test_a_world_says_who_this_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from streaming.base.distributed import get_local_rank, get_local_world_size, get_rank, get_world_size
    from streaming.base.world import World

    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    world = World.detect()
    assert (world.node, world.num_nodes, world.rank, world.num_ranks) == (1, 2, 5, 8)
    assert (world.rank_of_node, world.ranks_per_node, world.is_leader, world.is_local_leader) == (1, 4, False, False)
    assert (get_rank(), get_world_size(), get_local_rank(), get_local_world_size()) == (5, 8, 1, 4)
    given = World(2, 4, 3, 17)
    assert (given.rank, given.worker_of_rank, given.num_workers, given.is_multinode) == (5, 2, 24, True)
    with pytest.raises(AttributeError, match="'World' object has no attribute 'rang'"):
        _ = given.rang


def test_ranks_without_a_process_group_cannot_talk(monkeypatch: pytest.MonkeyPatch) -> None:
    from streaming.base.distributed import all_gather_object, barrier, maybe_init_dist

    assert all_gather_object(5) == [5]
    assert maybe_init_dist() is False
    barrier()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="init_process_group"):
        all_gather_object(5)


@pytest.mark.parametrize("name", ["Brotli", "Bzip2", "Gzip", "Snappy", "Zstandard"])
def test_compression_classes_give_bytes_back(name: str) -> None:
    import streaming.base.compression as compression

    codec = getattr(compression, name)()
    assert codec.decompress(codec.compress(b"hello" * 100)) == b"hello" * 100
    assert compression.get_compression_extension(codec.extension) == codec.extension
    assert compression.is_compression(codec.extension)


def test_unknown_compressions_and_digests_are_value_errors() -> None:
    from streaming.base.compression import compress, get_compressions, is_compression
    from streaming.base.hashing import get_hash, get_hashes, is_hash

    assert compress(None, b"as it is") == b"as it is"
    assert {"zstd", "zstd:22"} <= get_compressions()
    assert not is_compression("zstd:23")
    with pytest.raises(ValueError, match="br:99"):
        compress("br:99", b"hello")
    assert "xxh3_64" in get_hashes()
    assert not is_hash("sha3")
    assert get_hash("md5", b"hello") == "5d41402abc4b2a76b9719d911017c592"
    with pytest.raises(ValueError, match="unknown hash"):
        get_hash("sha3", b"hello")


@pytest.mark.filterwarnings("ignore:.*(longer than a shuffle block|some samples are repeated)")
def test_shuffles_and_partitions_are_those_that_were_recorded() -> None:
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    for case in recorded("shuffle"):
        assert get_shuffle(**without(case, "ids")).tolist() == case["ids"]
    for case in recorded("partition"):
        found = get_partitions(**without(case, "ids", "shape"))
        assert (list(found.shape), found.ravel().tolist()) == (case["shape"], case["ids"])


def recorded(kind: str) -> list[dict[str, Any]]:
    """Some of the calls that were recorded from the original."""
    cases = json.loads((GOLDEN / f"orders/{kind}.json").read_text())["cases"]
    return [case for case in cases if "error" not in case][::10]


def without(case: dict[str, Any], *results: str) -> dict[str, Any]:
    return {name: value for name, value in case.items() if name not in results}


def test_a_class_of_streams_can_be_named(tmp_path: Path) -> None:
    from streaming.base.stream import Stream, streams_registry

    class Own(Stream):  # type: ignore[misc]  # the types of `streaming` are not known
        def __init__(self, note: str, **options: Any) -> None:
            super().__init__(**options)
            self.note = note

    write_samples(tmp_path, 20)
    assert streams_registry.register("as-streaming-own", func=Own) is Own
    assert "as-streaming-own" in streams_registry
    assert streams_registry.get_all()["as-streaming-own"] is streams_registry.get("as-streaming-own") is Own
    dataset = penstock.StreamingDataset(
        local=str(tmp_path), stream_name="as-streaming-own", stream_config={"note": "kept"}, batch_size=4
    )
    assert dataset.streams[0].note == "kept"  # type: ignore[attr-defined]
