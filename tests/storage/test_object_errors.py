"""What errors of the client mean, and how much of what others sent is shown."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest
from tests.servers.script import Answer, run_script

from penstock.errors import RequestRefusedError
from penstock.storage.base import Store, open_store, resolve_store

if TYPE_CHECKING:
    from penstock.storage.retry import RetryPolicy


def open_bucket(scheme: str, server: str, retry: RetryPolicy | None = None) -> Store:
    """Open a place on a server of this machine, as a web server or as S3."""
    if scheme == "http":
        return open_store(resolve_store(server, environ={}), retry=retry)
    options = {"key": "k", "secret": "s", "endpoint_url": server, "region": "us-east-1"}
    return open_store(resolve_store("s3://bucket", options, environ={}), retry=retry)


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("letters", [b"a", b"://a", b"a?"])
def test_an_answer_of_300_kb_ends_in_a_short_error(scheme: str, letters: bytes) -> None:
    """It used to freeze the process for minutes, without any other thread."""
    with run_script(lambda _: Answer(400, letters * (300_000 // len(letters)))) as server:
        with pytest.raises(RequestRefusedError, match="the server answered 400") as caught:
            open_bucket(scheme, server.url).read("x")
    assert len(str(caught.value)) < 100
    assert len("".join(traceback.format_exception(caught.value))) < 50_000
