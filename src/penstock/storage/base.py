"""What a store is, and how a URL finds its store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable
from urllib.parse import SplitResult, urlsplit, urlunsplit

from penstock.errors import ConfigError, ObjectChangedError, StoreError, UnknownSchemeError, printable
from penstock.outside_text import Bounded
from penstock.registry import Registry
from penstock.storage.options import own_options
from penstock.storage.retry import RetryHooks, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.types import Span

_BUCKET_BEFORE_AT = ("abfs", "abfss", "az", "azure", "azure-dl", "oci")  # where others have a name and a password
_URL = Bounded(r"\A([A-Za-z][A-Za-z0-9+.-]+):/", 64)
MESSAGE_CHARACTERS = 1 << 13  # of what others say about an error, with all of the answer that they got
# Each begins at a mark that its own characters cannot pass twice, so that no part of a text is looked at again.
_LOGIN_IN_TEXT = Bounded(r"://[^\s/?#\"'<>]*@", MESSAGE_CHARACTERS + 1)
_QUERY_IN_TEXT = Bounded(r"(://[^\s?\"'<>]*)(\?[^\s,)\"'<>]*)?", MESSAGE_CHARACTERS + 1)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object: its key below the store's root, its size and, as far as the store knows them, tag and time."""

    key: str
    num_bytes: int
    etag: str | None = None  # a version tag: other bytes, another tag
    modified_ns: int | None = None  # when it was written, in nanoseconds since 1970; many stores count whole seconds

    @property
    def version(self) -> str | None:
        """What tells this version of an object from others: its tag, else time and size; None: nothing does."""
        if self.etag is not None:
            return self.etag
        return None if self.modified_ns is None else f"{self.modified_ns:x}-{self.num_bytes:x}"


def whole_seconds(seconds: float) -> int:
    """Return a time as `ObjectInfo.modified_ns`, without fractions: many stores tell them in lists and nowhere else."""
    return int(seconds) * 1_000_000_000


class Store(Protocol):
    """Objects under one root. A store is settings only: it pickles, and it may be used in any process."""

    def read(self, key: str, span: Span | None = None) -> bytes:
        """Return an object or a range of it."""

    def download(self, key: str, path: Path, span: Span | None = None) -> None:
        """Bring an object, or a range of it, to a local file, which appears whole or not at all."""

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[Buffer, ObjectInfo]:
        """Return a range of an object, and what the whole object is.

        With `etag`, an object that is no longer that version is an `ObjectChangedError`: pieces of two versions never
        make one file. The span must lie within the object.
        """

    def upload(self, path: Path, key: str) -> None:
        """Put a local file under a key, replacing what is there; readers see the old or the new object."""

    def stat(self, key: str) -> ObjectInfo:
        """Describe an object; a missing one is an `ObjectNotFoundError`."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys begin with a prefix, sorted by key."""

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is an `ObjectNotFoundError`."""


# --- What only some stores do -------------------------------------------------------------------------------


@runtime_checkable
class ReadsFirst(Protocol):
    """A store that tells with the first bytes of an object what it is."""

    def read_first(self, key: str, limit: int) -> tuple[Buffer, ObjectInfo]:
        """Return the first bytes of an object, all of them if it has no more than `limit`, and what it is."""


@runtime_checkable
class CopiesPieces(Protocol):
    """A store that hands bytes over as they come, so that they are in memory once."""

    def copy_piece(self, key: str, span: Span, etag: str | None, keep: Callable[[Buffer, int], None]) -> ObjectInfo:
        """Hand over a range of an object, each part with its place in the range, and say what the object is."""


@dataclass(slots=True)
class RangeSupport:
    """Whether a server sends ranges of its objects; others send whole objects, whatever they are asked for."""

    are_sent: bool = True  # until it is seen that they are not


@runtime_checkable
class LearnsRanges(Protocol):
    """A store whose server may turn out to send whole objects only."""

    ranges: RangeSupport


@runtime_checkable
class ReadsTogether(Protocol):
    """A store that reads several small ranges of an object by one call, where `reads_together` says so."""

    reads_together: bool

    def read_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """Return ranges of an object, without saying of which version they are."""


@runtime_checkable
class HasQueries(Protocol):
    """A store of which files may have been named with queries of their own: a request for any other is refused."""

    has_queries: bool


@runtime_checkable
class HasCommits(Protocol):
    """A store that keeps commits."""

    def commit(self) -> str:
        """Return the commit that is read."""


@runtime_checkable
class ChecksWriting(Protocol):
    """A store that knows before the first upload whether it can succeed."""

    def check_writable(self) -> None:
        """Raise if nothing can be stored here: a missing bucket, unknown keys, a store for reading only."""


# --- From a URL to its store --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """All that it takes to open a store in another process of the same user: plain JSON values.

    `options` may hold secrets: they travel over the fetcher's socket, and are never shown or kept.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        return f"StoreSettings({shown_url(self.url)!r})"


def _as_given(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    if options:
        raise ConfigError(f"{shown_url(url)} takes no storage_options, but got {', '.join(sorted(options))}")
    return {}


Resolve: TypeAlias = "Callable[[str, Mapping[str, Any], Mapping[str, str]], dict[str, Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFamily:
    """What a URL scheme stands for.

    `resolve(url, options, environ)` turns what the user gave, and the environment of this process, into the options of
    a `StoreSettings`; `open(settings, retry, hooks)` makes the store from these alone, in whatever process.
    """

    open: Callable[[StoreSettings, RetryPolicy, RetryHooks], Store]
    resolve: Resolve = _as_given


ANY_OTHER = "fsspec"  # not a scheme itself: what opens the URLs of schemes that have no family of their own

stores: Registry[StoreFamily] = Registry(
    "URL scheme",
    group="penstock.stores",
    builtin={
        "file": "penstock.storage.local:family",
        "memory": "penstock.storage.memory:family",
        "s3": "penstock.storage.s3:family",
        "sftp": "penstock.storage.sftp:family",
        "ssh": "penstock.storage.sftp:family",
        "hf": "penstock.storage.hub:family",
        "dbfs": "penstock.storage.databricks:family",
        "gs": "penstock.storage.gcs:family",
        "gcs": "penstock.storage.gcs:family",
        "az": "penstock.storage.azure:family",
        "azure": "penstock.storage.azure:family",
        "azure-dl": "penstock.storage.azure:family",
        "abfs": "penstock.storage.azure:family",
        "abfss": "penstock.storage.azure:family",
        "oci": "penstock.storage.oci:family",
        "http": "penstock.storage.http:family",
        "https": "penstock.storage.http:family",
        ANY_OTHER: "penstock.storage.fsspec:family",
    },
)


def url_scheme(url: str) -> str | None:
    """Return the scheme of a URL in lower case, or None if it is a plain path."""
    match = _URL.search(url)
    return match.group(1).lower() if match else None


def shown_url(url: str) -> str:
    """Return a URL as it may be shown and kept: without a password, a signed query or control characters."""
    scheme = url_scheme(url)
    if scheme is None:
        return printable(url)
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  it looks whether what stands there is a number
    except ValueError:  # half of a password that holds a slash may stand where the port belongs
        return f"{scheme}://…"
    return printable(without_login(urlunsplit(parts._replace(query="", fragment=""))))


def without_login(url: str) -> str:
    """Return a URL without user name and password; of some stores, the bucket stands before the @."""
    scheme, _, rest = url.partition("://")
    login, at, _ = rest.partition("/")[0].rpartition("@")
    is_login = at and (scheme.lower() not in _BUCKET_BEFORE_AT or ":" in login)
    return f"{scheme}://{rest[len(login) + 1 :]}" if is_login else url


def split_url(url: str) -> SplitResult:
    """Take a URL apart, or raise; the error of the standard library would show what it stumbled over."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  it looks whether what stands there is a number
    except ValueError:
        raise ConfigError(
            f"{shown_url(url)} is not a valid URL: its port is not a number, or its user name or password has"
            " characters such as / and # that must be written as %2F and %23"
        ) from None
    return parts


def redacted(text: str) -> str:
    """Return a message of another library, cut, and without the passwords and signed queries of the URLs in it."""
    is_cut = len(text) > MESSAGE_CHARACTERS
    text = f"{text[:MESSAGE_CHARACTERS]}@" if is_cut else text  # perhaps within a password, which ends at an @
    text = _QUERY_IN_TEXT.sub(lambda it: it[1] + ("?…" if it[2] else ""), _LOGIN_IN_TEXT.sub("://", text))
    return f"{text.removesuffix('@')}…" if is_cut else text


def safe_cause(error: Exception) -> Exception:
    """Return the error to chain one of ours to: the original, unless its text shows secrets of a URL."""
    text = str(error)
    safe = redacted(text)
    return error if safe == text else StoreError(safe)


def resolve_store(
    url: str, options: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
) -> StoreSettings:
    """Gather what the user and the environment of this process say about a store, for the process that opens it.

    `options` are those of fsspec (`key`, `secret`, `token` …), flat or keyed by scheme: `{"s3": {"key": …}}`.
    """
    scheme = url_scheme(url) or "file"
    # To look at all installed packages takes longer than the rest: only if each name may be that of a scheme.
    is_grouped = bool(options) and all(isinstance(each, Mapping) for each in (options or {}).values())
    own = own_options(scheme, options or {}, {*stores.names(of_packages=is_grouped), scheme})
    return StoreSettings(url, _family(url).resolve(url, own, os.environ if environ is None else environ))


def open_store(url: str | StoreSettings, *, retry: RetryPolicy | None = None, hooks: RetryHooks | None = None) -> Store:
    """Find the store of a URL, of a plain path or of settings made elsewhere. Nothing is connected to yet."""
    settings = url if isinstance(url, StoreSettings) else resolve_store(url)
    return _family(settings.url).open(settings, retry or RetryPolicy(), hooks or RetryHooks())


def check_writable(store: Store) -> None:
    """Raise before the first upload if it cannot succeed, as far as the store can tell."""
    if isinstance(store, ChecksWriting):
        store.check_writable()


def _family(url: str) -> StoreFamily:
    scheme = url_scheme(url) or "file"
    return stores.get(scheme if scheme in stores else ANY_OTHER)


def unknown_scheme(scheme: str) -> UnknownSchemeError:
    """Make the error about a scheme that nothing here opens."""
    known = ", ".join(name for name in stores.names() if name != ANY_OTHER)
    return UnknownSchemeError(
        f"Invalid Cloud provider prefix: {scheme}. Use {known}, or a plain path; for other stores, install fsspec"
        " and its package for them",
        scheme=scheme,
    )


def check_version(shown: str, info: ObjectInfo, etag: str | None) -> None:
    """Raise if an object is not the version that was asked for."""
    if etag is not None and info.etag != etag:
        raise ObjectChangedError(f"{shown} was replaced while it was being read: fetch it again", key=info.key)


def check_key(key: str) -> str:
    """Return a key that stays below the root of its store, or raise."""
    if key.startswith("/") or "\\" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ConfigError(f"{key!r} is not a valid key below the root of a store")
    return key
