"""What a cache is told: which directories, fed by which stores, how patiently."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cachedir.layout import user_cache_dir
from penstock.codecs.digest import check_hashes
from penstock.errors import ConfigError
from penstock.storage.base import StoreSettings, url_scheme


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
        check_hashes(self.validate_hash)
        if self.retry < 0:
            raise ConfigError(f"download_retry={self.retry} is negative: use 0 for a single attempt")
        if not self.timeout_s > 0:
            raise ConfigError(f"download_timeout={self.timeout_s} leaves no time at all")


def settled(stream: CachedStream) -> CachedStream:
    """Give the same stream for any process: paths that no longer depend on where it stands."""
    store = stream.store
    if url_scheme(store.url) is None:
        store = StoreSettings(_absolute(store.url), store.options)
    directory = Path(os.path.realpath(os.path.expanduser(stream.directory)))  # noqa: PTH111
    return CachedStream(
        directory=directory,
        is_private=directory.is_relative_to(os.path.realpath(user_cache_dir())),
        store=store,
        keep_zip=stream.keep_zip,
        validate_hash=stream.validate_hash,
        retry=stream.retry,
        timeout_s=stream.timeout_s,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def dump_stream(stream: CachedStream) -> dict[str, Any]:
    """Give a stream as plain JSON values. They may hold secrets."""
    return {
        "directory": str(stream.directory),
        "url": stream.store.url,
        "options": stream.store.options,
        "keep_zip": stream.keep_zip,
        "validate_hash": stream.validate_hash,
        "retry": stream.retry,
        "timeout_s": stream.timeout_s,
        "is_private": stream.is_private,
    }


def load_stream(value: dict[str, Any]) -> CachedStream:
    """Rebuild a stream."""
    return CachedStream(
        directory=Path(value["directory"]),
        store=StoreSettings(value["url"], value["options"]),
        keep_zip=value["keep_zip"],
        validate_hash=value["validate_hash"],
        retry=value["retry"],
        timeout_s=value["timeout_s"],
        is_private=value["is_private"],
    )
