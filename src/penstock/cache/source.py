"""A store as the fetcher asks it: how often again, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.storage.retry import with_retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.base import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A store and how patiently it is asked."""

    store: Store
    url: str
    retry: int = 2
    timeout_s: float = 60.0

    def where(self, key: str) -> str:
        """Name an object in messages."""
        return f"{self.url.rstrip('/')}/{key}"


def try_again(action: Callable[[], T], retry: int, on_retry: Callable[[], None]) -> T:
    """Ask a store, and again if it fails for a passing reason. The one place that knows of retries."""
    attempts = 0

    def attempt() -> T:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            on_retry()
        return action()

    return with_retry(attempt, attempts=retry + 1, base_s=0.5)
