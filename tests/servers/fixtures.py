"""Each server once per run, started when the first test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers.azurite import AzureServer, run_azurite
from tests.servers.nginx import WebServer, run_gcs_door, run_nginx
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


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with run_azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with run_nginx(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_door(moto: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of something that answers to a client of Google: moto behind a door that changes the signature."""
    with run_gcs_door(tmp_path_factory.mktemp("gcs"), moto.endpoint) as endpoint:
        yield endpoint
