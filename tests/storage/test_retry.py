"""When and how long to try again, with a clock of the test's own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from penstock.storage.retry import Attempts, Gate, RetryHooks, RetryPolicy, retrying

POLICY = RetryPolicy(attempts=4, base_s=1, max_s=3, stall_s=5, patience_s=60)


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


def test_pauses_double_up_to_a_limit_and_retries_are_witnessed() -> None:
    clock = Clock()
    calls, action = failing(4, StoreError("a passing fault"))
    assert retrying(action, POLICY, clock.hooks, "it") == "done"  # type: ignore[arg-type]
    assert clock.waits == [1, 2, 3, 3]
    assert clock.seen == ["a passing fault"] * 4
    assert len(calls) == 5


def test_a_read_that_gives_up_says_what_was_tried_for_how_long_and_why() -> None:
    clock = Clock()
    _, action = failing(99, StoreError("it: the server answered 503", status=503))
    with pytest.raises(StoreTimeoutError) as failure:
        retrying(action, POLICY, clock.hooks, "it")  # type: ignore[arg-type]
    tries = len(clock.waits) + 1
    words = (
        f"it: no data arrived for {clock.time:.3g} s, in {tries} attempts. The last error was: the server answered 503"
    )
    assert str(failure.value) == words
    assert failure.value.facts["status"] == 503


def test_a_single_try_is_just_that() -> None:
    clock = Clock()
    error = StoreError("no")
    error.__cause__ = OSError("what the client said")
    calls, action = failing(9, error)
    with pytest.raises(StoreError) as failure:
        retrying(action, RetryPolicy.of(0, 60), clock.hooks, "it")  # type: ignore[arg-type]
    assert failure.value is error
    assert str(failure.value.__cause__) == "what the client said"
    assert (len(calls), clock.waits) == (1, [])


@pytest.mark.parametrize("kind", [ObjectNotFoundError, AccessDeniedError, ObjectChangedError, RequestRefusedError])
def test_final_answers_are_final(kind: type[StoreError]) -> None:
    calls, action = failing(9, kind("no"))
    with pytest.raises(kind):
        retrying(action, POLICY, Clock().hooks, "it")  # type: ignore[arg-type]
    assert len(calls) == 1


def test_the_wish_of_a_server_is_honoured_as_far_as_patience_goes() -> None:
    clock = Clock()
    _, action = failing(1, StoreError("busy", retry_after_s=30))
    assert retrying(action, POLICY, clock.hooks, "it") == "done"  # type: ignore[arg-type]
    assert clock.waits == [31]
    assert POLICY.pause_s(1, 60, 1.0, asked_s=3600) == 61


def test_a_gate_closes_for_longer_each_time_until_nothing_was_refused_for_as_long() -> None:
    clock, gate, policy = Clock(), Gate(), RetryPolicy.of(2, 60)
    pauses = []
    for _ in range(7):
        pauses.append(gate.close(clock.time, policy, clock.hooks))
        assert gate.close(clock.time, policy, clock.hooks) == pauses[-1]  # of those who asked at the same time
        clock.time += pauses[-1] - 0.25
        assert gate.left_s(clock.hooks) == 0.25
        clock.time += 0.25
        assert gate.left_s(clock.hooks) == 0
    assert pauses == [1, 2, 4, 8, 16, 20, 20]
    clock.time += 21
    assert gate.close(clock.time, RetryPolicy.of(2, 1), clock.hooks) == 1  # never less
    clock.time -= 10**6
    assert gate.left_s(clock.hooks) <= 1  # whatever clocks do


def test_numbers_of_a_dataset() -> None:
    assert RetryPolicy.of(2, 60) == RetryPolicy(attempts=3, patience_s=60) == RetryPolicy.of(None, None)
    assert RetryPolicy.of(0, 6) == RetryPolicy(attempts=1, patience_s=6, stall_s=6, max_s=2)
    for retry, timeout in ((-1, 60), (2, 0), (2, -1)):
        with pytest.raises(ConfigError):
            RetryPolicy.of(retry, timeout)


# --- Laws ---------------------------------------------------------------------------------------------------

shares = st.floats(0, 1, exclude_max=True)
policies = st.builds(RetryPolicy.of, st.integers(1, 12), st.floats(0.5, 300).map(lambda seconds: round(seconds, 3)))


@given(policy=policies, draws=st.lists(shares, min_size=12, max_size=12))
def test_pauses_grow_though_they_are_random(policy: RetryPolicy, draws: list[float]) -> None:
    pauses = [policy.pause_s(failures, policy.patience_s, draw) for failures, draw in enumerate(draws, 1)]
    assert all(pause > 0 for pause in pauses)
    assert max(pauses) <= policy.max_s
    is_growing = [pause < policy.max_s / 2 for pause in pauses]
    assert all(later >= sooner for sooner, later, grows in zip(pauses, pauses[1:], is_growing, strict=False) if grows)


@given(policy=policies, seed=st.integers(0, 99), tries_s=st.lists(st.floats(0, 40), min_size=1, max_size=8))
def test_both_are_used_up_before_a_store_is_given_up(policy: RetryPolicy, seed: int, tries_s: list[float]) -> None:
    """Whatever time each try takes; and it does come to an end."""
    clock, draw, durations = Clock(), Random(seed), itertools.cycle(tries_s)
    began: list[float] = []

    def action() -> None:
        began.append(clock.time)
        clock.time += min(next(durations), 2 * policy.stall_s)
        raise StoreError("away")

    with pytest.raises(StoreTimeoutError, match="away"):
        retrying(action, policy, replace(clock.hooks, draw=draw.random), "it")
    assert len(began) >= policy.attempts
    assert began[-1] >= policy.patience_s
    longest_s = 2 * policy.stall_s + 2 * policy.max_s  # of a try and the pause after it
    assert clock.time <= max(policy.attempts * longest_s, policy.patience_s + 2 * longest_s)


@given(policy=policies, seed=st.integers(0, 99), try_s=st.floats(0, 30), share=shares)
def test_an_outage_as_long_as_the_time_is_survived(policy: RetryPolicy, seed: int, try_s: float, share: float) -> None:
    """Also if its end is a little late, and wherever in a body it began."""
    clock, draw = Clock(), Random(seed)
    back_at = policy.patience_s + share * min(policy.base_s, policy.max_s) / 2

    def action() -> str:
        if clock.time < back_at:
            clock.time += min(try_s, policy.stall_s)
            raise StoreError("away")
        return "done"

    attempts = Attempts(policy, replace(clock.hooks, draw=draw.random), "it")
    attempts.progressed(1)
    while True:
        try:
            assert action() == "done"
        except StoreError as error:
            attempts.failed(error)
        else:
            break


@given(policy=policies, gaps=st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_any_byte_starts_both_counts_anew(policy: RetryPolicy, gaps: list[float]) -> None:
    """A connection that breaks after each byte may take as long as it likes."""
    clock = Clock()
    attempts = Attempts(policy, clock.hooks, "it")
    for gap in gaps:
        clock.time += gap * policy.patience_s
        attempts.failed(StoreError("cut"))
        clock.time += policy.patience_s
        attempts.progressed(1)
    attempts.failed(StoreError("cut"))


def test_every_sign_of_life_is_told() -> None:
    clock, signs = Clock(), []
    hooks = replace(clock.hooks, on_life=lambda: signs.append(clock.time))
    attempts = Attempts(POLICY, hooks, "it")
    clock.time = 5
    attempts.progressed(1)
    clock.time = 7
    attempts.failed(StoreError("cut"))
    assert signs == [5, 7, 8]


def test_what_is_no_fault_of_a_store_passes() -> None:
    def action() -> None:
        raise PenstockError("something else")

    with pytest.raises(PenstockError, match="something else"):
        retrying(action, RetryPolicy(attempts=3), RetryHooks(), "it")
