"""Receiving one range of one version of an object, over as many requests as it takes; or several ranges at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock.errors import RequestRefusedError, StoreError
from penstock.storage.base import ObjectInfo, check_version, whole_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from typing_extensions import Buffer

    from penstock.storage.ranges import RangeSupport
    from penstock.storage.retry import Attempts
    from penstock.types import Span

_log = logging.getLogger(__name__)

_SMALLEST_CHUNK = 1  # as they come: what waits for more to come with it is lost if its connection breaks
_LARGE_CHUNK = 1 << 17  # of a large range: each chunk costs time in Python, and is seen only when it is there
_LARGE_SPAN = 1 << 20
_UNTAGGED = "modified "  # what we call a version whose store gave it no tag


class Receiver:
    """The bytes of a span, as far as the object goes. `receive` goes on where an earlier call was cut.

    Whatever comes is handed to `keep`, with its place in the span.
    """

    def __init__(
        self,
        key: str,
        shown: str,
        span: Span,
        etag: str | None,
        keep: Callable[[Buffer, int], None],
        ranges: RangeSupport,
    ) -> None:
        self._key = key
        self._shown = shown
        self._span = span
        self._etag = etag
        self._keep_bytes = keep
        self._filled = 0
        self._furthest = 0  # byte of the object that came: without ranges, each request begins at the first
        self._was_cut = False
        self._ranges = ranges
        self._has_ranges = ranges.are_sent  # of the answer that is being read

    def receive(self, client: Any, path: str, attempts: Attempts) -> tuple[int, ObjectInfo]:
        """Ask for what is missing, and count what came; a body that ends early is a `StoreError`."""
        begin = self._span.begin + self._filled
        result, at = self._ask(client, path, begin)
        info = describe(self._key, result.meta)
        check_version(self._shown, info, self._etag)  # also where the server does not look
        self._etag = info.etag
        wanted = max(0, min(self._span.end, info.num_bytes) - self._span.begin)
        if self._has_ranges and at != begin:
            raise StoreError(f"{self._shown}: the server sent bytes from {at} on, not from {begin}")
        is_large = len(self._span) >= _LARGE_SPAN and not self._was_cut
        self._was_cut = True  # unless this is the last time
        for chunk in result.stream(_LARGE_CHUNK if is_large else _SMALLEST_CHUNK):
            self._keep(chunk[max(0, begin - at) :], wanted)
            at += len(chunk)
            attempts.progressed(len(chunk), is_new=at > self._furthest)
            self._furthest = max(at, self._furthest)
            if not self._has_ranges and self._filled >= wanted:
                break
        if self._filled != wanted:
            raise StoreError(f"{self._shown}: only {self._filled} of the {wanted} announced bytes arrived")
        return wanted, info

    def _ask(self, client: Any, path: str, begin: int) -> tuple[Any, int]:
        """Ask for the bytes from `begin` on; a server without ranges sends all, and is asked so from then on."""
        import obstore
        from obstore.exceptions import NotSupportedError

        options = _options(begin, self._span.end, self._etag)
        if self._has_ranges:
            try:
                result = obstore.get(client, path, options=options)
            except NotSupportedError:
                _log.info("%s: the server does not support range requests and sends whole objects", self._shown)
                self._has_ranges = self._ranges.are_sent = False
            else:
                return result, result.range[0]
        del options["range"]
        return obstore.get(client, path, options=options), 0

    def _keep(self, chunk: bytes, wanted: int) -> None:
        if not self._has_ranges:
            chunk = chunk[: wanted - self._filled]  # the rest of the object
        end = self._filled + len(chunk)
        if end > len(self._span):
            raise StoreError(f"{self._shown}: the server sent more bytes than were requested")
        self._keep_bytes(chunk, self._filled)
        self._filled = end


def receive_ranges(
    client: Any, path: str, attempts: Attempts, /, *, shown: str, spans: Sequence[Span], ranges: RangeSupport
) -> list[Buffer] | None:
    """Ask for several ranges at once; None: the server sends whole objects only."""
    import obstore
    from obstore.exceptions import NotSupportedError

    begins, ends = [span.begin for span in spans], [span.end for span in spans]
    try:
        found: list[Buffer] = list(obstore.get_ranges(client, path, starts=begins, ends=ends, coalesce=0))
    except NotSupportedError:
        _log.info("%s: the server does not support range requests and sends whole objects", shown)
        ranges.are_sent = False
        return None
    for data, span in zip(found, spans, strict=True):
        num_bytes = memoryview(data).nbytes
        if num_bytes != len(span):
            raise RequestRefusedError(f"{shown}: {num_bytes} bytes came for the {len(span)} from {span.begin} on")
    attempts.progressed(sum(map(len, spans)))
    return found


async def receive_once(
    client: Any, path: str, key: str, shown: str, span: Span, ranges: RangeSupport
) -> tuple[Buffer, ObjectInfo]:
    """Ask once for a small range of an object, without a thread that waits for it: all of it comes, or an error."""
    import obstore
    from obstore.exceptions import NotSupportedError

    if not len(span):
        return b"", describe(key, await obstore.head_async(client, path))
    try:
        result = await obstore.get_async(client, path, options=_options(span.begin, span.end, None))
    except NotSupportedError:
        ranges.are_sent = False
        raise
    if tuple(result.range) != (span.begin, span.end):
        raise StoreError(f"{shown}: the server sent bytes {result.range}, not {span.begin} to {span.end}")
    # The first chunk has them all. Whoever sends more is not listened to.
    async for chunk in result.stream(len(span)):
        if memoryview(chunk).nbytes == len(span):
            return chunk, describe(key, result.meta)
        break
    raise StoreError(f"{shown}: the server did not send the {len(span)} bytes that it announced")


def describe(key: str, meta: Any) -> ObjectInfo:
    """Return what obstore knows about an object."""
    tag = meta["e_tag"]
    modified_ns = whole_seconds(meta["last_modified"].timestamp())
    if not modified_ns and not tag:  # 1970 is what obstore says if the server is silent
        return ObjectInfo(key, meta["size"])
    if not tag:
        tag = untagged_version(meta["last_modified"], meta["size"])
    elif not tag.startswith(("W/", '"')):
        tag = f'"{tag}"'  # Azure leaves the quotes out of its lists
    return ObjectInfo(key, meta["size"], tag, modified_ns or None)


def untagged_version(modified: datetime, num_bytes: int) -> str:
    """Return a tag for an object whose server gives it none."""
    return f"{_UNTAGGED}{modified.isoformat()}, {num_bytes} bytes"


def _options(begin: int, end: int, etag: str | None) -> Any:
    options: dict[str, Any] = {"range": (begin, end)}
    if etag is not None and not etag.startswith(("W/", _UNTAGGED)):  # weak tags never match
        options["if_match"] = etag
    return options
