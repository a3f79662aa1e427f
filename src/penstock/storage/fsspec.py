"""Whatever else fsspec knows: any protocol that we have no store for, through the package that the user installed."""

from __future__ import annotations

import json
import posixpath
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    MissingExtraError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.extras import require
from penstock.files import open_file
from penstock.storage.base import (
    ObjectInfo,
    StoreFamily,
    check_key,
    redacted,
    safe_cause,
    shown_url,
    unknown_scheme,
    url_scheme,
    whole_seconds,
)
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.streams import ReadsBodies, ResponseBody, hidden_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.storage.base import StoreSettings
    from penstock.types import Span

# What file systems call the thing that tells two versions of a file apart, the most telling first.
_TIME_FIELDS = ("mtime", "LastModified", "last_modified", "modified", "modify", "updated", "created")
_VERSION_FIELDS = (
    "ETag", "etag", "generation", "version_id", "md5Hash", "md5", "sha256", "checksum", *_TIME_FIELDS,
)  # fmt: skip


class System(NamedTuple):
    """A file system of fsspec, and the path that it has for the root of a store."""

    files: Any
    root: str

    def path(self, key: str) -> str:
        """Return the path of a file."""
        return f"{self.root.rstrip('/')}/{key}" if self.root else key


@dataclass(frozen=True, slots=True)
class FsspecStore(ReadsBodies["System"]):
    """The files below a folder of a file system of fsspec.

    How long it waits, how safely it uploads and what it says of versions is up to that file system.
    """

    url: str = field(repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hooks: RetryHooks = field(default_factory=RetryHooks, repr=False, compare=False)

    def upload(self, path: Path, key: str) -> None:
        """Put a file there, under another name until it is whole if the file system can rename."""
        check_key(key)
        open_file(path).close()  # whatever is wrong with it is told before the file system is asked
        self._ask(key, lambda system: _put(system.files, str(path), system.path(key)))

    def delete(self, key: str) -> None:
        """Remove a file."""
        self.stat(key)
        self._ask(key, lambda system: system.files.rm_file(system.path(key)))

    def _shown(self, key: str = "") -> str:
        return f"{shown_url(self.url).rstrip('/')}/{key}"

    @contextmanager
    def _session(self, key: str) -> Iterator[System]:
        """Lend the file system; fsspec keeps one per thread and process."""
        with _translated(self._shown(key)):
            core = require("fsspec.core", extra="fsspec", purpose=f"opening {self._shown()}")
            files, root = core.url_to_fs(self.url, **self.options)
            files.invalidate_cache()  # a list that it remembers tells of files as they were
            yield System(files, root)

    def _describe(self, session: System, key: str) -> ObjectInfo:
        return describe(key, session.files.info(session.path(key)))

    def _walk(self, session: System, prefix: str) -> Iterator[ObjectInfo]:
        root = session.root
        try:
            found = session.files.find(root, detail=True)
        except FileNotFoundError:
            return  # the root need not exist before the first upload
        keys = {path[len(root.rstrip("/")) + 1 :]: info for path, info in found.items() if path != root}
        for key, info in keys.items():
            if key.startswith(prefix):
                yield replace(describe(key, info), etag=None)  # lists often tell less, or in another form

    @contextmanager
    def _open(self, key: str, span: Span) -> Iterator[ResponseBody]:
        """Read between two looks at what the file is: if they agree, the bytes are of that version."""
        with self._session(key) as system:
            before = self._describe(system, key)
            end = min(span.end, before.num_bytes)
            data = system.files.cat_file(system.path(key), start=span.begin, end=end) if span.begin < end else b""
            system.files.invalidate_cache()
            after = self._describe(system, key)
            if before != after:
                raise StoreError(f"{self._shown(key)} changed while it was being read")
            yield ResponseBody(after, iter((data,) if data else ()))


def _check_known(url: str) -> None:
    """Raise if fsspec is not installed or does not know the protocol of a URL."""
    scheme = url_scheme(url) or ""
    try:
        registry = require("fsspec.registry", extra="fsspec", purpose=f"opening {scheme}:// URLs")
    except MissingExtraError:
        raise unknown_scheme(scheme) from None
    if scheme not in registry.known_implementations and scheme not in registry.registry:
        raise unknown_scheme(scheme)


def _resolve(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    """Take the options as they are: only that file system knows what they mean, and what the environment tells it."""
    _check_known(url)
    try:
        json.dumps(dict(options))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"storage_options for {url_scheme(url)} must be plain values, because they are sent to other processes"
        ) from error
    return dict(options)


def _open_store(settings: StoreSettings, retry: RetryPolicy, hooks: RetryHooks) -> FsspecStore:
    _check_known(settings.url)
    return FsspecStore(settings.url, settings.options, retry, hooks)


family = StoreFamily(open=_open_store, resolve=_resolve)


def describe(key: str, info: Mapping[str, Any]) -> ObjectInfo:
    """Return what a file system told of a file."""
    if info.get("type") == "directory":
        raise ObjectNotFoundError(f"{key} is a folder, not a file", key=key)
    size = info.get("size")
    if size is None:
        raise RequestRefusedError(f"{key}: the file system does not tell the size of the file", key=key)
    version = next((info[name] for name in _VERSION_FIELDS if info.get(name) is not None), None)
    tag = None if version is None else f"{version}-{size:x}"
    return ObjectInfo(key, int(size), tag, _modified_ns(info))


def _modified_ns(info: Mapping[str, Any]) -> int | None:
    """Return the time of the last change; file systems tell it as a number, a date or the text of one."""
    value = next((info[name] for name in _TIME_FIELDS if info.get(name) is not None), None)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None  # a form that we do not know; the tag holds the text as it is
    if isinstance(value, datetime):
        value = value.timestamp()
    return whole_seconds(value) if isinstance(value, int | float) else None


def _put(system: Any, path: str, target: str) -> None:
    folder = posixpath.dirname(target)
    if folder:
        system.makedirs(folder, exist_ok=True)
    if not _renames(system):
        system.put_file(path, target)
        return
    with hidden_part(target, system.rm_file) as part:
        system.put_file(path, part)
        system.mv(part, target)


def _renames(system: Any) -> bool:
    """Return whether it has a way of its own to move a file; fsspec's is to copy all bytes."""
    spec = require("fsspec.spec", extra="fsspec", purpose="uploading")
    return type(system).mv is not spec.AbstractFileSystem.mv


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn whatever a file system raises into errors of ours."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001  each package has errors of its own
        raise _translate(error, what) from safe_cause(error)


def _translate(error: Exception, what: str) -> PenstockError:
    said = redacted(str(error))
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return ObjectNotFoundError(f"there is no file {what}")
    if isinstance(error, PermissionError):
        return AccessDeniedError(f"no access to {what}: {said}")
    if isinstance(error, ImportError):
        return MissingExtraError(f"{what}: fsspec needs another package for this protocol: {said}")
    if isinstance(error, TimeoutError):
        return StoreTimeoutError(f"{what}: {said or 'no answer in time'}")
    kind = RequestRefusedError if isinstance(error, (TypeError, ValueError, NotImplementedError)) else StoreError
    return kind(f"{what}: {said or type(error).__name__}")
