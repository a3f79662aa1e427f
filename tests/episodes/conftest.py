"""The tests of each file of this folder have a fetcher and a cache of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True, scope="module")
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder
