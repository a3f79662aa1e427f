"""What a cache is keyed by: the fingerprints of files, transforms and tokenizers, as `hash_fn` says."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.sources.base import ShardedSource, TransformedShardedSource
from penstock.sources.composite import LimitedShardedSource
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.sources.tokens.source import TokenizeTransform
from penstock.sources.transforms import ChainedTransform

if TYPE_CHECKING:
    from penstock.pipeline.config import HashFunction
    from penstock.sources.transforms import AnyTransform


def order_fingerprint_by(source: ShardedSource, how: HashFunction) -> str | None:
    """Return the fingerprint of a source, without code, in which files are told apart as `hash_fn` asks for.

    `"combined"` is the one that it has: names, sizes, versions and times of files. `"path"` takes names alone: a cache
    stays right for you whatever happens to the files. `"content"` reads all bytes of local files, and takes what stores
    tell of others, but no names or times: moved and copied files find their cache again.
    """
    if how == "combined":
        return source.order_fingerprint
    if isinstance(source, TransformedShardedSource):
        inner = order_fingerprint_by(source.source, how)
        transform = ChainedTransform(list(source.transforms)).order_fingerprint()
        return None if inner is None or transform is None else f"{inner}-{transform}"
    if isinstance(source, LimitedShardedSource):
        inner = order_fingerprint_by(source.source, how)
        return None if inner is None else f"{inner}-first-{source.max_rows}"
    if isinstance(source, HuggingFaceShardedSource) and source.file_source is not None:
        return order_fingerprint_by(source.file_source, how)
    if how == "path":
        return f"path-{_digest([_kind(source), list(source.shard_names)])}"
    if not isinstance(source, FileShardedSource):
        raise ConfigError(f"hash_fn='content' is for files, and this is a {type(source).__name__}: use 'combined'")
    return f"content-{_digest([_kind(source), [file.content_digest() for file in source.files]])}"


def _kind(source: ShardedSource) -> str:
    """Return how files are read."""
    return f"{type(source).__name__} {source.reading}" if isinstance(source, FileShardedSource) else ""


def describe(source: ShardedSource, fingerprint: str) -> dict[str, Any]:
    """Return the fingerprints of a source one by one: of the data, of all transforms, and of their tokenizers."""
    transforms: list[AnyTransform] = []
    inner = source
    while isinstance(inner, TransformedShardedSource | LimitedShardedSource):
        if isinstance(inner, TransformedShardedSource):
            transforms = [*inner.transforms, *transforms]
        inner = inner.source
    return {
        "fingerprint": fingerprint,
        "source": inner.fingerprint,
        "transforms": ChainedTransform(transforms).order_fingerprint() if transforms else None,
        "code": [each[:2] for each in source.code_digests],
        "tokenizers": [each.tokenizer_hash for each in transforms if isinstance(each, TokenizeTransform)],
    }


def cache_name(fingerprint: str, stored_as: dict[str, Any]) -> str:
    """Name a cache by all that its files depend on."""
    return _digest([fingerprint, stored_as])[:32]


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
