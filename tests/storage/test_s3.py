"""S3: the contract on two emulators, and how settings are found."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from penstock.storage.base import Store, open_store, resolve_store
from penstock.testing.stores import StoreContract

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.s3 import S3Server


class S3Contract(StoreContract):
    server: S3Server

    def make_store(self, folder: Path) -> Store:
        bucket = f"b-{uuid.uuid4().hex}"
        self.server.make_bucket(bucket)
        return open_store(resolve_store(f"s3://{bucket}/some/prefix", self.server.options))


class TestMoto(S3Contract):
    @pytest.fixture(autouse=True)
    def _server(self, moto: S3Server) -> None:
        self.server = moto


class TestMinistack(S3Contract):
    @pytest.fixture(autouse=True)
    def _server(self, ministack: S3Server) -> None:
        self.server = ministack
