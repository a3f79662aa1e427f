"""Which place on the Hub a URL names."""

from __future__ import annotations

import pytest

from penstock.errors import (
    ConfigError,
)
from penstock.storage.base import resolve_store
from penstock.storage.hub_location import parse_hub_url

# huggingface_hub's own way to send a file, which its HTTP library does not like.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


NOTHING = {"HOME": "/nowhere"}


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("hf://datasets/o/n", ("dataset", "o/n", None, "")),
        ("hf://datasets/o/n/a/b/", ("dataset", "o/n", None, "a/b")),
        ("hf://datasets/o/n@v1/a@b", ("dataset", "o/n", "v1", "a@b")),
        ("hf://datasets/o/n/a@b", ("dataset", "o/n", None, "a@b")),
        ("hf://datasets/o/n@refs%2Fpr%2F3/a", ("dataset", "o/n", "refs/pr/3", "a")),
        ("hf://datasets/o/n@refs/pr/3/a", ("dataset", "o/n", "refs/pr/3", "a")),
        ("hf://o/n/a", ("model", "o/n", None, "a")),
        ("hf://spaces/o/n", ("space", "o/n", None, "")),
        ("hf://buckets/o/n/a", ("bucket", "o/n", None, "a")),
    ],
)
def test_urls(url: str, parsed: tuple[str, str, str | None, str]) -> None:
    assert parse_hub_url(url) == parsed


@pytest.mark.parametrize(
    "url",
    ["hf://", "hf://datasets", "hf://datasets/o", "hf://o", "hf://datasets//n", "hf://buckets/o/n@v", "hf://o/n@"],
)
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(ConfigError):
        resolve_store(url, environ=NOTHING)
