"""What a cache is told: which directories, fed by which stores, how patiently."""
# ruff: noqa: TC003  the types of fields are looked at when messages are read

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.storage.base import StoreSettings, url_scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRequest:
    """Files of other programs, below the root of a store: what to look for, and how to read it."""

    patterns: tuple[str, ...]  # names, globs and folders; an empty one is the root
    format: str | None = None  # None: seen from names and first bytes
    settings: dict[str, Any] = field(default_factory=dict, hash=False)  # what the user said of the format
    columns: tuple[str, ...] | None = None  # those that are read; None: all
    may_have_index: bool = False  # the root may be the folder of a dataset with an index.json, which comes first
    is_repository: bool = False  # the root is a repository of the Hub, whose own rules say which files are meant
    subset: str | None = None
    split: str | None = None

    @property
    def question(self) -> str:
        """What decides which shards there are, as text."""
        return json.dumps([self.patterns, self.format, self.settings, self.subset, self.split], sort_keys=True)

    @property
    def digest(self) -> str:
        """Name everything that is asked for."""
        # Not by `asdict`, which copies settings: there may be a number in them for each of a million episodes.
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedStream:
    """One directory fed by one store."""

    directory: Path
    store: StoreSettings
    keep_zip: bool = False  # keep compressed files beside the raw ones
    validate_hash: str | None = None  # digest of the stored file, checked when it is fetched
    retry: int = 2  # further attempts
    timeout_s: float = 60.0  # the longest without a single byte; both are used up before a store is given up
    is_private: bool = False  # no other user may read the files: they lie below the user's own cache
    files: FilesRequest | None = None  # what to look for in the store; None: an index.json

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that shards are unpacked for, where that is done for some of them; None: all."""
        return None if self.files is None else self.files.columns

    @property
    def copies_local_files(self) -> bool:
        """Whether the directory holds unpacked copies of files of this machine: more of them than fit may be wanted."""
        return self.files is not None and url_scheme(self.store.url) in (None, "file")

    def __post_init__(self) -> None:
        if self.retry < 0:
            raise ConfigError(f"download_retry={self.retry} is negative: use 0 for a single attempt")
        if not self.timeout_s > 0:
            raise ConfigError(f"download_timeout={self.timeout_s} is too small: use a number of seconds above 0")
