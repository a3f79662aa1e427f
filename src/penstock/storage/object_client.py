"""obstore clients of this process, made on first use and never used after a fork; their errors as ours."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ObjectChangedError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.outside_text import Bounded
from penstock.processes import abandon_in_children
from penstock.storage.base import MESSAGE_CHARACTERS, redacted, safe_cause
from penstock.storage.options import connection_config
from penstock.storage.retry import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.storage.base import StoreSettings

_CONNECT_S = 10.0
_LONGEST_REQUEST_S = 24 * 3600.0  # silence ends a request, not slowness: a body that trickles is one that comes
_PART_RETRIES = 1000  # as many as the time allows

_clients: dict[tuple[str, ClientTuning], Any] = {}
anonymous: set[str] = set()  # stores that answered unsigned requests after they had refused our credentials
gates: defaultdict[tuple[Any, ...], Gate] = defaultdict(Gate)  # of buckets and hosts
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTuning:
    """Times of a client, and what it does by itself: it tries again only where we cannot (parts of an upload)."""

    stall_s: float  # longest silence, from the request to the answer and between two bytes of it
    retries_for_s: float = 0.0
    is_anonymous: bool = False
    writes: bool = False

    def config(
        self, endpoint: str, options: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return what obstore is told of connections to an address, and of trying again."""
        from datetime import timedelta

        pauses = {"init_backoff": timedelta(seconds=1), "max_backoff": timedelta(seconds=15), "base": 2}
        return {
            "client_options": {
                "connect_timeout": _duration(min(_CONNECT_S, self.stall_s)),
                "read_timeout": _duration(self.stall_s),
                "timeout": _duration(_LONGEST_REQUEST_S),
                "user_agent": "penstock",
                "default_headers": dict(headers or {}),
                **connection_config(endpoint, options),
            },
            "retry_config": {
                "max_retries": _PART_RETRIES if self.retries_for_s else 0,
                "retry_timeout": timedelta(seconds=self.retries_for_s),
                "backoff": pauses,
            },
        }


def name_of(settings: StoreSettings) -> str:
    """Name a store with all that it is opened with. The name holds secrets: it stays in this process."""
    return json.dumps([settings.url, settings.options], sort_keys=True)


def get_client(name: str, tuning: ClientTuning, make: Callable[[ClientTuning], Any]) -> Any:
    """Return the client of a store by its name, making it on first use."""
    check_process()
    with _lock:
        client = _clients.get((name, tuning))
        if client is None:
            client = _clients[name, tuning] = make(tuning)
    return client


class _FirstUser:
    """Which process used obstore first, of this one and those that it was forked from."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.is_ancestor = False
        abandon_in_children(self)

    def after_fork_in_child(self) -> None:
        self.is_ancestor = self.pid is not None
        abandon_in_children(self)


_first_user = _FirstUser()


def check_process() -> None:
    """Raise in a process forked from one that has used obstore: any call there would wait for ever."""
    if _first_user.is_ancestor:
        raise RequestRefusedError(
            f"process {os.getpid()} was forked from process {_first_user.pid}, which had already used a network"
            " store, and the connections of that store do not survive a fork. Start processes with spawn or"
            " forkserver, open stores only in the child processes, or read through a dataset, whose fetcher is a"
            " separate process"
        )
    _first_user.pid = os.getpid()


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


_STATUS = Bounded(r"status code: (\d{3})", MESSAGE_CHARACTERS)
_CODE = Bounded(r"<Code>(\w+)</Code>", MESSAGE_CHARACTERS)
_REASON = Bounded(r'message: "([^"]+)"', MESSAGE_CHARACTERS)
_HOST = Bounded(r"Error performing \w+ \w+://([^/\s?]+)", MESSAGE_CHARACTERS)
_CHECK_CREDENTIALS = "Check the credentials and their permissions"
_UNREACHED = ("Connection refused", "Network is unreachable", "No route to host")
_PASSING = {408, 425, 429}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}


def translate_error(error: Exception, what: str, bucket: str) -> StoreError:
    """Return in our terms what an error of obstore about `what` (an object, shown to users) means."""
    text = redacted(str(error))
    found = _first(_STATUS, text)
    status = int(found) if found else None
    code = _first(_CODE, text)
    kind = type(error).__name__
    reason = _reason(text, status, code)
    if code in _NO_BUCKET:
        return BucketNotFoundError(
            f"{what}: the bucket {bucket!r} does not exist there ({code}): create it, or check its name, the"
            " endpoint and the region",
            bucket=bucket,
        )
    if code == "NoSuchUpload":  # it was completed, and the answer that said so was lost
        return StoreError(f"{what}: the store has lost this upload ({code}): start it again")
    if isinstance(error, FileNotFoundError) or kind == "NotFoundError" or status == 404:
        return ObjectNotFoundError(f"there is no object {what}")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        is_clock = code == "RequestTimeTooSkewed"
        advice = "The clocks of this machine and of the store differ: set them" if is_clock else _CHECK_CREDENTIALS
        return AccessDeniedError(f"no access to {what}: {reason}. {advice}", code=code)
    if kind == "PreconditionError" or status == 412:
        return ObjectChangedError(f"{what} was replaced while it was being read: read it again")
    if status is not None and status < 500 and status not in _PASSING:
        return RequestRefusedError(f"{what}: {reason}", status=status)
    if "InvalidCertificate" in text:
        return certificate_error(what, text)
    if "InvalidRangeRequest" in text:
        return RequestRefusedError(f"{what}: {reason}", status=416)
    if kind in ("NotSupportedError", "InvalidPathError", "ValueError") or status == 501:
        return RequestRefusedError(f"{what}: {reason}", status=status)
    if "dns error" in text:
        host = _first(_HOST, text)
        return StoreError(
            f"{what}: cannot resolve the host name{f' {host!r}' if host else ''}: check its spelling, the"
            " endpoint, and the DNS of this machine",
            host=host,
        )
    if "TimedOut" in text or "Timeout" in text:
        return StoreTimeoutError(f"{what}: the server sent nothing for too long", status=status)
    if status is None and any(sign in text for sign in _UNREACHED) and (host := _first(_HOST, text)):
        return StoreError(
            f"{what}: cannot reach {host} ({reason}): check the endpoint, and the network of this machine", host=host
        )
    return StoreError(f"{what}: {reason}", status=status)


def certificate_error(what: str, text: str) -> RequestRefusedError:
    """Return why a certificate was refused, from what the client says, or Python."""
    why = "is not trusted: pass verify= in storage_options, with the file of certificates to trust"
    if "NotValidForName" in text or "name mismatch" in text or "address mismatch" in text:
        why = "is for another host name: check the host in the URL or the endpoint"
    return RequestRefusedError(f"{what}: the certificate of the server {why}")


@contextmanager
def translated_errors(what: str, bucket: str) -> Iterator[None]:
    """Turn errors of obstore into ours."""
    from obstore.exceptions import BaseError

    try:
        yield
    except PenstockError:
        raise  # some of ours are errors of the operating system too
    except (BaseError, OSError, ValueError) as error:
        raise translate_error(error, what, bucket) from safe_cause(error)


def is_range_error(error: StoreError) -> bool:
    """Return whether a store refused a request because of its range: the object is empty, shorter, or has no ranges."""
    return isinstance(error, RequestRefusedError) and (error.facts.get("status") in (416, None))


def _reason(text: str, status: int | None, code: str | None) -> str:
    """Return the telling parts of an error; the rest of its text is a picture of the client's inside."""
    head, _, inside = text.partition("\n\nDebug source:")
    if status is not None:
        return f"the server answered {status}" + (f" ({code})" if code else "")
    message = head.rpartition(" - ")[2].removeprefix("Generic ").strip()
    causes = [cause for cause in dict.fromkeys(_causes(inside)) if cause not in message]
    return ": ".join([message, *causes])


def _causes(inside: str) -> Iterator[str]:
    yield from _REASON.findall(inside)
    for word, meaning in (
        ("IncompleteBody", "the connection ended before the last byte"),
        ("ConnectionReset", "the connection was reset"),
        ("IncompleteMessage", "the connection ended before an answer came"),
    ):
        if word in inside:
            yield meaning


def _first(pattern: Bounded[str], text: str) -> str | None:
    match = pattern.search(text)
    return match.group(1) if match else None
