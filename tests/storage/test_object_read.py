"""Receiving ranges from servers that cut what they send."""

from __future__ import annotations

import pytest
from tests.servers.script import Answer, run_script

from penstock.errors import StoreTimeoutError
from penstock.storage.base import open_store, resolve_store
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.types import Span


class Clock:
    """A clock that goes on by itself when it is waited for."""

    def __init__(self) -> None:
        self.time = 0.0

    def sleep(self, seconds: float) -> None:
        self.time += seconds


CUT = {"Content-Length": "10000", "Connection": "close", "ETag": '"x"'}


@pytest.mark.parametrize("headers", [{}, {"X-Api-Key": "k"}])
def test_what_came_before_is_no_progress(headers: dict[str, str]) -> None:
    """A server without ranges that always stops at the same byte is given up, however many bytes that is."""
    with run_script(lambda _: Answer(200, b"x" * 6000, CUT)) as server:
        clock = Clock()
        store = open_store(
            resolve_store(server.url, {"headers": headers}, environ={}),
            retry=RetryPolicy.of(2, 60),
            hooks=RetryHooks(now=lambda: clock.time, sleep=clock.sleep, draw=lambda: 0.5),
        )
        with pytest.raises(StoreTimeoutError, match="no data arrived for"):
            store.read_piece("x", Span(100, 9000))
        assert 3 <= len(server.requests) < 15


@pytest.mark.parametrize("headers", [{}, {"X-Api-Key": "k"}])
def test_each_byte_further_is_progress(headers: dict[str, str]) -> None:
    """Though each answer begins at the first byte, and ends a little later than the one before."""
    data = bytes(range(200)) * 50

    with run_script(lambda _: Answer(200, data[: 1000 * len(server.requests)], CUT)) as server:
        store = open_store(
            resolve_store(server.url, {"headers": headers}, environ={}),
            retry=RetryPolicy(attempts=2, base_s=0.001, max_s=0.001, patience_s=0.001),
        )
        found, _ = store.read_piece("x", Span(0, 9000))
    assert bytes(found) == data[:9000]
