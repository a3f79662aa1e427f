"""Several indexes become one: pure, and the same whatever order they arrive in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import BadIndexError
from penstock.index.model import FileInfo, Index, ObjectSpan, Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.index.model import ShardInfo

T = TypeVar("T", FileInfo, ObjectSpan)


def merge_indexes(by_folder: Mapping[str, Index]) -> Index:
    """Join the indexes of folders below one root, sorted by folder, with names relative to that root.

    A folder may itself hold a merged index of folders below it: a shard that is named twice counts once.
    """
    merged: dict[str, ShardInfo] = {}
    for folder in sorted(by_folder, key=lambda path: path.split("/")):
        for shard in by_folder[folder].shards:
            moved = _below(folder, shard)
            known = merged.setdefault(moved.name, moved)
            if known != moved:
                raise BadIndexError(
                    f"two indexes describe {moved.name} differently, the second in {folder or 'the root'}: remove the"
                    " outdated index",
                    shard=moved.name,
                )
    return Index(tuple(merged.values()))


def _below(folder: str, shard: ShardInfo) -> ShardInfo:
    if not folder:
        return shard

    def move(file: T) -> T:
        return replace(file, basename=f"{folder}/{file.basename}")

    parts = (
        Part(move(part.raw), part.packed and move(part.packed), part.span and move(part.span)) for part in shard.parts
    )
    return replace(shard, parts=tuple(parts))
