"""Jobs on files of other programs lose their fetcher, or all of themselves, share a cache, or have a bad network."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataLoader, StreamingDataset
from tests.in_place.kinds import KINDS
from tests.jobs import Job, run_side_by_side, run_through_kills
from tests.servers.faults import FaultProxy, Faults

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.nginx import WebServer

BATCH = 10
# Quick ones stand for their kin: one that is unpacked by its format, one by a codec, one that is fetched as it is.
SOME = ["parquet", *(pytest.param(name, marks=pytest.mark.soak) for name in KINDS if name != "parquet")]


def expected_of(kind_name: str, settings: dict[str, Any]) -> list[list[int]]:
    kind = KINDS[kind_name]
    with StreamingDataset(**{**settings, "local": None, "cache_limit": None}) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH)
        batches = [kind.batch_numbers(batch) for _ in range(2) for batch in loader]
    assert sorted(chain.from_iterable(batches)) == sorted([*range(200)] * 2)
    return batches


@pytest.mark.parametrize("name", SOME)
def test_all_of_a_job_is_killed_and_the_fetcher_too(tmp_path: Path, places: Path, name: str) -> None:
    KINDS[name].write_files(tmp_path / "data", 10, 20)
    settings = {"remote": str(tmp_path / "data"), "shuffle": True, "shuffle_block_size": 40}
    expected = expected_of(name, settings)
    job = Job(tmp_path / "job", settings, batch_size=BATCH, kind=name)
    assert run_through_kills(job, [3, 17], places / "run") == expected


@pytest.mark.parametrize("name", SOME)
def test_two_jobs_share_a_cache_that_holds_a_part(tmp_path: Path, places: Path, nginx: WebServer, name: str) -> None:
    kind = KINDS[name]
    folder = kind.write_files(nginx.files / f"shared-{name}-{tmp_path.name}", 10, 20)
    urls = [f"{nginx.url}/{folder.name}/{path.name}" for path in sorted(folder.iterdir())]
    settings: dict[str, Any] = {"remote": urls, "shuffle": True, "shuffle_block_size": 40}
    expected = expected_of(name, settings)
    limit = sum(path.stat().st_size for path in (places / "cache").rglob("part-*")) * 8 // 10
    shared = {**settings, "local": str(tmp_path / "cache"), "cache_limit": limit}
    jobs = [Job(tmp_path / f"job-{number}", shared, batch_size=BATCH, kind=name) for number in range(2)]
    assert run_side_by_side(jobs) == [expected, expected]


@pytest.mark.parametrize("name", SOME)
def test_a_bad_network(nginx: WebServer, tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    folder = kind.write_files(nginx.files / f"bad-network-{name}-{tmp_path.name}", 10, 20)
    faults = Faults(rate=0.2, kinds=("drop", "reset", "busy", "cut"), retry_after_s=0.05)
    with FaultProxy(nginx.url, faults) as proxy:
        urls = [f"{proxy.url}/{folder.name}/{path.name}" for path in sorted(folder.iterdir())]
        with StreamingDataset(remote=urls, shuffle=True, download_retry=8) as dataset:
            assert sorted(kind.numbers(dataset)) == list(range(200))
