"""Errors of obstore as ours: what happened, to which object, and what to do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

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
from penstock.storage.base import MESSAGE_CHARACTERS, redacted, safe_cause

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS = Bounded(r"status code: (\d{3})", MESSAGE_CHARACTERS)
_CODE = Bounded(r"<Code>(\w+)</Code>", MESSAGE_CHARACTERS)
_REASON = Bounded(r'message: "([^"]+)"', MESSAGE_CHARACTERS)
_HOST = Bounded(r"Error performing \w+ \w+://([^/\s?]+)", MESSAGE_CHARACTERS)
_CHECK_CREDENTIALS = "Check the credentials and their permissions"
_PASSING = {408, 425, 429}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}


def translate_error(error: Exception, what: str, bucket: str) -> StoreError:
    """Return in our terms what an error of obstore about `what` (an object, shown to users) means."""
    text = redacted(str(error))
    status = _status(text)
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


def _status(text: str) -> int | None:
    found = _first(_STATUS, text)
    return int(found) if found else None


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
