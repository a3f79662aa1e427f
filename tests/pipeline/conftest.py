"""Data that tests of pipelines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.texts import write_texts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two datasets of text, and a tokenizer for them."""
    return write_texts(tmp_path)
