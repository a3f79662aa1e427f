"""Caches of single values: never pickled, whole or not there, bounded, computed once."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock import CacheMetadata, DatasetCache, DiskCache, MemoryCache, TreeCacheManager
from penstock.codecs.digest import digest
from penstock.errors import ConfigError, CorruptShardError
from penstock.pipeline.results.values import decode, encode

if TYPE_CHECKING:
    from pathlib import Path

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.sampled_from([np.float32(1.5), np.int64(-3)]),
    arrays.arrays(st.sampled_from(["i4", "u1", "f8", "?", "U3"]), arrays.array_shapes(min_dims=0, min_side=0)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=12,
)


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype == right.dtype and left.shape == right.shape and bool(np.array_equal(left, right))
    if isinstance(left, list | tuple):
        same_kind = type(left) is type(right) and len(left) == len(right)
        return same_kind and all(equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)
    return type(left) is type(right) and bool(left == right)


@given(value=values, compression=st.sampled_from(["none", "gzip", "lz4", "zstd"]))
def test_values_come_back(value: Any, compression: str) -> None:
    again, about = decode(encode(value, {"key": "k"}, compression), "here")
    assert equal(again, value)
    assert about == {"key": "k"}


@given(value=values, at=st.integers(0, 10**6), byte=st.integers(1, 255))
def test_damaged_bytes_are_an_error_of_ours(value: Any, at: int, byte: int) -> None:
    data = bytearray(encode(value, {}, "zstd"))
    data[at % len(data)] ^= byte
    with pytest.raises(CorruptShardError):
        decode(bytes(data), "here")
    for cut in (0, 5, len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptShardError):
            decode(bytes(data[:cut]), "here")


@pytest.mark.parametrize("value", [object(), {1: 2}, np.array([{}], object), [{"a": {3}}], lambda: 1])
def test_what_would_need_pickle_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match="without pickle"):
        DiskCache(tmp_path).put("key", value)


def sealed(body: bytes) -> bytes:
    """Give what a value is described by, and no arrays, as a whole file."""
    data = struct.pack("<8sQ", b"PSTKVAL2", body.rindex(b"}") + 1) + body
    return data + digest([data], ["xxh3_64"])["xxh3_64"].encode()


# What penstock 0.1.0.dev0 wrote for {"x": 1.25} under "key": its digest is one of no bytes at all.
VERSION_1 = (
    b'PSTKVAL1\x89\0\0\0\0\0\0\0{"about": {"key": "key", "metadata": {}}, "value": {"dict": {"x": 1.25}}, "sizes": [],'
    b' "compression": "none", "hash": "2d06800538d394c2"}'
)


def test_each_byte_is_in_the_digest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(tmp_path)
    cache.put("key", {"x": 1.25, "text": "words", "array": np.arange(3, dtype=np.int32)})
    (path,) = tmp_path.glob("*.data")
    written = path.read_bytes()
    for before, after in ((b"1.25", b"9.25"), (b"words", b"sword"), (b"<i4", b"<u4"), (b'"x"', b'"y"')):
        path.write_bytes(written.replace(before, after))
        assert cache.get("key") is None
        assert "its bytes are not those that were written" in caplog.records[-1].getMessage()
    path.write_bytes(VERSION_1)
    assert TreeCacheManager(tmp_path).get_or_compute("key", lambda: 2) == 2


class Evil:
    def __reduce__(self) -> Any:
        return print, ("code has run",)


def test_nothing_is_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = DiskCache(tmp_path)
    cache.put("key", 1)
    (path,) = tmp_path.glob("*.data")
    path.write_bytes(pickle.dumps((Evil(), {})))
    assert cache.get("key") is None  # and a warning in the log: it is computed again
    bomb = encode({"x": b""}, {"key": "key", "metadata": {}}, "zstd")
    path.write_bytes(sealed(bomb[16:-16].replace(b'"sizes": [0]', b'"sizes": [9000000000]')))
    with pytest.raises(CorruptShardError, match="are said to hold 9000000000"):
        decode(path.read_bytes(), "here")
    assert cache.get("key") is None
    assert "code has run" not in capsys.readouterr().out


def test_memory() -> None:
    cache = MemoryCache(max_size=2)
    for name in "abc":
        cache.put(name, name * 2)
    assert cache.get("a") is None
    assert (cache.get("b") or [None])[0] == "bb"
    cache.put("d", 1)  # b was used later than c
    assert not cache.contains("c")
    assert cache.stats == {"hits": 1, "misses": 1, "hit_rate": 0.5, "size": 2, "max_size": 2}
    cache.invalidate("b")
    assert not cache.contains("b")
    cache.invalidate()
    assert cache.stats["size"] == 0


def test_disk(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "new" / "folder", compression="zstd")
    about = CacheMetadata(config_hash="c", source_hash="s", num_examples=3, extra={"x": 1})
    cache.put("key", {"ids": np.arange(5)}, about)
    found = DiskCache(tmp_path / "new" / "folder").get("key")  # whatever it is compressed with
    assert found is not None
    assert found[0]["ids"].tolist() == [0, 1, 2, 3, 4]
    assert found[1] == about
    assert found[1].is_valid_for("c")
    assert found[1].is_valid_for("c", "s")
    assert not found[1].is_valid_for("c", "other")
    assert cache.get_metadata("key") == about
    assert cache.get("other") is None
    cache.invalidate("key")
    assert not cache.contains("key")
    with pytest.raises(ConfigError, match="compression='rar'"):
        DiskCache(tmp_path, "rar")  # type: ignore[arg-type]


def test_age_and_size_are_bounded(tmp_path: Path) -> None:
    old = CacheMetadata(created_at=1.0)
    cache = DiskCache(tmp_path, expiry_seconds=60)
    cache.put("old", 1, old)
    cache.put("new", 2)
    assert not cache.contains("old")
    assert cache.contains("new")
    small = DiskCache(tmp_path / "small", max_bytes=5000)
    for number in range(10):
        small.put(str(number), bytes(1000))
    assert [small.contains(str(number)) for number in range(10)] == [False] * 7 + [True] * 3
    assert sum(path.stat().st_size for path in (tmp_path / "small").glob("*.data")) <= 5000


def test_memory_over_disk(tmp_path: Path) -> None:
    calls: list[int] = []

    def compute() -> dict[str, int]:
        calls.append(1)
        return {"n": len(calls)}

    manager = TreeCacheManager(tmp_path, memory_size=2)
    assert manager.get_or_compute("k", compute) == {"n": 1}
    assert manager.get_or_compute("k", compute) == {"n": 1}
    assert TreeCacheManager(tmp_path).get_or_compute("k", compute) == {"n": 1}
    assert manager.get_or_compute("k", compute, validate_fn=lambda value, _: value["n"] > 1) == {"n": 2}
    manager.invalidate("k")
    assert manager.get("k") is None
    manager.put("late", 1, CacheMetadata(created_at=1.0))
    assert manager.get("late") is None
    key = manager.compute_key({"a": 1}, prefix="x-")
    assert key.startswith("x-")
    assert len(key) == 18
    assert key != manager.compute_key({"a": 2}, prefix="x-")
    longer = manager.compute_key({"a": 1}, "x-", include_content_hash=True, content="text")
    assert longer.startswith(key)
    assert len(longer) > len(key)


ONCE = """
import sys, time
from penstock import TreeCacheManager
def compute():
    with open(sys.argv[2], "a") as file: file.write("x")
    time.sleep(0.3)
    return 7
print(TreeCacheManager(sys.argv[1]).get_or_compute("k", compute))
"""


def test_several_processes_compute_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ONCE, str(tmp_path / "cache"), str(tmp_path / "calls")]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in several] == ["7"] * 3
    assert (tmp_path / "calls").read_text() == "x"


class Saved:
    """As much of a dataset of the Hugging Face library as is needed to save it."""

    def save_to_disk(self, folder: str) -> None:
        from pathlib import Path

        Path(folder).mkdir()
        (Path(folder) / "state.json").write_text("{}")


def test_datasets_of_the_hugging_face_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DatasetCache(tmp_path / "new")
    assert cache.get("key") is None
    cache.put("key", Saved())
    cache.put("key", Saved())
    assert cache.contains("key")
    assert len(list((tmp_path / "new").iterdir())) == 1
    with pytest.raises(ConfigError, match="a list_iterator cannot be kept, because it is not all there"):
        cache.put("other", iter([]))
    cache.invalidate()
    assert not cache.contains("key")
