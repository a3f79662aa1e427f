"""Spans of bytes."""

from __future__ import annotations

import pytest

from penstock.errors import (
    ConfigError,
)
from penstock.types import Span


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2)])
def test_spans_that_cannot_be(begin: int, end: int) -> None:
    with pytest.raises(ConfigError, match="not a valid range of bytes"):
        Span(begin, end)
