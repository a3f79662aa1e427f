"""Errors of huggingface_hub and of its HTTP library as ours."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.extras import require
from penstock.outside_text import Bounded
from penstock.storage.base import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PASSING = {408, 409, 412, 425, 429}  # 409 and 412: another commit came first
_RESET_S = Bounded(r"\bt=(\d+)", 1024)  # of a RateLimit header: "api";r=0;t=55


def http_library() -> Any:
    """Return the HTTP library that huggingface_hub uses, which depends on its version."""
    errors = require("huggingface_hub.errors", extra="hf", purpose="reading hf:// URLs")
    return import_module(errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


@contextmanager
def translated_errors(what: str) -> Iterator[None]:
    """Turn what may go wrong with `what` into errors of ours.

    Addresses that the Hub redirects to are signed: texts of its errors show them, so ours are not chained to those.
    """
    errors = require("huggingface_hub.errors", extra="hf", purpose=f"reading {what}")
    http = http_library()
    try:
        yield
    except PenstockError:
        raise  # some of ours are errors of the operating system too
    except errors.HfHubHTTPError as error:
        raise _from_answer(errors, error, what) from None
    except errors.OfflineModeIsEnabled as error:
        raise RequestRefusedError(f"{what}: HF_HUB_OFFLINE is set, so no requests are allowed: unset it") from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{what}: {error}") from error
    except http.TimeoutException as error:
        raise StoreTimeoutError(f"{what}: the server sent nothing for too long") from error
    except (http.HTTPError, http.StreamError, OSError) as error:
        raise StoreError(f"{what}: the connection was lost ({type(error).__name__})") from error
    except (ValueError, KeyError) as error:
        raise StoreError(f"{what}: cannot understand the answer of the Hub ({type(error).__name__})") from error
    except RuntimeError as error:  # what huggingface_hub wraps around anything that goes wrong in an upload
        if not isinstance(error.__cause__, Exception):
            raise StoreError(f"{what}: {redacted(str(error))}") from error
        with translated_errors(what):
            raise error.__cause__ from None


def _from_answer(errors: Any, error: Any, what: str) -> StoreError:
    """Return what an answer of the Hub means."""
    response = error.response
    status = response.status_code if response is not None else 0
    said = response.headers.get("X-Error-Message") if response is not None else None
    reason = f"the Hub answered {status}" + (f" ({redacted(said)})" if said else "")
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return AccessDeniedError(
            f"no access to {what}: {reason}. Request access on its page, with the account of this token"
        )
    if isinstance(error, errors.RepositoryNotFoundError) or type(error).__name__ == "BucketNotFoundError":
        return BucketNotFoundError(
            f"{what}: {reason}: there is no such repository, or it is private and your token (HF_TOKEN) has no"
            " access to it"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return BucketNotFoundError(f"{what}: {reason}: the repository has no such revision")
    if status == 401:
        return AccessDeniedError(f"no access to {what}: {reason}. Check your token (HF_TOKEN)")
    if status == 404:
        return ObjectNotFoundError(f"there is no file {what}")
    if 400 <= status < 500 and status not in _PASSING:
        return RequestRefusedError(f"{what}: {reason}", status=status)
    return StoreError(f"{what}: {reason}", status=status, retry_after_s=_wait_s(response.headers))


def _wait_s(headers: Mapping[str, str]) -> float | None:
    """Return how long the Hub wants us to wait."""
    after = headers.get("Retry-After", "")
    if after.isdecimal():
        return float(after)
    left = _RESET_S.search(headers.get("RateLimit", ""))
    return float(left.group(1)) if left and "r=0" in headers.get("RateLimit", "") else None
