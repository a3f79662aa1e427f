"""Contracts: what every plug-in of a kind must do, as tests that its author runs.

`OrderContract` draws its cases with hypothesis and `SourceContract` streams them: both are loaded on first use only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.testing.catalogs import CatalogContract
from penstock.testing.encodings import EncodingContract
from penstock.testing.file_formats import FileFormatContract
from penstock.testing.formats import FormatContract
from penstock.testing.stores import LargeObjectContract, StoreContract, StoreReadContract

if TYPE_CHECKING:
    from penstock.testing.orders import OrderContract
    from penstock.testing.sources import SourceContract

_LATER = {"OrderContract": "penstock.testing.orders", "SourceContract": "penstock.testing.sources"}

__all__ = [
    "CatalogContract",
    "EncodingContract",
    "FileFormatContract",
    "FormatContract",
    "LargeObjectContract",
    "OrderContract",
    "SourceContract",
    "StoreContract",
    "StoreReadContract",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
