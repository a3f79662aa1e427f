"""A store as the fetcher asks it: how often again, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cachedir.layout import place_of
from penstock.storage.base import shown_url

if TYPE_CHECKING:
    from penstock.storage.base import Store, StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A store, which tries again by itself, and how patiently it is asked."""

    store: Store
    url: str = field(repr=False)
    name: str = ""  # what tells its data from others': place and endpoint, without secrets
    retry: int = 2
    timeout_s: float = 60.0  # without a single byte

    def where(self, key: str) -> str:
        """Name an object in messages."""
        return f"{shown_url(self.url).rstrip('/')}/{key}"


def source_name(settings: StoreSettings) -> str:
    """Name the place that data come from: the same bucket at another endpoint is another place."""
    endpoint = settings.options.get("endpoint")
    return place_of(settings.url) + (f" at {shown_url(str(endpoint))}" if endpoint else "")
