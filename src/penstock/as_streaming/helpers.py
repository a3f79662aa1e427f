"""Small names of MosaicML Streaming's that need a line or two here."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from penstock.data.getitem import items_at
from penstock.data.mosaic_names import Spanner as _Spanner
from penstock.index.paths import INDEX_NAME
from penstock.order.id_spans import IdSpans
from penstock.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VERSION = "0.13.0"  # the release whose names and behaviour these are


def clean_stale_shared_memory() -> None:
    """Do nothing: penstock leaves nothing behind in shared memory."""


def get_list_arg(text: str) -> list[str]:
    """Split a list that was written with commas."""
    return text.split(",") if text else []


def get_index_basename() -> str:
    """Name the index file of a dataset."""
    return INDEX_NAME


def bytes_to_int(bytes_str: int | float | str) -> int:
    """Turn a size such as `"64kb"` into a number of bytes; one of an exabyte or more is rounded as a float is."""
    exact = parse_bytes(bytes_str)
    return exact if exact < 1 << 53 else int(float(exact))


def number_abbrev_to_int(abbrev_str: int | float | str) -> int:
    """Turn a count such as `"64k"` into a number."""
    return parse_count(abbrev_str)


def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Decorate a function to call it again when it raises one of these errors, waiting twice as long each time."""
    if callable(exc_class) and not isinstance(exc_class, type):
        return retry()(exc_class)
    errors = (exc_class,) if isinstance(exc_class, type) else tuple(exc_class)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(num_attempts - 1):
                with suppress(*errors):
                    return function(*args, **kwargs)
                if clean_up_fn is not None:
                    clean_up_fn()
                time.sleep(initial_backoff * 2**attempt + random.random() * max_jitter)  # noqa: S311
            return function(*args, **kwargs)

        return call

    return decorate


class Spanner(_Spanner):
    """Finds the shard of a sample and its place in there: `shard, row = spanner[sample]`."""

    def __init__(self, shard_sizes: Sequence[int], span_size: int = 1 << 10) -> None:  # noqa: ARG002
        super().__init__(IdSpans(shard_sizes))


class Array(ABC):
    """Gives items by number, slice, list or array of numbers to whoever defines `size` and `get_item`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of items."""

    @abstractmethod
    def get_item(self, idx: int) -> Any:
        """Return one item by its number, counted from 0."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: Any) -> Any:
        return items_at(at, self.size, lambda ids: [self.get_item(int(number)) for number in ids])
