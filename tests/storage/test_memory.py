"""The contract of stores, over the memory of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.base import Store, open_store
from penstock.testing.stores import StoreContract

if TYPE_CHECKING:
    from pathlib import Path


class TestMemoryStore(StoreContract):
    def make_store(self, folder: Path) -> Store:
        return open_store(f"memory://{'/'.join(folder.parts[1:])}")
