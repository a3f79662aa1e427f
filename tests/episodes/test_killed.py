"""Jobs on robot episodes lose their fetcher, or all of themselves, share a cache, or have a bad network."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from penstock import StreamingDataLoader, StreamingLeRobotDataset
from tests.episodes.golden import NUM_FRAMES, TOP, codes_of
from tests.episodes.test_remote import FILES, VIDEOS, upload
from tests.jobs import Job, run_side_by_side, run_through_kills
from tests.servers.faults import FaultProxy, Faults

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.s3 import S3Server

BATCH = 16
ARGUMENTS: dict[str, Any] = {"episode_pool_size": 3, "return_uint8": True}


@pytest.fixture(scope="module")
def url(moto: S3Server) -> str:
    return upload(moto, "episodes-killed", FILES | VIDEOS)


def expected_of(settings: dict[str, Any]) -> list[list[int]]:
    with StreamingLeRobotDataset(**settings) as dataset:
        loader = StreamingDataLoader(dataset, batch_size=BATCH, drop_last=False)
        batches = [batch["index"].tolist() for _ in range(2) for batch in loader]
    assert sorted(chain.from_iterable(batches)) == sorted([*range(NUM_FRAMES)] * 2)
    return batches


def test_all_of_a_job_is_killed_and_the_fetcher_too(moto: S3Server, url: str, tmp_path: Path, places: Path) -> None:
    settings = {"root": url, "storage_options": moto.options, **ARGUMENTS}
    expected = expected_of(settings)
    job = Job(tmp_path / "job", settings, batch_size=BATCH, kind="robots")
    assert run_through_kills(job, [7], places / "run") == expected


def test_two_jobs_share_a_cache_that_holds_a_part(moto: S3Server, url: str, tmp_path: Path) -> None:
    limit = sum(path.stat().st_size for path in (FILES | VIDEOS).values()) * 3 // 4 + 200_000
    settings = {"root": url, "storage_options": moto.options, "cache_limit": limit, **ARGUMENTS}
    expected = expected_of({**settings, "cache_limit": None})
    jobs = [Job(tmp_path / f"job-{number}", settings, batch_size=BATCH, kind="robots") for number in range(2)]
    assert run_side_by_side(jobs) == [expected, expected]


def test_a_bad_network(moto: S3Server, tmp_path: Path) -> None:
    url = upload(moto, "episodes-bad-network", FILES | VIDEOS)
    faults = Faults(rate=0.2, kinds=("drop", "reset", "busy", "cut"), retry_after_s=0.05)
    with FaultProxy(moto.endpoint, faults) as proxy:
        options = {**moto.options, "endpoint_url": proxy.url}
        with StreamingLeRobotDataset(root=url, storage_options=options, batch_size=BATCH, **ARGUMENTS) as dataset:
            seen = []
            for sample in dataset:
                seen.append(int(sample["index"]))
                assert codes_of(sample[TOP]) == [seen[-1]]
    assert sorted(seen) == list(range(NUM_FRAMES))
