"""Where some rows of a file of lines begin: learnt by whoever reads it, or told by an index that lies beside it."""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from penstock.cachedir.versions import tag_of
from penstock.codecs.stream import FrameStart
from penstock.errors import DataError, IndexFieldError, StoreError
from penstock.formats.lines.scan import load_details
from penstock.index.catalog import MAX_INDEX_BYTES
from penstock.index.files_json import STORED_NAME, load_files
from penstock.sources.files.content import BEGINNING

if TYPE_CHECKING:
    from penstock.index.files_loader import IndexedFile
    from penstock.sources.files.found import FoundFile
    from penstock.storage.base import Store

_log = logging.getLogger("penstock.sources")

_APART_BYTES = 1 << 20  # of content, between two places; more in files that are so long that there would be many
_MOST_PLACES = 256
# Of smaller files nobody looks for an index: it would hardly name more than their first row.
_LARGE_BYTES = 4 << 20


class RowPlace(NamedTuple):
    """Where a row begins: its byte in the content, the lines before it, and the frame from which to unpack it."""

    row: int
    byte: int
    line: int
    frame: FrameStart = BEGINNING


class RowPlaces:
    """Places in one version of one file, far apart and not many. Threads may use it: at worst a place is not kept."""

    def __init__(self) -> None:
        self._places: tuple[RowPlace, ...] = ()
        self._apart = _APART_BYTES

    def note(self, place: RowPlace) -> None:
        """Keep a place, if there is none near it."""
        places, apart = self._places, self._apart
        at = bisect_right(places, place.row, key=_row_of)
        if at and place.byte < places[at - 1].byte + apart:
            return
        if at < len(places) and places[at].byte < place.byte + apart:
            return
        places = (*places[:at], place, *places[at:])
        if len(places) > _MOST_PLACES:
            places, self._apart = places[::2], 2 * apart
        self._places = places

    def before(self, row: int) -> RowPlace | None:
        """Give the last place at a row or before it."""
        places = self._places
        at = bisect_right(places, row, key=_row_of)
        return places[at - 1] if at else None


def places_in(file: IndexedFile) -> list[RowPlace]:
    """Give where the shards begin that an index names in a file of lines."""
    places: list[RowPlace] = []
    row = begin = 0
    for shard in file.shards:
        details = load_details(shard.details, file.name)
        if file.layout.compression is None:
            places.append(RowPlace(row, shard.begin + details.skip, details.line - 1))
        else:
            # Frames may lie in two shards, but rows lie in one: these begin where those of the shard before end.
            content = begin - details.skip if places else 0
            places.append(RowPlace(row, content + details.skip, details.line - 1, FrameStart(shard.begin, content)))
            begin = content + shard.raw_bytes - details.leave
        row += shard.num_samples
    are_below = any(place.frame.content < 0 or place.line < 0 for place in places)
    if are_below or any(later.byte < place.byte for place, later in pairwise(places)):
        raise IndexFieldError(f"the index has wrong details for {file.name}: make it again with penstock index")
    return places


class StoredIndexes:
    """The indexes that `penstock index --store` left beside files: each is read once, when it is first asked for."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[Store, dict[str, IndexedFile]]] = {}

    def places_in(self, file: FoundFile, form: str) -> list[RowPlace]:
        """Give the places in a file of a format, if an index knows it in this version."""
        if file.info.num_bytes < _LARGE_BYTES:
            return []
        if id(file.store) not in self._files:
            self._files[id(file.store)] = file.store, _read_index(file.store)
        found = self._files[id(file.store)][1].get(file.info.key)
        version = tag_of(file.info)
        if found is None or version is None or (found.num_bytes, found.version) != (file.info.num_bytes, version):
            return []
        if (found.layout.format, found.layout.compression) != (form, file.compression):
            return []
        try:
            return places_in(found)
        except DataError as error:
            _log.warning("%s is not used: %s", STORED_NAME, error)
            return []

    def __reduce__(self) -> tuple[type[StoredIndexes], tuple[()]]:
        return StoredIndexes, ()  # whoever gets it reads them where it is


def _read_index(store: Store) -> dict[str, IndexedFile]:
    try:
        if store.stat(STORED_NAME).num_bytes > MAX_INDEX_BYTES:
            return {}
        document = json.loads(bytes(store.read(STORED_NAME)))
        return {file.name: file for file in load_files(document, STORED_NAME)} if isinstance(document, dict) else {}
    except StoreError:
        return {}
    except (DataError, ValueError) as error:
        _log.warning("%s is not used: %s", STORED_NAME, error)
        return {}


def _row_of(place: RowPlace) -> int:
    return place.row
