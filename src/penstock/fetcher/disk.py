"""The disk of a cache: how full it is, and how much of it is left to others."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.outside_text import ASCII, Bounded
from penstock.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

RESERVE_VARIABLE = "PENSTOCK_DISK_RESERVE"
# Of a large disk a few per cent are more than anybody needs to stay clear of trouble.
_DEFAULT_PART = 0.03
_DEFAULT_MOST_BYTES = 10 << 30
_PERCENT = Bounded(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", 64, ASCII)


@dataclass(frozen=True, slots=True)
class Reserve:
    """What caches leave free of a disk: a part of it, a number of bytes, or the smaller of both."""

    part: float = 1.0
    most_bytes: int | None = None

    def of(self, total_bytes: int) -> int:
        """Give the bytes to leave free of a disk of this size."""
        num_bytes = int(self.part * total_bytes)
        return num_bytes if self.most_bytes is None else min(num_bytes, self.most_bytes)


def parse_reserve(text: str | None) -> Reserve:
    """Read a setting such as "5gb" or "3%"; nothing means the default."""
    if not text:
        return Reserve(_DEFAULT_PART, _DEFAULT_MOST_BYTES)
    percent = _PERCENT.fullmatch(text)
    try:
        if percent is None:
            return Reserve(most_bytes=parse_bytes(text))
    except ConfigError as error:
        raise ConfigError(f"{RESERVE_VARIABLE}: {error}, or a share of the disk, like '3%'") from error
    if float(percent[1]) > 100:
        raise ConfigError(f"{RESERVE_VARIABLE}: {text!r} is more than the whole disk")
    return Reserve(float(percent[1]) / 100)


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system as it is now."""

    device: int
    total_bytes: int
    free_bytes: int


def measure_disk(directory: Path) -> Disk | None:
    """Look at the file system that a directory is on, or will be on; None if it does not say how large it is."""
    for folder in (directory, *directory.parents):
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            space = os.statvfs(folder)
            if not space.f_blocks:
                return None
            return Disk(folder.stat().st_dev, space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize)
    return None


def describe_full(directory: Path, disk: Disk, left_bytes: int) -> str:
    """Say what happens on a disk that is nearly full."""
    return (
        f"the disk of {directory} is nearly full ({format_bytes(disk.free_bytes)} free), so penstock removes shards"
        f" that are not in use from the caches on it, to leave {format_bytes(left_bytes)} for others. Set a cache_limit"
        f" that leaves enough room, or set {RESERVE_VARIABLE} to leave more or less"
    )
