"""Digests of files by algorithm name: everything in hashlib of fixed length, and the xxhash family."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from penstock.errors import ConfigError, CorruptShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Buffer

_XXHASH = {"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"}  # functions of the xxhash package
_QUICKEST = ("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32", "sha1", "sha256", "sha224", "md5", "blake2b")
_HASHLIB = {
    name
    for name in hashlib.algorithms_available
    if hasattr(hashlib, name) and not name.startswith("shake")  # SHAKE has no length of its own
}


class Hasher(Protocol):
    """What hashlib and xxhash objects have in common."""

    def update(self, data: Buffer, /) -> None:
        """Take in more bytes."""

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far, as lower-case hex."""


def known_hashes() -> list[str]:
    """List the names of all digests, sorted."""
    return sorted({*_HASHLIB, *_XXHASH})


def check_hashes(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Turn one name or any list of names into sorted names without repeats, all known."""
    if names is None:
        return ()
    chosen = {names} if isinstance(names, str) else set(names)
    for name in chosen:
        if name not in _HASHLIB and name not in _XXHASH:
            raise ConfigError(f"unknown hash {name!r}: use one of {', '.join(known_hashes())}")
    return tuple(sorted(chosen))


def quickest_hash(names: Iterable[str]) -> str | None:
    """Return the one of some digests that takes the least time to compute, or None if none of them is known."""
    known = sorted(name for name in names if name in _HASHLIB or name in _XXHASH)
    return next((name for name in _QUICKEST if name in known), known[0] if known else None)


def new_hasher(name: str) -> Hasher:
    """Start a digest."""
    (name,) = check_hashes(name)
    if name in _XXHASH:
        hasher: Hasher = getattr(import_module("xxhash"), name)()
        return hasher
    return hashlib.new(name, usedforsecurity=False)


def digest(pieces: Sequence[Buffer], names: Iterable[str]) -> dict[str, str]:
    """Digest bytes given in pieces with each algorithm. Lets other threads run meanwhile."""
    digests = {}
    for name in names:
        hasher = new_hasher(name)
        for piece in pieces:
            hasher.update(piece)
        digests[name] = hasher.hexdigest()
    return digests


def check_digest(data: Buffer, expected: Mapping[str, str], name: str, where: str) -> None:
    """Raise unless the bytes have the recorded digest of that name; a digest that was never recorded raises too."""
    if name not in expected:
        raise ConfigError(
            f"{where} has no {name} digest to check: the index has {', '.join(expected) or 'none'}", where=where
        )
    found = digest([data], [name])[name]
    if found != expected[name]:
        raise CorruptShardError(
            f"{where} has the {name} digest {found}, but the index says {expected[name]}: the file is damaged,"
            " so download or write it again",
            where=where,
        )
