"""Trying again: one policy for whatever may fail for a passing reason."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_FINAL = (ObjectNotFoundError, AccessDeniedError)  # asking again gets the same answer


def with_retry(action: Callable[[], T], *, attempts: int, base_s: float = 1.0) -> T:
    """Call until it works, at most `attempts` times, waiting a random part of a doubling delay in between."""
    if attempts < 1:
        raise ConfigError(f"retry={attempts} allows no attempt at all: use 1 or more")
    for attempt in range(attempts - 1):
        try:
            return action()
        except _FINAL:
            raise
        except StoreError:
            time.sleep(random.uniform(0, base_s * 2**attempt))  # noqa: S311
    return action()
