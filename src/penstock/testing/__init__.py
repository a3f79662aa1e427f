"""Contracts: what every plug-in of a kind must do, as tests that its author runs."""

from penstock.testing.formats import FormatContract
from penstock.testing.stores import StoreContract

__all__ = ["FormatContract", "StoreContract"]
