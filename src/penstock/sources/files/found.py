"""The files that a user means: names, globs, folders and lists of them, in any store."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cache.proxied import open_pinned
from penstock.errors import ConfigError
from penstock.formats.content import FileContent
from penstock.order.keys import hash_key
from penstock.outside_text import Bounded
from penstock.scan.detect import known_suffixes
from penstock.scan.listing import Lister
from penstock.scan.objects import ScannedObject
from penstock.scan.patterns import find_source, is_list, split_suffix, take_queries
from penstock.sources.shard_info import FileVersion
from penstock.storage.base import resolve_store, shown_url, url_scheme, without_login
from penstock.storage.local import LocalStore
from penstock.storage.url_names import escaped, has_escapes, join_url, real_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.scan.patterns import Given
    from penstock.storage.base import ObjectInfo, Store
    from penstock.storage.retry import RetryPolicy

_MORE_SUFFIXES = (".json",)
_DIGITS = Bounded(r"[0-9]+|[^0-9]+", 4096)  # and no number that Python refuses


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file: its name as users see it, and where it is."""

    url: str
    store: Store
    info: ObjectInfo
    pinned_url: str | None = field(default=None, repr=False)  # with its commit or login, if it has any
    query: str = field(default="", repr=False)  # of its URL on the web; it may be a secret, and is no part of the name
    origin: ObjectInfo | None = None  # what it is a copy of, whose version counts

    @property
    def address(self) -> str:
        """Where any process reads it: on the Hub, in the commit in which it was found."""
        return self.pinned_url or self.url

    @property
    def version(self) -> FileVersion:
        """Its size and version, which positions in it carry."""
        told = self.origin or self.info
        return FileVersion(shown_url(self.url), told.num_bytes, told.version)

    @property
    def compression(self) -> str | None:
        """How it is compressed, if its name says so."""
        return split_suffix(self.info.key)[1]

    def open(self) -> ScannedObject:
        """Open it as it is stored, and was when it was found; if it has changed since, reading is an error."""
        return ScannedObject(self.store, self.info)

    def content(self) -> FileContent:
        """Return its content, unpacked."""
        return FileContent(self.url, self.open(), self.compression)

    def content_digest(self) -> str:
        """Return a hash of its content, whatever its name and age: of its bytes, or of what a store tells of them."""
        if not isinstance(self.store, LocalStore) and self.info.etag is not None:
            return f"{self.info.num_bytes}-{self.info.etag}"
        hasher = hashlib.sha256()
        for chunk in self.open().chunks():
            hasher.update(chunk)
        return hasher.hexdigest()


@dataclass(frozen=True, slots=True)
class HiddenOptions:
    """Options of a store as a user gave them, which are never shown by accident."""

    values: Mapping[str, Any] | None = field(repr=False)


class FoundFiles(tuple[FoundFile, ...]):
    """Files that were found already: sources take them in place of names."""

    __slots__ = ()


def find_files(
    data_files: Given,
    storage_options: Mapping[str, Any] | None = None,
    wanted: str | None = None,
    retry: RetryPolicy | None = None,
) -> list[FoundFile]:
    """Find files in the order in which they are named, those of a glob or folder sorted, and each as often as named."""
    data_files, queries = take_queries(data_files)
    each = [os.fspath(one) for one in data_files] if is_list(data_files) else [os.fspath(data_files)]  # type: ignore[arg-type,union-attr]
    if not each or not all(each):
        raise ConfigError("data_files= does not name any file: pass a path, a URL, a glob, or a list of these")
    stores: dict[str, tuple[Store, str]] = {}
    found: list[FoundFile] = []
    for given in each:
        if url_scheme(given) in (None, "file"):
            resolve_store(given, storage_options)  # which refuses options, and names what was given
        query = queries.get(given, "")
        source = find_source([given] if query else given, (*known_suffixes(), *_MORE_SUFFIXES))
        if source.root not in stores:
            stores[source.root] = open_pinned(source.root, storage_options, retry=retry, queries=queries)[:2]
        store, root = stores[source.root]
        infos = sorted(Lister(store, source.root).find(source.patterns, wanted), key=lambda info: in_order(info.key))
        for info in (each for each in infos if each.num_bytes):
            url = given if query else _join(source.root, info.key)  # it may be signed as it is written
            address, name = url if root == source.root else _join(root, info.key), without_login(url)
            found.append(FoundFile(name, store, info, None if address == name else address, query))
    if not found:
        raise ConfigError(f"all files of {', '.join(map(shown_url, each))} are empty")
    return found


def in_order(name: str) -> tuple[Any, ...]:
    """Return what names are sorted by: numbers in them count as numbers, so that `part-10` comes after `part-9`."""
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.findall(name)]
    return (parts, name)


def expand_data_files(data_files: Given, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """List the files that names, globs and folders mean, in the order in which they are named.

    Args:
        data_files: A path or URL, a glob (`*` stays within a folder, `**/` goes into folders), a folder, or a list.
        storage_options: Credentials and settings of the store.
    """
    found = find_files(data_files, storage_options)
    named = [file.url if url_scheme(file.url) == "hf" else file.address for file in found]  # in no fixed commit
    return [f"{name}?{file.query}" if file.query else name for name, file in zip(named, found, strict=True)]


def unique_names(files: Sequence[FoundFile]) -> list[str]:
    """Return each file a name of its own: its URL, and a number where it was named several times."""
    counts: dict[str, int] = {}
    names = []
    for file in files:
        counts[file.url] = count = counts.get(file.url, 0) + 1
        names.append(file.url if count == 1 else f"{file.url}#{count}")
    return names


def fingerprint_of(files: Sequence[FoundFile], *settings: object) -> str:
    """Hash what files are, as far as their stores tell, and how they are read."""
    told = [(_real_url(file), file.info.num_bytes, file.info.etag, file.info.modified_ns) for file in files]
    return f"files-{hash_key(repr(told), repr(settings)):016x}"


def _real_url(file: FoundFile) -> str:
    """Return the root of a file and its real name: that does not depend on how names are escaped."""
    name = escaped(file.info.key)
    is_escaped = has_escapes(file.url) and file.url.endswith(name)
    return file.url.removesuffix(name) + file.info.key if is_escaped else file.url


def same_place(name: str) -> str:
    """Return a name in one form, for those who name a file in another way than they named it first."""
    name = without_login(real_name(name, name))
    if url_scheme(name) == "file":
        name = name.partition(":")[2]
        name = f"/{name.lstrip('/')}"
    # Links are not followed: two names of one file are two files, if they were named so.
    return os.path.abspath(name) if url_scheme(name) is None else name  # noqa: PTH100


def _join(root: str, key: str) -> str:
    if root == ".":
        return key
    return join_url(root, key)
