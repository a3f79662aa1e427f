"""When and how long to try again, with a clock of the test's own."""

from __future__ import annotations

import pytest

from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.storage.retry import Attempts, RetryHooks, RetryPolicy, retrying

POLICY = RetryPolicy(attempts=4, base_s=1, max_s=3, stall_s=5, deadline_s=60)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []
        self.seen: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    @property
    def hooks(self) -> RetryHooks:
        return RetryHooks(
            now=lambda: self.time,
            sleep=self.sleep,
            draw=lambda: 1.0,
            on_retry=lambda error: self.seen.append(str(error)),
        )


def failing(times: int, error: StoreError) -> tuple[list[int], object]:
    calls: list[int] = []

    def action() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return calls, action


def test_waits_double_up_to_a_limit_and_retries_are_witnessed() -> None:
    clock = Clock()
    calls, action = failing(3, StoreError("a passing fault"))
    assert retrying(action, POLICY, clock.hooks, "it") == "done"  # type: ignore[arg-type]
    assert clock.waits == [1, 2, 3]
    assert clock.seen == ["a passing fault"] * 3
    assert len(calls) == 4


def test_the_last_failure_is_raised() -> None:
    clock = Clock()
    calls, action = failing(9, StoreError("again"))
    with pytest.raises(StoreError, match="again"):
        retrying(action, POLICY, clock.hooks, "it")  # type: ignore[arg-type]
    assert len(calls) == 4


@pytest.mark.parametrize("kind", [ObjectNotFoundError, AccessDeniedError, ObjectChangedError, RequestRefusedError])
def test_final_answers_are_final(kind: type[StoreError]) -> None:
    calls, action = failing(9, kind("no"))
    with pytest.raises(kind):
        retrying(action, POLICY, Clock().hooks, "it")  # type: ignore[arg-type]
    assert len(calls) == 1


def test_the_wish_of_a_server_is_honoured() -> None:
    clock = Clock()
    _, action = failing(1, StoreError("busy", retry_after_s=30))
    assert retrying(action, POLICY, clock.hooks, "it") == "done"  # type: ignore[arg-type]
    assert clock.waits == [31]
    _, action = failing(1, StoreError("busy", retry_after_s=100))
    with pytest.raises(StoreTimeoutError, match="it did not succeed within 60 s: busy"):
        retrying(action, POLICY, clock.hooks, "it")  # type: ignore[arg-type]


def test_full_jitter() -> None:
    assert POLICY.delay_s(2, 0.0) == 0
    assert POLICY.delay_s(2, 0.5) == 1
    assert POLICY.delay_s(10_000, 0.5) == 1.5


def test_progress_forgives_failures_but_not_the_deadline() -> None:
    clock = Clock()
    attempts = Attempts(POLICY, clock.hooks, "it")
    for _ in range(20):
        attempts.failed(StoreError("cut"))
        attempts.progressed()
    clock.time = 61
    with pytest.raises(StoreTimeoutError, match="it did not succeed within 60 s: cut") as late:
        attempts.progressed()
    with pytest.raises(StoreTimeoutError) as again:  # said once, not as the cause of itself
        attempts.failed(late.value)
    assert again.value is late.value


def test_a_connection_that_never_fails_may_be_too_slow() -> None:
    clock = Clock()
    attempts = Attempts(POLICY, clock.hooks, "it")
    clock.time = 61
    with pytest.raises(StoreTimeoutError, match="it did not succeed within 60 s: bytes come too slowly"):
        attempts.progressed()


def test_numbers_of_a_dataset() -> None:
    assert RetryPolicy.of(2, 60) == RetryPolicy(attempts=3, deadline_s=60)
    assert RetryPolicy.of(0, 5) == RetryPolicy(attempts=1, deadline_s=5, stall_s=5)
    for retry, timeout in ((-1, 60), (2, 0), (2, -1)):
        with pytest.raises(ConfigError):
            RetryPolicy.of(retry, timeout)


def test_what_is_no_fault_of_a_store_passes() -> None:
    def action() -> None:
        raise PenstockError("something else")

    with pytest.raises(PenstockError, match="something else"):
        retrying(action, RetryPolicy(attempts=3), RetryHooks(), "it")
