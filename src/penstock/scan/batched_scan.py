"""Scans of many files of which little is read: what all of them need next is asked of their store at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penstock.scan.objects import MissingBytes
from penstock.storage.many import read_many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scan.objects import ScannedObject
    from penstock.storage.base import Store
    from penstock.types import Span

T = TypeVar("T")

_FILES_AT_ONCE = 1024
_ROUNDS = 4  # a scan begins anew with each
_MOST_BYTES = 1 << 20  # asked for in a round, of one file; there may be as many of them as files


def batched_scan(
    store: Store,
    count: int,
    open_file: Callable[[int], ScannedObject],
    first: Callable[[ScannedObject], Span],
    scan: Callable[[int, ScannedObject], T],
) -> dict[int, T]:
    """Scan so many files, by their numbers; those are missing in the answer that read much, or again and again.

    `first` says what the scan of a file reads first. A scan that needs other bytes ends with `MissingBytes`, and is
    called again when they are there.
    """
    found: dict[int, T] = {}
    for begin in range(0, count, _FILES_AT_ONCE):
        files = {number: open_file(number) for number in range(begin, min(begin + _FILES_AT_ONCE, count))}
        waiting = {number: first(file) for number, file in files.items()}
        for _ in range(_ROUNDS):
            waiting = _scan(store, files, waiting, scan, found)
    return found


def _scan(
    store: Store,
    files: Mapping[int, ScannedObject],
    wanted: Mapping[int, Span],
    scan: Callable[[int, ScannedObject], T],
    found: dict[int, T],
) -> dict[int, Span]:
    """Read what is wanted of files, scan each when that is there, and give what they want then."""
    missing = {}
    numbers = list(wanted)
    for at, data, info in read_many(store, [(files[number].name, wanted[number]) for number in numbers]):
        file = files[numbers[at]]
        file.hold(wanted[numbers[at]], data, info)
        file.miss(_MOST_BYTES)
        try:
            found[numbers[at]] = scan(numbers[at], file)
        except MissingBytes as need:
            missing[numbers[at]] = need.span
    return missing
