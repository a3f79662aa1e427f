"""The dataset that a writer finds where it writes: it is continued, or replaced once the new one is whole."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import BadIndexError, ConfigError, ObjectNotFoundError, OutputExistsError
from penstock.files import os_errors, sweep
from penstock.index.catalog import parse_index
from penstock.index.model import Index
from penstock.index.paths import INDEX_NAME, resolve_inside
from penstock.publish.sizes import is_shard_file, renumbered
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from penstock.index.model import ShardInfo
    from penstock.publish.target import FilesTarget
    from penstock.storage.base import Store


def find_present(target: FilesTarget, *, exist_ok: bool, append: bool) -> Index:
    """Return the index to continue or, later, to replace; what writers that were killed left is removed."""
    if exist_ok and append:
        raise ConfigError("exist_ok=True replaces a dataset and append=True continues it: choose one of them")
    with os_errors(target.folder):
        index = Index(())
        if append or exist_ok:
            sweep(target.folder)
            index = (_index_to_continue(target) if append else _index_to_replace(target)) or index
            if index.shards or exist_ok:
                remove_others(target, index)
        elif target.is_taken:
            is_local = target.folder.is_dir() and any(target.folder.iterdir())
            place = str(target.folder) if is_local else target.shown
            raise OutputExistsError(
                f"Directory is not empty: {place}. Pass exist_ok=True to replace the dataset in it, or append=True to"
                " continue it",
                path=place,
            )
        target.folder.mkdir(parents=True, exist_ok=True)
        return index


def remove_others(target: FilesTarget, index: Index, replaced: Index | None = None) -> None:
    """Remove shards that an index does not name, and those that it replaces; other files are not ours to touch."""
    kept = set(_files(index))
    for place in target.places:
        names = {info.key for info in place.list("shard.") if is_shard_file(info.key)}
        for name in names.union(_files(replaced or Index(()))) - kept:
            if isinstance(place, LocalStore):
                resolve_inside(place.root, name)
            with suppress(ObjectNotFoundError):  # of a compressed file, only one form is stored
                place.delete(name)


def renumber(target: FilesTarget, index: Index) -> Index:
    """Link the shards of a local folder to second names, numbered from 0 on; return the index that says so."""
    numbered = renumbered(index)
    with suppress(OSError):  # a disk without links, or more shards than there are numbers before these
        for name, new in dict(zip(_files(index), _files(numbered), strict=True)).items():
            with suppress(FileNotFoundError):  # of a compressed file, only one form is stored
                (target.folder / new).hardlink_to(target.folder / name)
        return numbered
    return index


def _index_to_continue(target: FilesTarget) -> Index | None:
    found = [_read_index(place, target) for place in target.places]
    known = [index for index in found if index is not None]
    if known and any(index != known[0] for index in known):
        raise ConfigError(
            f"{target.folder} and {target.shown} hold different datasets: make them equal before you append to both"
        )
    return known[-1] if known else None


def _index_to_replace(target: FilesTarget) -> Index:
    shards: list[ShardInfo] = []
    for place in target.places:
        with suppress(BadIndexError):  # it shall be replaced, so it need not be readable
            found = _read_index(place, target)
            shards += found.shards if found is not None else ()
    return Index(tuple(shards))


def _read_index(place: Store, target: FilesTarget) -> Index | None:
    where = target.folder if isinstance(place, LocalStore) else target.shown
    try:
        return parse_index(place.read(INDEX_NAME), f"{where}/{INDEX_NAME}")
    except ObjectNotFoundError:
        return None


def _files(index: Index) -> list[str]:
    return [file.basename for shard in index.shards for part in shard.parts for file in (part.raw, part.stored)]
