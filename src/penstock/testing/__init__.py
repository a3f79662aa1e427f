"""Contracts: what every plug-in of a kind must do, as tests that its author runs.

`OrderContract` draws its cases with hypothesis, so it is loaded on first use only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.testing.catalogs import CatalogContract
from penstock.testing.encodings import EncodingContract
from penstock.testing.formats import FormatContract
from penstock.testing.sources import SourceContract
from penstock.testing.stores import LargeObjectContract, StoreContract, StoreReadContract

if TYPE_CHECKING:
    from penstock.testing.orders import OrderContract

__all__ = [
    "CatalogContract",
    "EncodingContract",
    "FormatContract",
    "LargeObjectContract",
    "OrderContract",
    "SourceContract",
    "StoreContract",
    "StoreReadContract",
]


def __getattr__(name: str) -> Any:
    if name != "OrderContract":
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    from penstock.testing.orders import OrderContract

    return OrderContract
