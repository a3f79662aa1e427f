"""From what lies under a dataset's URL to its index: one object, which says itself how it is to be read.

That object is JSON. Its field `catalog` names who understands it; without one it is MosaicML Streaming's. A catalog of
an outside package can so describe any data as shards: the fetcher, the cache and the readers need not know of it.
"""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import BadIndexError, CorruptIndexError
from penstock.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.index.model import Index

MAX_INDEX_BYTES = 1 << 30  # some millions of shards


class Catalog(Protocol):
    """Understands one kind of index."""

    def parse(self, document: dict[str, Any], where: str) -> Index:
        """Make the index of a JSON object, or raise `BadIndexError`; `where` names it in errors."""


catalogs: Registry[Callable[[], Catalog]] = Registry(
    "catalog",
    group="penstock.catalogs",
    builtin={
        "mosaic": "penstock.index.mosaic_json:MosaicCatalog",
        "files": "penstock.index.files_json:FilesCatalog",
    },
)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking over a growing index again and again, which doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_index(data: bytes, where: str) -> Index:
    """Read the index of a dataset, checking all that later code relies on; `where` names it in errors."""
    with _collector_paused():
        document = _load_json(data, where)
        del data  # of a million shards it takes as much memory as what is made of it
        return _parse(document, where)


def _load_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptIndexError(
            f"Index file at {where} is empty or corrupted: {error}. Download or write it again", where=where
        ) from error
    if not isinstance(document, dict):
        raise BadIndexError(f"Index file at {where} is empty or corrupted: it is not an object with a version")
    return document


def _parse(document: dict[str, Any], where: str) -> Index:
    name = document.get("catalog", "mosaic")
    if not isinstance(name, str) or name not in catalogs:
        raise BadIndexError(
            f"Index file at {where} names the unknown catalog {name!r}, and penstock knows only"
            f" {', '.join(catalogs.names())}. Install or import the package that registers it"
        )
    return catalogs.get(name)().parse(document, where)


def parse_index_file(path: Path, where: str) -> Index:
    """Read the same from a file of this machine."""
    return parse_index(path.read_bytes(), where)
