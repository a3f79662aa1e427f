"""Azure: the contract on Azurite, and how settings are found."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.servers.azurite import KEY

from penstock.errors import ConfigError
from penstock.storage.azure import parse_connection_string, resolve_azure
from penstock.storage.base import Store, open_store, resolve_store
from penstock.testing.stores import StoreContract

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.azurite import AzureServer


class TestAzurite(StoreContract):
    secrets = (KEY,)

    @pytest.fixture(autouse=True)
    def _server(self, azurite: AzureServer) -> None:
        self.server = azurite

    def make_store(self, folder: Path) -> Store:
        container = f"c-{uuid.uuid4().hex}"
        self.server.make_container(container)
        return open_store(resolve_store(f"az://{container}/some/prefix", self.server.options))


ACCOUNT = {"AZURE_ACCOUNT_NAME": "acc"}


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
