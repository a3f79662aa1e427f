"""Google Cloud Storage: the contract over the client's own path, and how settings are found."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from penstock.storage.base import Store, open_store, resolve_store
from penstock.testing.stores import StoreContract

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.s3 import S3Server


class TestGcs(StoreContract):
    """What this shows is our path through the client; the server behind it is not Google's."""

    secrets = ("test-token",)

    @pytest.fixture(autouse=True)
    def _server(self, gcs_door: str, moto: S3Server) -> None:
        self.endpoint, self.moto = gcs_door, moto

    def make_store(self, folder: Path) -> Store:
        bucket = f"b-{uuid.uuid4().hex}"
        self.moto.make_bucket(bucket)
        options = {"bearer_token": "test-token", "endpoint": self.endpoint}
        return open_store(resolve_store(f"gs://{bucket}/some/prefix", options))


class TestGcsKeys(StoreContract):
    """Keys of the HMAC kind go through Google's S3-compatible door."""

    secrets = ("test-secret",)

    @pytest.fixture(autouse=True)
    def _server(self, moto: S3Server) -> None:
        self.moto = moto

    def make_store(self, folder: Path) -> Store:
        bucket = f"b-{uuid.uuid4().hex}"
        self.moto.make_bucket(bucket)
        options = {"endpoint": self.moto.endpoint}
        environ = {"GCS_KEY": "test-key", "GCS_SECRET": "test-secret"}
        return open_store(resolve_store(f"gcs://{bucket}", options, environ=environ))
