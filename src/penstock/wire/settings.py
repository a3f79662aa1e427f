"""What a cache is told: which directories, fed by which stores, how patiently."""
# ruff: noqa: TC001, TC003  the types of fields are looked at when messages are read

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError
from penstock.storage.base import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStream:
    """One directory fed by one store."""

    directory: Path
    store: StoreSettings
    keep_zip: bool = False  # keep compressed files beside the raw ones
    validate_hash: str | None = None  # digest of the stored file, checked when it is fetched
    retry: int = 2  # further attempts
    timeout_s: float = 60.0  # the longest without a single byte; both are used up before a store is given up
    is_private: bool = False  # nobody else may read the files: they lie below the user's own cache

    def __post_init__(self) -> None:
        if self.retry < 0:
            raise ConfigError(f"download_retry={self.retry} is negative: use 0 for a single attempt")
        if not self.timeout_s > 0:
            raise ConfigError(f"download_timeout={self.timeout_s} is too small: use a number of seconds above 0")
