"""Is it still the same object? What tags and times of a store prove, and what they do not. No IO here."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from penstock.outside_text import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.cachedir.ledger import Record
    from penstock.storage.base import ObjectInfo
    from penstock.wire.item import Item, ItemPart

_SECOND_NS = 10**9
# Of a file whose time is told in whole seconds, a second version may have the same time for as long as this.
_YOUNG_NS = 2 * _SECOND_NS
# Clocks of stores and of this machine may differ by so much.
CLOCKS_DIFFER_NS = 2 * _SECOND_NS
# Tags that web servers make of time and size; those of object stores tell every version from every other.
_TAG_OF_TIME = Bounded(r'(W/)?"?[0-9a-f]{1,16}-[0-9a-f]{1,16}"?|modified .*', 128)


def tag_of(info: ObjectInfo) -> str | None:
    """Return what tells this version of an object from others: its tag, else time and size; None: nothing does."""
    if info.etag is not None:
        return info.etag
    return None if info.modified_ns is None else f"{info.modified_ns:x}-{info.num_bytes:x}"


def is_young(info: ObjectInfo, now_ns: int) -> bool:
    """Return whether an object might be replaced without a change of its time, which is told in whole seconds."""
    modified_ns = info.modified_ns
    return modified_ns is not None and modified_ns % _SECOND_NS == 0 and now_ns - modified_ns < _YOUNG_NS


def was_there_before(info: ObjectInfo, time_ns: int) -> bool:
    """Return whether an object was last written before a time of our clock, which may differ from that of its store."""
    return info.modified_ns is not None and info.modified_ns < time_ns - CLOCKS_DIFFER_NS


def lasting_tag(info: ObjectInfo, now_ns: int) -> str | None:
    """Return what proves, also later, that an object is this one; None: nothing does."""
    tag = tag_of(info)
    if tag is not None and is_young(info, now_ns) and (info.etag is None or _TAG_OF_TIME.fullmatch(tag)):
        return None
    return tag


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


def is_settled_by_index(record: Record, item: Item, source: str) -> bool | None:
    """Return from the index alone whether copies are what an item asks for; None: only the store can say."""
    if record.url != source or record.keys != tuple(part.stored.key for part in item.parts):
        return False
    known = zip(item.parts, record.stored_bytes, record.digests, record.versions, strict=True)
    answers = [_compare(part, num_bytes, digest, version) for part, num_bytes, digest, version in known]
    if False in answers:
        return False
    return None if None in answers else True


def _compare(part: ItemPart, num_bytes: int, known: str | None, version: str | None) -> bool | None:
    wanted = part.stored
    if wanted.num_bytes not in (None, num_bytes):
        return False
    if wanted.span is not None and wanted.span.version is not None:
        return wanted.span.version == version
    if wanted.digest is None or known is None or known.partition(":")[0] != wanted.digest.partition(":")[0]:
        return None
    return known == wanted.digest


def is_settled_by_store(record: Record, found: Iterable[ObjectInfo | None]) -> bool:
    """Return whether the objects that a store has now are those that copies were made from."""
    return all(
        info is not None and num_bytes == info.num_bytes and version is not None and version == tag_of(info)
        for info, num_bytes, version in zip(found, record.stored_bytes, record.versions, strict=True)
    )
