"""Repositories of the Hugging Face Hub: `hf://datasets/org/name[@revision]/path`, through huggingface_hub."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    MissingExtraError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.extras import require
from penstock.files import open_file
from penstock.outside_text import Bounded
from penstock.processes import PerProcess
from penstock.storage.base import ObjectInfo, StoreFamily, check_key, redacted
from penstock.storage.hub_location import HubLocation, location_of, resolve_hub
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.streams import ReadsBodies, ResponseBody, cut_chunks, total_bytes

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from penstock.storage.many import AskOnce
    from penstock.types import Span

_PASSING = {408, 409, 412, 425, 429}  # 409 and 412: another commit came first
_RESET_S = Bounded(r"\bt=(\d+)", 1024)  # of a RateLimit header: "api";r=0;t=55
# Which commit a branch was when this process first asked, moved on by what this process itself commits.
_commits: dict[HubLocation, str] = {}
_lock = PerProcess(threading.Lock)  # guards that table
_writing = PerProcess(threading.Lock)  # puts commits in a row: the Hub would refuse the later of two at once


@dataclass(frozen=True, slots=True)
class HubStore(ReadsBodies[None]):
    """The files below a folder of a repository, as they were in one commit, or of a bucket, as they are.

    A branch is looked up once: a process reads one commit however often the branch moves on, except by its own
    uploads. Each upload is a commit of its own, which takes the Hub about a second. Files have no times: git keeps
    none, and their tags are digests.
    """

    location: HubLocation
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hooks: RetryHooks = field(default_factory=RetryHooks, repr=False, compare=False)

    def commit(self) -> str:
        """Return the commit that this process reads; a bucket has none."""
        if self.location.is_commit or self.location.is_bucket:
            return self.location.revision
        with _lock.get():
            if self._branch not in _commits:
                _commits[self._branch] = self._ask("", self._find_commit, "its revision")
            return _commits[self._branch]

    def _prepare(self) -> None:
        self.commit()

    def _describe(self, _session: None, key: str) -> ObjectInfo:
        return self._head(key, self.location.file_url(self.location.path(key), self.commit()))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files whose paths below the folder begin with a prefix, sorted."""
        folder = self.location.path(prefix.rpartition("/")[0]).strip("/")
        found: list[ObjectInfo] = []
        parts = (self.location.repo, "tree", "" if self.location.is_bucket else self.commit(), quote(folder, safe=""))
        url = f"{self.location.endpoint}/api/{self.location.kind}s/{'/'.join(filter(None, parts))}?recursive=true"
        try:
            while url:
                page, url = self._ask("", partial(self._read_page, url), "the list of files")
                found += [info for info in page if info.key.startswith(prefix)]
        except BucketNotFoundError:
            raise
        except ObjectNotFoundError:  # git has no empty folders: a missing one is one without files
            found = []
        return iter(sorted(found, key=lambda info: info.key))

    def upload(self, path: Path, key: str) -> None:
        """Put a file into the repository, as one commit."""
        target = self.location.path(check_key(key))
        open_file(path).close()  # whatever is wrong with it is told before the Hub is asked
        if self.location.is_bucket:
            self._ask(key, lambda _: self._change_bucket(add=[(str(path), target)]))
        else:
            self._ask(key, lambda _: self._commit_file(key, path, target))

    def delete(self, key: str) -> None:
        """Remove a file, as one commit."""
        target = self.location.path(check_key(key))
        self.stat(key)
        if self.location.is_bucket:
            self._ask(key, lambda _: self._change_bucket(delete=[target]))
        else:
            operation = _hub().CommitOperationDelete(path_in_repo=target)
            self._ask(key, lambda _: self._commit(key, [operation], f"Delete {target}"))

    def full_name(self, name: str) -> str:
        """Return the name of a dataset with its organization, whom the Hub knows, where it was given without."""

        return self._ask("", lambda _: str(self._api().dataset_info(name, timeout=self.retry.stall_s).id))

    def make_repo(self, *, private: bool) -> None:
        """Make the repository, if there is none."""
        repo, kind = self.location.repo, self.location.kind
        self._ask(
            "", lambda _: self._api().create_repo(repo, repo_type=kind, private=private, exist_ok=True), "its making"
        )

    def change(self, files: Mapping[str, Path | bytes], deleted: Iterable[str], message: str) -> None:
        """Put and remove any number of files in one commit: readers see all of it or nothing."""
        hub = _hub()

        def commit(_: None) -> None:  # operations keep what was sent, so each attempt makes its own
            puts = [
                hub.CommitOperationAdd(
                    path_in_repo=self.location.path(check_key(key)),
                    path_or_fileobj=given if isinstance(given, bytes) else str(given),
                )
                for key, given in files.items()
            ]
            removes = [hub.CommitOperationDelete(path_in_repo=self.location.path(check_key(key))) for key in deleted]
            self._commit("", [*puts, *removes], message)

        deleted = list(deleted)
        self._ask("", commit, "a commit")

    @property
    def _branch(self) -> HubLocation:
        return replace(self.location, root="", token=None)

    def _shown(self, key: str = "") -> str:
        return f"{self.location}/{key}" if key else str(self.location)

    def _session(self, key: str) -> AbstractContextManager[None]:
        return translated_errors(self._shown(key))

    def _api(self) -> Any:
        _limit_silence(self.retry.stall_s)
        return _hub().HfApi(endpoint=self.location.endpoint, token=self.location.token or False)

    def _find_commit(self, _session: None) -> str:
        location = self.location
        info = self._api().repo_info(
            location.repo, revision=location.revision, repo_type=location.kind, timeout=self.retry.stall_s
        )
        return str(info.sha)

    def _read_page(self, url: str, _session: None) -> tuple[builtins.list[ObjectInfo], str]:
        """Read a page of a list, and where the next one is; the client's own list tries again for 23 s each time."""
        headers = _utils().build_hf_headers(token=self.location.token or False, library_name="penstock")
        answer = _utils().get_session().get(url, headers=headers, timeout=self.retry.stall_s)
        _utils().hf_raise_for_status(answer)
        files = [each for each in answer.json() if each["type"] == "file"]
        found = [(self.location.key(each["path"]), each) for each in files]
        page = [_describe(key, each) for key, each in found if key is not None]
        return page, answer.links.get("next", {}).get("url", "")

    def _head(self, key: str, url: str) -> ObjectInfo:
        """Ask what a file is; the Hub answers that itself, without sending us on to where the bytes are."""
        found = _hub().get_hf_file_metadata(
            url, token=self.location.token or False, timeout=self.retry.stall_s, endpoint=self.location.endpoint
        )
        if found.size is None:
            raise StoreError(f"{self.location}/{key}: the Hub did not tell the size of the file")
        return ObjectInfo(key, found.size, found.etag)

    @contextmanager
    def _open(self, key: str, span: Span) -> Iterator[ResponseBody]:
        url = self.location.file_url(self.location.path(key), self.commit())
        with (
            self._session(key),
            nullcontext()
            if len(span) == 0
            else _utils().get_session().stream("GET", url, **self._options(span)) as response,
        ):
            if response is None or response.status_code == 416:  # the file ends before the range begins
                yield ResponseBody(self._head(key, url), iter(()))
                return
            _utils().hf_raise_for_status(response)
            skip = 0 if response.status_code == 206 else span.begin
            # As they come: gathered to larger ones they would be lost with the connection.
            yield ResponseBody(_describe_answer(key, response), cut_chunks(response.iter_bytes(), skip, len(span)))

    def _options(self, span: Span) -> dict[str, Any]:
        headers = _utils().build_hf_headers(token=self.location.token or False, library_name="penstock")
        headers |= {"Range": f"bytes={span.begin}-{span.end - 1}", "Accept-Encoding": "identity"}
        return {"headers": headers, "timeout": self.retry.stall_s, "follow_redirects": True}

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[AskOnce]:
        """Yield what asks once for a small range of a file; see `many.AsksAsynchronously`."""
        commit = self.commit()
        async with _utils().get_async_session() as session:
            yield partial(self._ask_once, session, commit)

    async def _ask_once(self, session: Any, commit: str, key: str, span: Span) -> tuple[bytes, ObjectInfo]:
        url = self.location.file_url(self.location.path(check_key(key)), commit)
        if not len(span):
            raise StoreError(f"{self.location}/{key}: there is no asynchronous call for what a file is")
        data = bytearray()
        with self._session(key):
            async with session.stream("GET", url, **self._options(span)) as response:
                if response.status_code != 206:  # why is said where it is asked with patience
                    raise StoreError(f"{self.location}/{key}: the Hub answered {response.status_code}")
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > len(span):
                        break
                if len(data) != len(span):
                    raise StoreError(f"{self.location}/{key}: {len(data)} bytes came for {len(span)}")
                self.hooks.on_bytes(len(data))
                return bytes(data), _describe_answer(key, response)

    def _commit_file(self, key: str, path: Path, target: str) -> None:
        """Send the bytes, many files at a time if many threads do so; then make the commit, one at a time."""
        location = self.location
        operation = _hub().CommitOperationAdd(path_in_repo=target, path_or_fileobj=str(path))
        self._api().preupload_lfs_files(
            location.repo, [operation], repo_type=location.kind, revision=location.revision, free_memory=False
        )
        self._commit(key, [operation], f"Upload {target}")

    def _commit(self, key: str, operations: builtins.list[Any], message: str) -> None:
        location = self.location
        if location.is_commit:
            raise RequestRefusedError(f"{location}/{key}: a commit cannot be changed: write to a branch")
        with _writing.get():
            done = self._api().create_commit(
                location.repo, operations, commit_message=message, repo_type=location.kind, revision=location.revision
            )
            with _lock.get():
                _commits[self._branch] = done.oid

    def _change_bucket(self, **changes: Any) -> None:
        api = self._api()
        if not hasattr(api, "batch_bucket_files"):
            raise MissingExtraError(
                "the installed huggingface_hub does not support buckets: run pip install -U huggingface_hub"
            )
        api.batch_bucket_files(self.location.repo, **changes)


family = StoreFamily(
    open=lambda settings, retry, hooks: HubStore(location_of(settings.url, settings.options), retry, hooks),
    resolve=resolve_hub,
)


def _hub() -> Any:
    return require("huggingface_hub", extra="hf", purpose="reading hf:// URLs")


def _utils() -> Any:
    """Return its helpers, which are a module of their own that has to be imported."""
    return require("huggingface_hub.utils", extra="hf", purpose="reading hf:// URLs")


def _limit_silence(patience_s: float) -> None:
    """Set a limit for the session that huggingface_hub shares here, if it has none: it would wait for ever."""
    session = _utils().get_session()
    if session.timeout.read is None:
        session.timeout = http_library().Timeout(patience_s)


def _describe(key: str, file: Mapping[str, Any]) -> ObjectInfo:
    """Describe an entry of a list, with the tag that reading it shows too: of large files their SHA-256, else git's."""
    return ObjectInfo(key, file["size"], (file.get("lfs") or file).get("oid"))


def _describe_answer(key: str, response: Any) -> ObjectInfo:
    """Describe the file of which a range is coming; the tag is the Hub's, not that of where it sent us on to."""
    answers = [*response.history, response]
    linked = next((it.headers["X-Linked-Etag"] for it in answers if "X-Linked-Etag" in it.headers), None)
    etag = linked or response.headers.get("ETag")
    total = total_bytes(response.headers.get("Content-Range"))
    num_bytes = response.headers.get("Content-Length") if total is None else total
    if num_bytes is None:
        raise StoreError(f"{key}: the server did not tell the size of the file")
    return ObjectInfo(key, int(num_bytes), etag.removeprefix("W/").strip('"') if etag else None)


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
