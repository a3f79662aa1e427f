"""A whole epoch through a bad network: the same samples, or within the deadline an error that says why."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import StreamingDataset
from penstock.errors import (
    CorruptShardError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
)
from penstock.storage.base import open_store, resolve_store
from tests.cache.kit import left_over
from tests.servers.faults import FAULTS, Fault, FaultProxy, Faults
from tests.servers.script import Answer, Request, run_script
from tests.streaming import ids_of, sample, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.base import Store
    from tests.servers.s3 import S3Server

NUM_SAMPLES = 300
# Long enough for any machine, short enough that a test which waits for one of them is not in doubt.
FAR_TOO_LONG_S = 60.0

CAUSES = {
    "drop": "connection ended before an answer came",
    "reset": "connection was reset",
    "busy": "503",
    "burst": "503",
    "stall": "nothing for too long",
    "flip": "does not have the xxh64 digest",
    "cut": "connection ended before the last byte",
    "short": "announced bytes arrived",
}


class Bucket:
    """A dataset in S3, with a bad network before it."""

    def __init__(self, store: Store, root: str, proxy: FaultProxy, moto: S3Server) -> None:
        self.store, self.root, self.proxy = store, root, proxy
        self._options = {**moto.options, "endpoint_url": proxy.url}

    def open(self, local: Path, **options: Any) -> StreamingDataset:
        return StreamingDataset(
            remote=self.root,
            local=local,
            storage_options=self._options,
            shuffle=True,
            batch_size=10,
            **{"validate_hash": "xxh64", **options},
        )

    def upload(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.store.upload(path, str(path.relative_to(folder)))

    def replace(self, key: str, data: bytes, scratch: Path) -> None:
        (scratch / "object").write_bytes(data)
        self.store.upload(scratch / "object", key)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("data")
    return {
        "raw": write_samples(out / "raw", NUM_SAMPLES, hashes=["xxh64"]),
        "zstd": write_samples(out / "zstd", NUM_SAMPLES, hashes=["xxh64"], compression="zstd"),
    }


@pytest.fixture
def form() -> str:
    """How the shards are stored, where a test does not say."""
    return "zstd"


in_both_forms = pytest.mark.parametrize("form", ["raw", "zstd"])


@pytest.fixture
def bucket(moto: S3Server, folders: dict[str, Path], form: str, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """A place of the test's own, the same on every run: what befalls a request depends on its name."""
    moto.make_bucket("network")
    root = f"s3://network/{re.sub(r'[^a-z]+', '-', request.node.name)}"
    with FaultProxy(moto.endpoint) as proxy:
        bucket = Bucket(open_store(resolve_store(root, moto.options)), root, proxy, moto)
        bucket.upload(folders[form])
        yield bucket


def check(samples: list[Any]) -> list[int]:
    """Every sample is what was written; the network flips bits."""
    for each in samples:
        written = sample(each["id"])
        assert each["text"] == written["text"]
        assert np.array_equal(each["x"], written["x"])
    return ids_of(samples)


@in_both_forms
def test_an_epoch_at_one_fault_in_five_is_the_same_epoch(bucket: Bucket, tmp_path: Path, places: Path) -> None:
    with bucket.open(tmp_path / "good") as dataset:
        expected = check(list(dataset))
    assert sorted(expected) == list(range(NUM_SAMPLES))
    kinds = (*FAULTS, "flip", "flip", "flip")
    bucket.proxy.faults = Faults(rate=0.2, kinds=kinds, seed=1, stall_s=2.0, slow_s=0.002, retry_after_s=0.1)
    before = bucket.proxy.counts.copy()
    with bucket.open(tmp_path / "bad", download_retry=10, download_timeout=30) as dataset:
        found = check(list(dataset))
        retries = dataset.stats().node.retries
    assert found == expected
    met = bucket.proxy.counts - before
    assert met["flip"] > 0
    assert sum(met[kind] for kind in FAULTS) > met["requests"] / 10
    assert retries > 0
    assert not left_over(places / "run")


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "slow"])
def test_nothing_but_faults_is_an_error_in_the_end(bucket: Bucket, tmp_path: Path, kind: Fault) -> None:
    with bucket.open(tmp_path / "cache", download_retry=2, download_timeout=2) as dataset:
        bucket.proxy.faults = Faults(rate=1.0, kinds=(kind,), retry_after_s=0.1)
        begin = time.monotonic()
        with pytest.raises((StoreError, CorruptShardError), match=f"{bucket.root}/part.*/shard") as failure:
            list(dataset)
        assert time.monotonic() - begin < FAR_TOO_LONG_S
    assert re.search(CAUSES[kind], str(failure.value))


def test_bodies_that_trickle_for_longer_than_the_timeout(bucket: Bucket, tmp_path: Path) -> None:
    # Two seconds: a machine that pauses for half of one must not look like a server that has fallen silent.
    with bucket.open(tmp_path / "cache", download_retry=1, download_timeout=2) as dataset:
        bucket.proxy.faults = Faults(rate=1.0, kinds=("slow",), slow_s=0.1, slow_pieces=25)
        assert sorted(check(list(dataset))) == list(range(NUM_SAMPLES))


def test_a_server_that_falls_silent(bucket: Bucket, tmp_path: Path) -> None:
    """Before the first byte of the index as well as later."""
    bucket.proxy.faults = Faults(rate=1.0, kinds=("stall",))
    begin = time.monotonic()
    with pytest.raises(StoreTimeoutError, match=f"{bucket.root}/index.json"):
        bucket.open(tmp_path / "cache", download_retry=1, download_timeout=0.5)
    assert time.monotonic() - begin < FAR_TOO_LONG_S


# --- The index, by which all else is checked ----------------------------------------------------------------


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_flipped_bits_do_not_pass_for_an_index(bucket: Bucket, tmp_path: Path, seed: int) -> None:
    """No digest of it is recorded anywhere, but S3 tags it with one."""
    bucket.proxy.faults = Faults(rate=0.8, kinds=("flip",), seed=seed)
    before = bucket.proxy.counts["flip"]
    with bucket.open(tmp_path / "cache", download_retry=50) as dataset:
        assert bucket.proxy.counts["flip"] > before
        bucket.proxy.faults = Faults()
        assert sorted(check(list(dataset))) == list(range(NUM_SAMPLES))


def test_nothing_but_flipped_bits_is_no_index(bucket: Bucket, tmp_path: Path) -> None:
    bucket.proxy.faults = Faults(rate=1.0, kinds=("flip",))
    words = f"{bucket.root}/index.json arrived with different bytes in each of 4 attempts"
    with pytest.raises(StoreError, match=words):
        bucket.open(tmp_path / "cache", download_retry=2)
    assert not list((tmp_path / "cache").glob("index.json*"))


def test_a_tag_that_only_looks_like_a_digest(folders: dict[str, Path], tmp_path: Path, places: Path) -> None:
    """As S3 gives to objects that it encrypts with keys of a customer: the index is fetched twice, and believed."""

    def serve(request: Request) -> Answer:
        data = (folders["raw"] / request.path.lstrip("/")).read_bytes()
        headers = {"ETag": f'"{"0a" * 16}"', "Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if span is None:
            return Answer(200, data, headers)
        begin, end = int(span[1]), min(int(span[2]) + 1, len(data))
        return Answer(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    with run_script(serve) as server, StreamingDataset(remote=server.url, local=tmp_path, download_retry=0) as dataset:
        assert check(list(dataset)) == list(range(NUM_SAMPLES))
        asked = [request.path for request in server.requests if request.method == "GET"]
    assert asked.count("/index.json") == 2
    assert max(asked.count(path) for path in asked if "shard" in path) == 1


# --- What is wrong in the bucket itself ---------------------------------------------------------------------


def one_shard(bucket: Bucket) -> str:
    return next(info.key for info in bucket.store.list("part.013") if "shard" in info.key)


def test_a_missing_object(bucket: Bucket, tmp_path: Path) -> None:
    key = one_shard(bucket)
    bucket.store.delete(key)
    with bucket.open(tmp_path / "cache") as dataset, pytest.raises(ObjectNotFoundError, match=f"{bucket.root}/{key}"):
        list(dataset)


@pytest.mark.parametrize("num_bytes", [0, 100])
def test_a_truncated_object(bucket: Bucket, tmp_path: Path, num_bytes: int) -> None:
    key = one_shard(bucket)
    whole = bucket.store.read(key)
    bucket.replace(key, whole[:num_bytes], tmp_path)
    words = f"{bucket.root}/{key} has {num_bytes} bytes, but the index says {len(whole)}"
    with bucket.open(tmp_path / "cache") as dataset, pytest.raises(ObjectChangedError, match=words):
        list(dataset)


def test_a_longer_object(bucket: Bucket, tmp_path: Path) -> None:
    key = one_shard(bucket)
    whole = bucket.store.read(key)
    bucket.replace(key, whole + b"more", tmp_path)
    words = f"{bucket.root}/{key} has {len(whole) + 4} bytes, but the index says {len(whole)}"
    with bucket.open(tmp_path / "cache") as dataset, pytest.raises(ObjectChangedError, match=words):
        list(dataset)


@in_both_forms
def test_a_corrupt_object_of_the_right_size(bucket: Bucket, tmp_path: Path) -> None:
    key = one_shard(bucket)
    whole = bytearray(bucket.store.read(key))
    whole[len(whole) // 2] ^= 4
    bucket.replace(key, bytes(whole), tmp_path)
    words = f"{bucket.root}/{key} does not have the xxh64 digest"
    with bucket.open(tmp_path / "cache") as dataset, pytest.raises(CorruptShardError, match=words):
        list(dataset)
    bucket.replace(key, bytes(len(whole)), tmp_path)
    with bucket.open(tmp_path / "cache") as dataset, pytest.raises(CorruptShardError, match=words):
        dataset[130]


def test_what_was_fetched_before_outlives_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    """An error leaves the cache usable: what was repaired is fetched, the rest is there."""
    key = one_shard(bucket)
    whole = bucket.store.read(key)
    bucket.store.delete(key)
    with bucket.open(tmp_path / "cache") as dataset:
        with pytest.raises(ObjectNotFoundError):
            list(dataset)
        dataset.set_epoch(0)
        bucket.replace(key, whole, tmp_path)
        assert sorted(check(list(dataset))) == list(range(NUM_SAMPLES))
