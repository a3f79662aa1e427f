"""Contracts: what every plug-in of a kind must do, as tests that its author runs."""

from penstock.testing.orders import OrderContract

__all__ = ["OrderContract"]
