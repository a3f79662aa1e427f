"""What a scan has read of a file goes to the cache: nothing has to be fetched twice."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cachedir.items import item_of_shard
from penstock.cachedir.layout import control_folder
from penstock.errors import PenstockError
from penstock.fetcher.copies import Copy
from penstock.fetcher.transfer import Download, holding
from penstock.files import make_folders
from penstock.index.files_json import shards_of
from penstock.storage.ranges import join_spans
from penstock.types import Span
from penstock.wire.item import Item, ItemPart, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.cachedir.ledger import Record
    from penstock.fetcher.budget import Reservation
    from penstock.fetcher.transfer import Tools, Transfer
    from penstock.index.files_json import IndexedFile
    from penstock.storage.base import ObjectInfo

_log = logging.getLogger("penstock.cache")
_COPY_BYTES = 4 << 20


def keep_scan(tools: Tools, job: Transfer, info: ObjectInfo) -> KeptScan | None:
    """Take room for what a scan reads of a file; None: there is none without evicting anything."""
    item = Item((ItemPart(StoredFile(info.key, info.key, info.num_bytes)),))
    reservation = tools.rooms.reserve_unused(job.directory, item)
    if reservation is None:
        return None
    try:
        return KeptScan(tools, job, reservation, info)
    except OSError as error:
        tools.rooms.claim(reservation, None)
        _log.info("%s is not kept while it is indexed: %s", info.key, error)
        return None


class KeptScan:
    """The bytes of one file, as a scan reads them, until its shards have been published as downloads are.

    They lie at their places in a file without a name, which is gone with this process. They are not waited for, so
    whatever speaks against them, such as a full disk, only ends the keeping.
    """

    def __init__(self, tools: Tools, job: Transfer, reservation: Reservation, info: ObjectInfo) -> None:
        control = control_folder(job.directory)
        make_folders(control, 0o700)
        self.info = info
        self._tools, self._job, self._reservation = tools, job, reservation
        self._file = tempfile.TemporaryFile(dir=control, buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._is_kept = True

    def write(self, data: bytes, begin: int) -> None:
        """Take bytes, from any thread."""
        if not self._is_kept:
            return
        view, at = memoryview(data), begin
        with self._giving_up():
            while len(view):
                written = os.pwrite(self._file.fileno(), view, at)
                view, at = view[written:], at + written
            with self._lock:
                self._spans.append(Span(begin, at))

    def copy(self, span: Span, write: Callable[[bytes, int], None]) -> None:
        """Hand over a span, piece by piece, each with its place in the span."""
        for at in range(0, len(span), _COPY_BYTES):
            num_bytes = min(_COPY_BYTES, len(span) - at)
            data = os.pread(self._file.fileno(), num_bytes, span.begin + at)
            if len(data) != num_bytes:
                raise OSError(f"only {len(data)} of {num_bytes} bytes of {self.info.key} could be read again")
            write(data, at)

    def publish(self, file: IndexedFile) -> None:
        """Publish the shards, the last one first: the room of what is copied is given back at once."""
        whole = join_spans(self._spans)
        for shard in reversed(shards_of(file)):
            item = item_of_shard(shard, 0, "")._replace(number=None)  # of an edition that is not known yet
            span = shard.parts[0].span
            if span is None or not self._is_kept:
                continue
            if any(each.begin <= span.offset and span.offset + span.num_bytes <= each.end for each in whole):
                with self._giving_up():
                    self._publish_shard(item)
                    os.ftruncate(self._file.fileno(), span.offset)

    def _publish_shard(self, item: Item) -> None:
        """Publish a shard. As it is stored it takes the room that the file has; what is unpacked takes more."""
        rooms, room = self._tools.rooms, self._reservation
        if item.compression is None:
            self._reservation = replace(room, num_bytes=room.num_bytes - item.raw_bytes)
            taken: Reservation | None = replace(room, name=item.name, num_bytes=item.raw_bytes)
        else:
            taken = rooms.reserve_unused(self._job.directory, item)
        if taken is None:
            return
        record = None
        try:
            record = self._lay_down(item)
        finally:
            rooms.claim(taken, record)

    def _lay_down(self, item: Item) -> Record | None:
        """Lay a shard into the cache under its name; None: that is taken."""
        tools, job = self._tools, self._job
        with holding(tools, job, item.name):
            if os.path.lexists(job.directory / item.name):
                return None
            return Download(tools, job, item=item, scanned=self).run(Copy(item.name, is_right=False))

    def close(self) -> None:
        """Release what room is left."""
        self._file.close()
        self._tools.rooms.claim(self._reservation, None)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except (OSError, PenstockError) as error:
            self._is_kept = False
            _log.info("%s is no longer kept while it is indexed: %s", self.info.key, error)
