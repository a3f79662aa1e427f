"""Contracts: what every plug-in of a kind must do, as tests that its author runs."""

from penstock.testing.formats import FormatContract

__all__ = ["FormatContract"]
