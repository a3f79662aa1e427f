"""Tests that start a fetcher have one of their own, and none may survive them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cache.kit import runtime_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def runtime() -> Iterator[Path]:
    with runtime_dir() as folder:
        yield folder
