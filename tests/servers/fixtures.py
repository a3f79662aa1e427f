"""Each server once per run, started when the first test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers.s3 import S3Server, run_ministack, run_moto

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server
