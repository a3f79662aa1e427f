"""What might be found in a cache directory, as plain values: no file is there."""

from __future__ import annotations

from pathlib import Path

from penstock.cache.contents import CachedCopy, FoundEdition
from penstock.cachedir.editions import Edition
from penstock.cachedir.ledger import Record
from penstock.cachedir.presence import FileStamp

FOLDER = Path("/cache")
SOURCE = "s3://b/a"


def make_copy(name: str, num_bytes: int, *, edition: str, used: float = 0) -> CachedCopy:
    record = Record(
        files=(FileStamp(name, num_bytes, 1, 1),),
        url=SOURCE,
        keys=(name,),
        stored_bytes=(num_bytes,),
        versions=(None,),
        digests=(None,),
        edition=edition,
        boot=None,
    )
    return CachedCopy(
        directory=FOLDER,
        record=record,
        num_files=1,
        num_bytes=num_bytes,
        since_s=0,
        last_used_s=used,
        is_pinned=False,
    )


def make_edition(name: str, source: str | None, opened_s: float, *, is_open: bool = False) -> FoundEdition:
    return FoundEdition(edition=Edition(FOLDER, name), source=source, opened_s=opened_s, is_open=is_open)
