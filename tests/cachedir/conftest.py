"""A meeting place for each test, as those of the cache have."""

from __future__ import annotations

from tests.cache.conftest import runtime

__all__ = ["runtime"]
