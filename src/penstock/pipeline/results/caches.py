"""`MemoryCache`, `DiskCache` and both together: values of your own by key, computed once."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.cachedir.layout import stripe_name, stripe_of
from penstock.cachedir.lock import try_hold, wait_for_lock
from penstock.errors import CorruptShardError, ObjectNotFoundError
from penstock.files import read_file
from penstock.interrupts import WaitingFor
from penstock.pipeline.results.values import compression_of, decode, encode
from penstock.units import check_seconds, check_whole, parse_bytes
from penstock.write.publish import write_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from penstock.cachedir.lock import Descriptor

Compression = Literal["none", "gzip", "lz4", "zstd"]

log = logging.getLogger("penstock.cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMetadata:
    """What is known of a cached value."""

    version: str = "1.0"
    created_at: float = field(default_factory=time.time)
    source_hash: str = ""
    tokenizer_hash: str | None = None
    transform_hash: str | None = None
    num_examples: int = 0
    config_hash: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def is_valid_for(self, config_hash: str, source_hash: str | None = None) -> bool:
        """Tell whether a value was made with these settings, and of this source if one is given."""
        return self.config_hash == config_hash and source_hash in (None, self.source_hash)

    def to_dict(self) -> dict[str, Any]:
        """Give all fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CacheMetadata:
        """Make it of what `to_dict` gave."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


Found = tuple[Any, CacheMetadata]


class CacheLayer(ABC):
    """Values by key, each with its metadata."""

    @abstractmethod
    def get(self, key: str) -> Found | None:
        """Give a value and its metadata, or None."""

    @abstractmethod
    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Keep a value."""

    @abstractmethod
    def contains(self, key: str) -> bool:
        """Tell whether there is a value."""

    @abstractmethod
    def invalidate(self, key: str | None = None) -> None:
        """Forget a value, or all."""

    def get_metadata(self, key: str) -> CacheMetadata | None:
        """Give the metadata of a value."""
        found = self.get(key)
        return None if found is None else found[1]


class MemoryCache(CacheLayer):
    """The values used last, in memory. You get the very objects that were put there.

    Args:
        max_size: How many values to keep.
    """

    def __init__(self, max_size: int = 1000) -> None:
        check_whole("max_size", max_size, 0)
        self.max_size = max_size
        self._values: OrderedDict[str, Found] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def get(self, key: str) -> Found | None:
        """Give a value, which then counts as used."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._values.move_to_end(key)
            return found

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Keep a value; the ones that were not used for longest go."""
        with self._lock:
            self._values[key] = value, metadata or CacheMetadata()
            self._values.move_to_end(key)
            while len(self._values) > self.max_size:
                self._values.popitem(last=False)

    def contains(self, key: str) -> bool:
        """Tell whether there is a value."""
        return key in self._values

    def invalidate(self, key: str | None = None) -> None:
        """Forget a value, or all."""
        with self._lock:
            if key is None:
                self._values.clear()
            else:
                self._values.pop(key, None)

    @property
    def stats(self) -> dict[str, float]:
        """Counts of what was asked for, and how much is kept."""
        asked = self._hits + self._misses
        return {
            "hits": self._hits,
            "misses": self._misses,
            "hit_rate": self._hits / asked if asked else 0.0,
            "size": len(self._values),
            "max_size": self.max_size,
        }


class DiskCache(CacheLayer):
    """Values in files, for all processes of a machine: whole or not there, checked when read, never unpickled.

    Values are dicts with text as keys, lists, tuples, NumPy arrays, text, bytes and numbers, in any nesting.

    Args:
        cache_dir: The folder.
        compression: `"none"`, `"gzip"`, `"lz4"` or `"zstd"`.
        expiry_seconds: After how long a value is forgotten; None keeps it.
        max_bytes: How much the folder may hold, such as `"10gb"`: the oldest values go; None sets no limit.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str],
        compression: Compression = "none",
        expiry_seconds: float | None = None,
        *,
        max_bytes: int | str | None = None,
    ) -> None:
        compression_of(compression)  # or it says that it is unknown
        check_seconds("expiry_seconds", expiry_seconds)
        self.cache_dir = Path(cache_dir).expanduser()
        self._compression, self._expiry_s = compression, expiry_seconds
        self._max_bytes = None if max_bytes is None else parse_bytes(max_bytes)

    def get(self, key: str) -> Found | None:
        """Read a value. One that is too old or damaged is none."""
        path = self._path(key)
        try:
            value, about = decode(read_file(path), str(path))
        except ObjectNotFoundError:
            return None
        except CorruptShardError as error:
            log.warning("%s. It is computed again", error)
            return None
        metadata = CacheMetadata.from_dict(about["metadata"])
        if about["key"] != key:
            return None
        if self._expiry_s is not None and metadata.created_at + self._expiry_s < time.time():
            path.unlink(missing_ok=True)
            return None
        return value, metadata

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Write a value."""
        about = {"key": key, "metadata": (metadata or CacheMetadata()).to_dict()}
        data = encode(value, about, self._compression)
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        write_file(self._path(key), [data], flush=True)
        if self._max_bytes is not None:
            self._make_room(self._max_bytes)

    def contains(self, key: str) -> bool:
        """Tell whether there is a value that could be read."""
        return self.get(key) is not None

    def invalidate(self, key: str | None = None) -> None:
        """Remove a value, or all."""
        for path in self._files() if key is None else [self._path(key)]:
            path.unlink(missing_ok=True)

    def hold(self, key: str) -> Descriptor:
        """Keep other processes from computing a value, until the result is closed; waits for one that does."""
        path = self.cache_dir / ".locks" / stripe_name(stripe_of(key))
        with WaitingFor(f"another process that computes {key!r}"):
            return wait_for_lock(lambda: try_hold(path), path, math.inf)

    def _path(self, key: str) -> Path:
        return self.cache_dir / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.data"

    def _files(self) -> list[Path]:
        return list(self.cache_dir.glob("*.data"))

    def _make_room(self, max_bytes: int) -> None:
        known = []
        for path in self._files():
            with suppress(FileNotFoundError):  # another process made room, too
                known.append((path.stat().st_mtime_ns, path, path.stat().st_size))
        total = sum(size for *_, size in known)
        for _, path, size in sorted(known):
            if total <= max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


class TreeCacheManager:
    """Memory in front of a folder: values that were computed once are found again, by any process.

    Args:
        cache_dir: The folder.
        memory_size: How many values to keep in memory as well.
        disk_expiry: After how many seconds a value is forgotten; None keeps it.
        compression: As for `DiskCache`.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str],
        memory_size: int = 100,
        disk_expiry: float | None = 86400,
        compression: Compression = "none",
    ) -> None:
        self.memory = MemoryCache(memory_size)
        self.disk = DiskCache(cache_dir, compression, disk_expiry)
        self._expiry_s = disk_expiry

    def get(self, key: str) -> Found | None:
        """Give a value and its metadata, or None."""
        found = self.memory.get(key)
        if found is not None and (self._expiry_s is None or found[1].created_at + self._expiry_s >= time.time()):
            return found
        found = self.disk.get(key)
        if found is not None:
            self.memory.put(key, *found)
        return found

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Keep a value in both."""
        metadata = metadata or CacheMetadata()
        self.disk.put(key, value, metadata)
        self.memory.put(key, value, metadata)

    def invalidate(self, key: str | None = None) -> None:
        """Forget a value, or all."""
        self.memory.invalidate(key)
        self.disk.invalidate(key)

    def get_or_compute(
        self,
        key: str,
        compute_fn: Callable[[], Any],
        metadata: CacheMetadata | None = None,
        validate_fn: Callable[[Any, CacheMetadata], bool] | None = None,
    ) -> Any:
        """Give a value; the first process that asks for it computes it, and others wait.

        Args:
            key: Its key.
            compute_fn: Computes it.
            metadata: What is known of it.
            validate_fn: Tells whether a value that was found will do.
        """

        def find() -> Found | None:
            found = self.get(key)
            return found if found is not None and (validate_fn is None or validate_fn(*found)) else None

        found = find()
        if found is None:
            with self.disk.hold(key):
                found = find()
                if found is None:
                    value = compute_fn()
                    self.put(key, value, metadata)
                    return value
        return found[0]

    @staticmethod
    def compute_key(
        config: Any, prefix: str = "", include_content_hash: bool = False, content: bytes | str | None = None
    ) -> str:
        """Make a key of settings and, if asked to, of content."""
        key = prefix + hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]
        if include_content_hash and content is not None:
            data = content.encode() if isinstance(content, str) else content
            key += f"-{hashlib.sha256(data).hexdigest()[:8]}"
        return key
