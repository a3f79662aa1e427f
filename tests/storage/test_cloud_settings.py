"""How the environment and options become settings of the other clouds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError
from penstock.storage.azure import parse_connection_string, resolve_azure
from penstock.storage.base import resolve_store
from penstock.storage.gcs import resolve_gcs
from penstock.storage.oci import resolve_oci

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = {"HOME": "/nowhere", "NO_GCE_CHECK": "true"}
ACCOUNT = {"AZURE_ACCOUNT_NAME": "acc"}


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


@pytest.mark.parametrize(
    ("url", "options", "environ", "expected"),
    [
        ("az://c/x", {}, ACCOUNT, {"account_name": "acc", "anonymous": True}),
        (
            "azure://c/x",
            {},
            {**ACCOUNT, "AZURE_ACCOUNT_ACCESS_KEY": "k"},
            {"account_name": "acc", "account_key": "k"},
        ),
        (
            "azure-dl://c/x",
            {"account_name": "a", "account_key": "k"},
            ACCOUNT,
            {"account_name": "a", "account_key": "k"},
        ),
        (
            "abfss://c@acc.dfs.core.windows.net/x",
            {"sas_token": "sv=1&sig=2"},
            {"AZURE_STORAGE_KEY": "k"},
            {"account_name": "acc", "sas_key": "sv=1&sig=2"},
        ),
        ("abfs://c/x", {"credential": "k"}, ACCOUNT, {"account_name": "acc", "account_key": "k"}),
        ("abfs://c/x", {"credential": "sv=1&sig=2"}, ACCOUNT, {"account_name": "acc", "sas_key": "sv=1&sig=2"}),
        (
            "az://c/x",
            {},
            {**ACCOUNT, "AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "i", "AZURE_CLIENT_SECRET": "s"},
            {"account_name": "acc", "tenant_id": "t", "client_id": "i", "client_secret": "s"},
        ),
        (
            "az://c/x",
            {},
            {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=acc;AccountKey=k==;EndpointSuffix=core.windows.net"},
            {"account_name": "acc", "account_key": "k=="},
        ),
        ("az://c/x", {"instance_credentials": True}, ACCOUNT, {"account_name": "acc"}),
        ("az://c/x", {"use_azure_cli": True}, ACCOUNT, {"account_name": "acc", "use_azure_cli": True}),
        (
            "az://c/x",
            {"anon": True},
            {**ACCOUNT, "AZURE_STORAGE_KEY": "k"},
            {"account_name": "acc", "anonymous": True},
        ),
    ],
)
def test_azure(url: str, options: dict[str, Any], environ: dict[str, str], expected: dict[str, Any]) -> None:
    found = resolve_azure(url, options, environ)
    assert found == expected
    assert json.loads(json.dumps(found)) == found


def test_azure_mistakes() -> None:
    with pytest.raises(ConfigError, match="which storage account"):
        resolve_azure("az://c/x", {}, {})
    with pytest.raises(ConfigError, match="names no account"):
        parse_connection_string("Nonsense")
    with pytest.raises(ConfigError, match="has no container"):
        resolve_azure("abfss://@acc.dfs.core.windows.net/x", {}, {})


def test_oracle(tmp_path: Path) -> None:
    keys = {"key": "k", "secret": "s"}
    pair = {"access_key_id": "k", "secret_access_key": "s"}
    (tmp_path / ".oci").mkdir()
    (tmp_path / ".oci" / "config").write_text("[DEFAULT]\nregion=eu-1\n[OTHER]\nregion=eu-2\n")
    home = {"HOME": str(tmp_path)}
    endpoint = "https://ns.compat.objectstorage.{}.oraclecloud.com".format
    assert resolve_oci("oci://b@ns/x", keys, home) == {**pair, "region": "eu-1", "endpoint": endpoint("eu-1")}
    other = {**home, "OCI_CONFIG_PROFILE": "OTHER", "OCI_NAMESPACE": "ns"}
    assert resolve_oci("oci://b/x", keys, other) == {**pair, "region": "eu-2", "endpoint": endpoint("eu-2")}
    environ = {**home, "OCI_REGION": "eu-3", "OCI_ACCESS_KEY_ID": "k", "OCI_SECRET_ACCESS_KEY": "s"}
    assert resolve_oci("oci://b@ns/x", {}, environ) == {**pair, "region": "eu-3", "endpoint": endpoint("eu-3")}
    assert resolve_oci("oci://b@ns/x", {}, home)["anonymous"]
    with pytest.raises(ConfigError, match="which region and namespace"):
        resolve_oci("oci://b/x", keys, NOWHERE)
    with pytest.raises(ConfigError, match="only one of the OCI access key"):
        resolve_oci("oci://b@ns/x", {"key": "k"}, home)
    with pytest.raises(ConfigError, match="there is no OCI config file"):
        resolve_oci("oci://b@ns/x", {"config": "/missing"}, home)
    with pytest.raises(ConfigError, match="cannot read profile 'GONE'"):
        resolve_oci("oci://b@ns/x", keys, {**home, "OCI_CONFIG_PROFILE": "GONE"})


@pytest.mark.parametrize("scheme", ["gs", "gcs", "az", "oci", "s3"])
def test_unknown_options_are_errors(scheme: str) -> None:
    with pytest.raises(ConfigError, match="has no option 'encrypt'"):
        resolve_store(f"{scheme}://bucket/x", {"encrypt": True}, environ=NOWHERE)
