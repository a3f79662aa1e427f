"""Every test of this folder has a fetcher and a cache of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.in_place.kinds import KINDS, Kind
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]
