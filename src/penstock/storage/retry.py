"""Trying again: one policy for whatever may fail for a passing reason."""

from __future__ import annotations

import logging
import os
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
_LONGEST_PAUSE_S = 20.0
_FIRST_PAUSE_S = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how long and how patiently one operation is tried.

    An operation is one piece, one part of an upload, one page of a list: something that has a size limit. It is given
    up when so many tries in a row brought no byte *and* none has come for so long. A single try is just that.
    """

    attempts: int = 5  # in a row without a single new byte
    base_s: float = _FIRST_PAUSE_S  # the first pause, which doubles with each further failure …
    max_s: float = _LONGEST_PAUSE_S  # … up to this; random between half of that and all of it
    stall_s: float = _STALL_S  # longest silence of one connection
    patience_s: float = 120.0  # without a single new byte, whatever is tried

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"retry={self.attempts - 1} allows no attempt at all: use 0 or more")
        if min(self.base_s, self.max_s, self.stall_s, self.patience_s) <= 0:
            raise ConfigError(f"{self} has a time that is not above 0")

    @classmethod
    def of(cls, download_retry: int | None, download_timeout: float | None) -> RetryPolicy:
        """Understand the two numbers that datasets take: further tries, and seconds without a single byte."""
        download_timeout = 60.0 if download_timeout is None else download_timeout
        return cls(
            attempts=(2 if download_retry is None else download_retry) + 1,
            max_s=min(_LONGEST_PAUSE_S, download_timeout / 3) if download_timeout > 0 else _LONGEST_PAUSE_S,
            stall_s=min(_STALL_S, download_timeout),
            patience_s=download_timeout,
        )

    def is_used_up(self, failures: int, quiet_s: float) -> bool:
        """Return whether there is no further try after so many that failed in a row.

        `quiet_s` is how long nothing had come when the last of them *began*: while it waited for an answer the store
        may have come back, and the next one would have found it.
        """
        return failures >= self.attempts and (self.attempts == 1 or quiet_s >= self.patience_s)

    def pause_s(self, failures: int, quiet_s: float, draw: float, asked_s: float | None = None) -> float:
        """Return how long to pause after so many failures; nothing has come for `quiet_s`, `draw` is random in [0, 1).

        Pauses double, and half of each is random: clients that failed together do not come back together. `asked_s`
        is the server's own wish, which is granted as far as our patience or longest pause goes. The try that outlasts
        the time is made a whole pause later: an outage of just that length is survived.
        """
        own_s = (0.5 + draw / 2) * min(self.max_s, self.base_s * 2.0 ** min(failures - 1, 60))
        pause_s = own_s + min(asked_s or 0.0, max(self.patience_s, self.max_s))
        left_s = self.patience_s - quiet_s
        return max(pause_s, left_s + own_s) if 0 < left_s <= pause_s else pause_s


def _draw() -> float:
    """Return a random number in [0, 1)."""
    return int.from_bytes(os.urandom(6), "big") / 2**48


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryHooks:
    """What a policy needs from the world: a clock, a way to wait (which may raise to give up), witnesses.

    `on_bytes` hears how many came, as they come. `on_life` hears of them too, of every failure and of every try:
    what watches over an operation then knows that it does not hang, and that this policy will end it.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = _draw
    on_retry: Callable[[StoreError], None] = lambda _: None
    on_bytes: Callable[[int], None] = lambda _: None
    on_life: Callable[[], None] = lambda: None


class Gate:
    """Keeps all threads from a store that has too much to do: for two first pauses (a second), then for longer."""

    def __init__(self) -> None:
        self._pause_s = self._until = 0.0

    def left_s(self, hooks: RetryHooks) -> float:
        """Return for how long the store must not be asked."""
        return min(self._until - hooks.now(), self._pause_s)

    def close(self, began_at: float, policy: RetryPolicy, hooks: RetryHooks) -> float:
        """Note a refusal. Pauses double with those that begin after one pause, and before as much time has gone by."""
        if began_at >= self._until:
            is_another = began_at <= self._until + self._pause_s
            self._pause_s = max(2 * policy.base_s, min(2 * self._pause_s * is_another, policy.max_s))
        self._until = hooks.now() + self._pause_s
        return self._pause_s


class Attempts:
    """The attempts of one operation."""

    def __init__(self, policy: RetryPolicy, hooks: RetryHooks, what: str) -> None:
        self._policy = policy
        self._hooks = hooks
        self._what = what
        self._failures = 0
        self._heard_at = self._began_at = hooks.now()

    def progressed(self, num_bytes: int, *, is_new: bool = True) -> None:
        """Note that so many bytes arrived: both counts start anew, unless all of them had come before."""
        if is_new:
            self._failures = 0
            self._heard_at = self._hooks.now()
        self._hooks.on_bytes(num_bytes)
        self._hooks.on_life()

    def failed(self, error: StoreError) -> None:
        """Wait before the next attempt, or raise if there is none."""
        if isinstance(error, FINAL_ERRORS):
            raise error
        self._failures += 1
        if self._policy.is_used_up(self._failures, self._began_at - self._heard_at):
            if self._policy.attempts == 1:
                raise error  # which says all there is to say
            raise self._given_up(error) from error
        quiet_s = self._hooks.now() - self._heard_at
        pause_s = self._policy.pause_s(self._failures, quiet_s, self._hooks.draw(), error.facts.get("retry_after_s"))
        _log.info("trying again in %.1f s: %s", pause_s, error)
        self._hooks.on_retry(error)
        self._hooks.on_life()
        self._hooks.sleep(pause_s)
        self._began_at = self._hooks.now()
        self._hooks.on_life()

    def _given_up(self, error: StoreError) -> StoreError:
        """Return what was tried, how often and for how long."""
        quiet_s = self._hooks.now() - self._heard_at
        cause = str(error).removeprefix(f"{self._what}: ")
        return StoreTimeoutError(
            f"{self._what}: no data arrived for {quiet_s:.3g} s, in {self._failures} attempts. The last error was:"
            f" {cause}",
            **error.facts,
        )


def retrying(action: Callable[[], T], policy: RetryPolicy, hooks: RetryHooks, what: str) -> T:
    """Call until it works, as long as the policy allows; what is no `StoreError` passes at once."""
    attempts = Attempts(policy, hooks, what)
    while True:
        try:
            return action()
        except StoreError as error:
            attempts.failed(error)
