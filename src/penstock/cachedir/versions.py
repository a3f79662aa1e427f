"""Is it still the same object? What tags and times of a store prove, and what they do not. No IO here."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from penstock.outside_text import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage.base import ObjectInfo

_SECOND_NS = 10**9
# Of a file whose time is told in whole seconds, a second version may have the same time for as long as this.
_YOUNG_NS = 2 * _SECOND_NS
# Clocks of stores and of this machine may differ by so much.
CLOCKS_DIFFER_NS = 2 * _SECOND_NS
# Tags that web servers make of time and size; those of object stores tell every version from every other.
_TAG_OF_TIME = Bounded(r'(W/)?"?[0-9a-f]{1,16}-[0-9a-f]{1,16}"?|modified .*', 128)


def is_young(info: ObjectInfo, now_ns: int) -> bool:
    """Return whether an object might be replaced without a change of its time, which is told in whole seconds."""
    modified_ns = info.modified_ns
    return modified_ns is not None and modified_ns % _SECOND_NS == 0 and now_ns - modified_ns < _YOUNG_NS


def was_there_before(info: ObjectInfo, time_ns: int) -> bool:
    """Return whether an object was last written before a time of our clock, which may differ from that of its store."""
    return info.modified_ns is not None and info.modified_ns < time_ns - CLOCKS_DIFFER_NS


def lasting_tag(info: ObjectInfo, now_ns: int) -> str | None:
    """Return what proves, also later, that an object is this one; None: nothing does."""
    if is_young(info, now_ns) and (info.etag is None or _TAG_OF_TIME.fullmatch(info.etag)):
        return None
    return info.version


def edition_of(source: str, index_digest: str, info: ObjectInfo | None, salt: str = "") -> str:
    """Name an edition of a dataset: its place, the bytes of its index, and tag and time of that index.

    The bytes alone would not do: data of the same shape, written again, often have the same index to the last byte.
    """
    version = None if info is None else [info.etag, info.modified_ns]
    return hashlib.sha256(json.dumps([source, index_digest, version, salt]).encode()).hexdigest()[:24]


def fingerprint(tags: Iterable[str | None]) -> int:
    """Fold the versions of the objects of a shard into one number, never 0."""
    digest = hashlib.sha256(json.dumps(list(tags)).encode()).digest()
    return int.from_bytes(digest[:8], "big") | 1
