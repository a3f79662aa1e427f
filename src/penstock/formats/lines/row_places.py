"""Where some rows of a file of lines begin: learnt while it is read, or told by an index."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from penstock.codecs.stream import FrameStart
from penstock.errors import IndexFieldError
from penstock.formats.content import BEGINNING
from penstock.formats.lines.scan import load_details

if TYPE_CHECKING:
    from penstock.index.files_json import IndexedFile

_APART_BYTES = 1 << 20  # of content, between two places; more in files that are so long that there would be many
_MOST_PLACES = 256


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
        """Return the last place at a row or before it."""
        places = self._places
        at = bisect_right(places, row, key=_row_of)
        return places[at - 1] if at else None


def places_in(file: IndexedFile) -> list[RowPlace]:
    """Return where the shards begin that an index names in a file of lines."""
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


def _row_of(place: RowPlace) -> int:
    return place.row
