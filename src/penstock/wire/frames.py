"""Messages between a process and its fetcher: a small JSON header, and bytes if there are any."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.errors import FetcherError, PenstockError
from penstock.wire.encoding import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

PROTOCOL = 5
MAX_HEADER_BYTES = 256 << 20  # a plan over 10⁶ shards
MAX_PAYLOAD_BYTES = 4 << 30
_JOINED_BYTES = 1 << 20
_PREFIX = struct.Struct("!IQ")
PREFIX_BYTES = _PREFIX.size

Header = dict[str, Any]

_encoder = json.JSONEncoder(separators=(",", ":"), default=plain)


def pack_message(header: Header, num_payload: int = 0) -> bytes:
    """Return what goes on the wire before the payload; dataclasses in the header travel as plain values."""
    text = _encoder.encode(header).encode()
    if len(text) > MAX_HEADER_BYTES or num_payload > MAX_PAYLOAD_BYTES:
        raise FetcherError(f"a message of {len(text)} + {num_payload} bytes is too long: ask for less at once")
    return _PREFIX.pack(len(text), num_payload) + text


def few_buffers(payload: Sequence[Buffer]) -> Iterator[bytes | memoryview]:
    """Join small ones: each costs the sender a call of the system, and may wake up the receiver."""
    joined: list[memoryview] = []
    num_bytes = 0
    for data in payload:
        view = memoryview(data).cast("B")
        if joined and num_bytes + len(view) > _JOINED_BYTES:
            yield joined[0] if len(joined) == 1 else b"".join(joined)
            joined, num_bytes = [], 0
        joined.append(view)
        num_bytes += len(view)
    if joined:
        yield joined[0] if len(joined) == 1 else b"".join(joined)


def unpack_prefix(data: bytes | bytearray) -> tuple[int, int]:
    """Return the sizes of header and payload, checked before they are allocated."""
    num_header, num_payload = _PREFIX.unpack_from(data)
    if num_header > MAX_HEADER_BYTES or num_payload > MAX_PAYLOAD_BYTES:
        raise FetcherError("the process at the other end of the fetcher's socket does not speak this protocol")
    return num_header, num_payload


def unpack_header(data: bytes | bytearray) -> Header:
    """Read a header."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:  # a few bytes can be nested deeper than any stack
        raise FetcherError(f"a message that is not JSON came over the fetcher's socket: {error}") from None
    if not isinstance(header, dict):
        raise FetcherError("a message that is not an object came over the fetcher's socket")
    return header


def dump_error(error: BaseException) -> Header:
    """Return an error as plain values: its class, its message with the cause, its facts."""
    if not isinstance(error, PenstockError):
        error = errors.CacheError(f"the fetcher failed: {type(error).__name__}: {error}")
    message = error.message
    cause = error.__cause__
    is_told = isinstance(error, errors.StoreError)  # stores put into words what their clients say
    if cause is not None and not is_told and str(cause) and str(cause) not in message:
        # Some clients tell all they know, over many lines: the first one says it.
        message = f"{message} (cause: {type(cause).__name__}: {str(cause).strip().partition(chr(10))[0][:300]})"
    facts = {name: value for name, value in error.facts.items() if isinstance(value, (str, int, float, type(None)))}
    return {"class": type(error).__name__, "message": message, "facts": facts}


def load_error(value: Header) -> PenstockError:
    """Rebuild an error of our tree."""
    kind = getattr(errors, str(value.get("class")), None)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        kind = errors.CacheError
    return kind(str(value.get("message")), **dict(value.get("facts") or {}))
