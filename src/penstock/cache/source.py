"""A store as the fetcher asks it: how often again, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A store, which tries again by itself, and how patiently it is asked."""

    store: Store
    url: str
    retry: int = 2
    timeout_s: float = 60.0  # without a single byte

    def where(self, key: str) -> str:
        """Name an object in messages."""
        return f"{self.url.rstrip('/')}/{key}"
