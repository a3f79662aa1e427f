"""Azure: the contract on Azurite, and how settings are found."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from tests.servers.azurite import KEY

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
