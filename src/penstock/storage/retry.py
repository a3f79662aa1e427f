"""Trying again: one policy for whatever may fail for a passing reason."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Asking again gets the same answer.
FINAL_ERRORS = (ObjectNotFoundError, AccessDeniedError, ObjectChangedError, RequestRefusedError)

_STALL_S = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how long and how patiently one operation is tried.

    An operation is one piece, one part of an upload, one page of a list: something that has a size limit.
    """

    attempts: int = 5  # in a row without a single new byte
    base_s: float = 0.5  # the first wait is a random part of this, the next of twice as much …
    max_s: float = 20.0  # … up to this
    stall_s: float = _STALL_S  # longest silence of a connection
    deadline_s: float = 120.0  # of the whole operation, waits included

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"retry={self.attempts - 1} allows no attempt at all: use 0 or more")
        if self.base_s < 0 or self.max_s < 0 or self.stall_s <= 0 or self.deadline_s <= 0:
            raise ConfigError(f"{self} has a time that is not positive")

    @classmethod
    def of(cls, download_retry: int, download_timeout: float) -> RetryPolicy:
        """Understand the two numbers that datasets take: further attempts, and seconds in all."""
        return cls(attempts=download_retry + 1, deadline_s=download_timeout, stall_s=min(_STALL_S, download_timeout))

    def delay_s(self, failures: int, draw: float, asked_s: float | None = None) -> float:
        """Say how long to wait after so many failures; `draw` is random in [0, 1), `asked_s` the server's own wish.

        Full jitter: clients that failed together do not come back together.
        """
        delay = draw * min(self.max_s, self.base_s * 2.0 ** min(failures - 1, 60))
        return delay if asked_s is None else asked_s + delay


def _nothing(error: StoreError) -> None:
    """Do nothing about an attempt that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryHooks:
    """What a policy needs from the world: a clock, a way to wait (which may raise to give up), a witness."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    on_retry: Callable[[StoreError], None] = _nothing


class Attempts:
    """The attempts of one operation."""

    def __init__(self, policy: RetryPolicy, hooks: RetryHooks, what: str) -> None:
        self._policy = policy
        self._hooks = hooks
        self._what = what
        self._began = hooks.now()
        self._failures = 0
        self._last_cause = "bytes come too slowly"
        self._late: StoreTimeoutError | None = None

    @property
    def remaining_s(self) -> float:
        """Give the time until the deadline."""
        return self._began + self._policy.deadline_s - self._hooks.now()

    def progressed(self) -> None:
        """Take note that something arrived: the count of failures in a row starts anew."""
        self._failures = 0
        if self.remaining_s <= 0:
            self._late = self._too_late(self._last_cause)
            raise self._late

    def failed(self, error: StoreError) -> None:
        """Wait before the next attempt, or raise if there is none."""
        if isinstance(error, FINAL_ERRORS) or error is self._late:
            raise error
        self._last_cause = str(error)
        self._failures += 1
        if self._failures >= self._policy.attempts:
            raise error
        delay = self._policy.delay_s(self._failures, self._hooks.draw(), error.facts.get("retry_after_s"))
        if delay >= self.remaining_s:
            raise self._too_late(str(error)) from error
        _log.info("trying again in %.1f s: %s", delay, error)
        self._hooks.on_retry(error)
        self._hooks.sleep(delay)

    def _too_late(self, cause: str) -> StoreTimeoutError:
        return StoreTimeoutError(f"{self._what} did not succeed within {self._policy.deadline_s:g} s: {cause}")


def retrying(action: Callable[[], T], policy: RetryPolicy, hooks: RetryHooks, what: str) -> T:
    """Call until it works, as long as the policy allows; what is no `StoreError` passes at once."""
    attempts = Attempts(policy, hooks, what)
    while True:
        try:
            return action()
        except StoreError as error:
            attempts.failed(error)
