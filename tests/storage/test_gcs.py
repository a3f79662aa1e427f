"""Google Cloud Storage: the contract over the client's own path, and how settings are found."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError
from penstock.storage.base import Store, open_store, resolve_store
from penstock.storage.gcs import resolve_gcs
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


NOWHERE = {"HOME": "/nowhere", "NO_GCE_CHECK": "true"}


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ({}, {}, {"anonymous": True}),
        ({"token": "anon"}, {"GCS_KEY": "k", "GCS_SECRET": "s"}, {"anonymous": True}),
        ({}, {"GCS_KEY": "k", "GCS_SECRET": "s"}, {"access_key_id": "k", "secret_access_key": "s"}),
        ({"token": {"type": "service_account"}}, {}, {"service_account_key": '{"type": "service_account"}'}),
        ({"token": "cloud"}, {}, {}),
        ({"instance_credentials": True}, {}, {}),
        ({"bearer_token": "t", "project": None}, {}, {"bearer_token": "t"}),
        ({}, {"STORAGE_EMULATOR_HOST": "127.0.0.1:1"}, {"anonymous": True, "endpoint": "http://127.0.0.1:1"}),
    ],
)
def test_google(options: dict[str, Any], environ: dict[str, str], expected: dict[str, Any]) -> None:
    assert resolve_gcs("gs://bucket", options, {**NOWHERE, **environ}) == expected


def test_google_files(tmp_path: Path) -> None:
    account, user, other = (tmp_path / name for name in ("account.json", "user.json", "other.json"))
    account.write_text('{"type": "service_account", "private_key": "hunter2"}')
    user.write_text('{"type": "authorized_user"}')
    other.write_text('{"type": "external_account"}')
    named = {**NOWHERE, "GOOGLE_APPLICATION_CREDENTIALS": str(account)}
    assert resolve_gcs("gs://bucket", {}, named) == {"service_account_key": account.read_text()}
    assert resolve_gcs("gs://bucket", {"token": str(account)}, NOWHERE) == {"service_account_key": account.read_text()}
    (tmp_path / ".config" / "gcloud").mkdir(parents=True)
    usual = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    user.rename(usual)
    assert resolve_gcs("gs://bucket", {}, {"HOME": str(tmp_path)}) == {"application_credentials": str(usual)}
    with pytest.raises(ConfigError, match="type 'external_account'"):
        resolve_gcs("gs://bucket", {"token": str(other)}, NOWHERE)
    with pytest.raises(ConfigError, match="as a Google credentials file"):
        resolve_gcs("gs://bucket", {"token": str(tmp_path / "missing")}, NOWHERE)
    with pytest.raises(ConfigError, match="only one of the GCS access key"):
        resolve_gcs("gs://bucket", {}, {**NOWHERE, "GCS_KEY": "k"})
