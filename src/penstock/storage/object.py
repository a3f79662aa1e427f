"""Object stores of every kind through obstore: reading in pieces of one version, writing in parts."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.errors import AccessDeniedError, ConfigError, RequestRefusedError, StoreError
from penstock.files import open_file
from penstock.storage.base import (
    ObjectInfo,
    RangeSupport,
    StoreFamily,
    check_key,
    check_version,
    open_store,
    shown_url,
    url_scheme,
    whole_seconds,
)
from penstock.storage.object_client import (
    ClientTuning,
    anonymous,
    gates,
    get_client,
    is_range_error,
    name_of,
    translated_errors,
)
from penstock.storage.ranges import PIECE_BYTES
from penstock.storage.retry import Attempts, Gate, RetryHooks, RetryPolicy
from penstock.storage.streams import ReadsPieces
from penstock.storage.url_names import join_url
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.storage.base import Resolve, StoreSettings
    from penstock.storage.many import AskOnce

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_PARALLEL_PARTS = 8
_SILENCES_OF_A_PART = 2.5
_MOST_PARTS = 9000  # S3 allows 10000 in one upload
_LIST_PAGE = 1000

_SMALLEST_CHUNK = 1  # as they come: what waits for more to come with it is lost if its connection breaks
_LARGE_CHUNK = 1 << 17  # of a large range: each chunk costs time in Python, and is seen only when it is there
_LARGE_SPAN = 1 << 20
_UNTAGGED = "modified "  # what we call a version whose store gave it no tag


class Receiver:
    """The bytes of a span, as far as the object goes. `receive` goes on where an earlier call was cut.

    Whatever comes is handed to `keep`, with its place in the span.
    """

    def __init__(
        self, store: ObjectStore, key: str, span: Span, etag: str | None, keep: Callable[[Buffer, int], None]
    ) -> None:
        self._key, self._shown, self._span, self._etag = key, store.shown(key), span, etag
        self._keep_bytes = keep
        self._filled = 0
        self._furthest = 0  # byte of the object that came: without ranges, each request begins at the first
        self._was_cut = False
        self._ranges = store.ranges
        self._has_ranges = store.ranges.are_sent  # of the answer that is being read

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
                self._has_ranges = _miss_ranges(self._ranges, self._shown)
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


def _miss_ranges(ranges: RangeSupport, shown: str) -> bool:
    """Note that a server sends whole objects only."""
    _log.info("%s: the server does not support range requests and sends whole objects", shown)
    ranges.are_sent = False
    return False


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


def _into(data: memoryview) -> Callable[[Buffer, int], None]:
    def keep(chunk: Buffer, begin: int) -> None:
        view = memoryview(chunk)
        data[begin : begin + view.nbytes] = view

    return keep


class Call(Protocol[T_co]):
    """One request, or several, to an obstore client about one path."""

    def __call__(self, client: Any, path: str, attempts: Attempts, /) -> T_co: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """What tells one kind of object store from another."""

    connect: Callable[[StoreSettings, ClientTuning, str], Any]  # an obstore client of a bucket
    # Bucket, and prefix within it.
    place: Callable[[StoreSettings], tuple[str, str]] = lambda settings: bucket_and_prefix(settings.url)
    may_try_anonymous: Callable[[Mapping[str, Any]], bool] = lambda options: not options.get("anonymous")
    # To send no more than asked: a bucket at its provider's own address, or at one trusted with the user's credentials.
    is_trusted: Callable[[Mapping[str, Any]], bool] = lambda options: (
        not (options.get("endpoint") and options.get("anonymous"))
    )


@dataclass(frozen=True)
class ObjectStore(ReadsPieces):
    """The objects below a prefix of a bucket. Settings only: the connection belongs to the process that uses it."""

    cloud: Cloud = field(repr=False, compare=False)
    settings: StoreSettings
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hooks: RetryHooks = field(default_factory=RetryHooks, repr=False, compare=False)
    ranges: RangeSupport = field(default_factory=RangeSupport, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(open_store, self.settings, retry=self.retry), ()

    def connect(self) -> Any:
        """Return the client, which is made now if it was not before."""
        tuning = ClientTuning(stall_s=self.retry.stall_s, is_anonymous=self._name in anonymous)
        return get_client(self._name, tuning, self._connect)

    def read_piece(self, key: str, span: Span, etag: str | None = None) -> tuple[memoryview, ObjectInfo]:
        """Return a range of an object, and what the whole object is; a body that is cut goes on where it ended."""
        data = memoryview(bytearray(len(span)))
        return data, self.copy_piece(key, span, etag, _into(data))

    def copy_piece(self, key: str, span: Span, etag: str | None, keep: Callable[[Buffer, int], None]) -> ObjectInfo:
        """Hand over a range of an object as it comes, each part with its place in the range, and say what it is of."""
        check_key(key)
        if len(span) == 0:
            info = self.stat(key)
            check_version(self.shown(key), info, etag)
        else:
            _, info = self._receive(key, span, etag, keep)
        if span.end > info.num_bytes:
            raise RequestRefusedError(f"{self.shown(key)} ends at byte {info.num_bytes}, before {span.end}", key=key)
        return info

    def read_first(self, key: str, limit: int) -> tuple[memoryview, ObjectInfo]:
        """Return the first bytes of an object, all of them if it has no more than `limit`, and what it is."""
        check_key(key)
        data = memoryview(bytearray(limit))
        try:
            num_bytes, info = self._receive(key, Span(0, limit), None, _into(data))
            return data[:num_bytes], info
        except RequestRefusedError as error:
            if not is_range_error(error):
                raise
            info = self.stat(key)  # an empty object has no first byte to ask for
            if info.num_bytes:
                raise
            return memoryview(b""), info

    def read_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        """Return several small ranges of an object by one call, without saying of which version they are.

        If `reads_together`, all are asked for at the same time, up to ten, and one thread waits for them.
        """
        check_key(key)
        found = None
        if self.ranges.are_sent and self.reads_together:
            found = self._drive(key, partial(self._receive_ranges, spans))
        return [self.read_piece(key, span)[0] for span in spans] if found is None else found

    @property
    def reads_together(self) -> bool:
        """Whether several ranges may come by one call: that looks at an answer only when all of it is in memory.

        So the server must be trusted to send no more than was asked for. Others are read one range at a time,
        and hung up on at the first byte too many.
        """
        return self.cloud.is_trusted(self.settings.options)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[AskOnce]:
        """Yield what asks once for a small range of an object; see `many.AsksAsynchronously`."""
        yield self._ask_once

    def _receive_ranges(self, spans: Sequence[Span], client: Any, path: str, attempts: Attempts) -> list[Buffer] | None:
        """Ask for several ranges at once; None: the server sends whole objects only."""
        import obstore
        from obstore.exceptions import NotSupportedError

        begins, ends = [span.begin for span in spans], [span.end for span in spans]
        try:
            found: list[Buffer] = list(obstore.get_ranges(client, path, starts=begins, ends=ends, coalesce=0))
        except NotSupportedError:
            _miss_ranges(self.ranges, path)
            return None
        for data, span in zip(found, spans, strict=True):
            num_bytes = memoryview(data).nbytes
            if num_bytes != len(span):
                raise RequestRefusedError(f"{path}: {num_bytes} bytes came for the {len(span)} from {span.begin} on")
        attempts.progressed(sum(map(len, spans)))
        return found

    async def _ask_once(self, key: str, span: Span) -> tuple[Buffer, ObjectInfo]:
        shown = self.shown(check_key(key))
        if len(span) and not self.ranges.are_sent:
            raise RequestRefusedError(f"{shown}: the server sends whole objects only")
        with self._asking(shown):
            data, info = await self._receive_once(self.connect(), key, span)
        self.hooks.on_bytes(len(span))
        return data, info

    async def _receive_once(self, client: Any, key: str, span: Span) -> tuple[Buffer, ObjectInfo]:
        """Ask once for a small range of an object, without a thread that waits for it: all of it comes, or an error."""
        import obstore
        from obstore.exceptions import NotSupportedError

        path, shown = self._path(key), self.shown(key)
        if not len(span):
            return b"", describe(key, await obstore.head_async(client, path))
        try:
            result = await obstore.get_async(client, path, options=_options(span.begin, span.end, None))
        except NotSupportedError:
            _miss_ranges(self.ranges, shown)
            raise
        if tuple(result.range) != (span.begin, span.end):
            raise StoreError(f"{shown}: the server sent bytes {result.range}, not {span.begin} to {span.end}")
        # The first chunk has them all. What comes after it is not listened to.
        async for chunk in result.stream(len(span)):
            if memoryview(chunk).nbytes == len(span):
                return chunk, describe(key, result.meta)
            break
        raise StoreError(f"{shown}: the server did not send the {len(span)} bytes that it announced")

    def stat(self, key: str) -> ObjectInfo:
        """Describe an object."""
        import obstore

        check_key(key)
        return describe(key, self._drive(key, lambda client, path, _: obstore.head(client, path)))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys begin with a prefix, sorted by key."""
        return iter(sorted(self._list(prefix), key=lambda info: info.key))

    def upload(self, path: Path, key: str) -> None:
        """Put a local file under a key, in parallel parts if it is large."""
        import obstore

        check_key(key)
        with open_file(path) as file:
            num_bytes = file.seek(0, 2)
        part_bytes = max(PIECE_BYTES, -(-num_bytes // _MOST_PARTS))
        # It is not known how much of a body has been sent until the answer comes: sending counts as silence.
        policy = replace(self.retry, stall_s=max(self.retry.stall_s, self.retry.patience_s))
        retries_for_s = 0.0
        if num_bytes > part_bytes and policy.attempts > 1:
            # Only the client knows its parts, so it tries each again; we try the whole once more. Its time has room for
            # more than one silence: a single request that hangs is not the end of all the parts that were sent.
            policy = replace(policy, attempts=2)
            retries_for_s = _SILENCES_OF_A_PART * policy.stall_s

        def put(client: Any, name: str, _: Attempts) -> None:
            obstore.put(
                client,
                name,
                path,
                use_multipart=num_bytes > part_bytes,
                chunk_size=part_bytes,
                max_concurrency=_PARALLEL_PARTS,
            )

        self._drive(key, put, policy, retries_for_s=retries_for_s, writes=True)

    def delete(self, key: str) -> None:
        """Remove an object."""
        import obstore

        self.stat(key)  # most object stores do not mind deleting what is not there
        self._drive(key, lambda client, path, _: obstore.delete(client, path), writes=True)

    def check_writable(self) -> None:
        """Raise if the bucket is missing or does not know us; being allowed to write but not to list is fine."""
        try:
            next(self._list("", writes=True), None)
        except AccessDeniedError as error:
            if error.facts.get("code") not in ("AccessDenied", "AuthorizationPermissionMismatch"):
                raise

    def _receive(
        self, key: str, span: Span, etag: str | None, keep: Callable[[Buffer, int], None]
    ) -> tuple[int, ObjectInfo]:
        return self._drive(key, Receiver(self, key, span, etag, keep).receive)

    def _list(self, prefix: str, *, writes: bool = False) -> Iterator[ObjectInfo]:
        """List in the store's own order, page by page; a list that is cut goes on after its last key."""
        import obstore

        root = self._place[1]
        folder = "/".join(part for part in (root, prefix.rpartition("/")[0]) if part)
        after: str | None = None
        pages: Any = None  # which knows whether there is one more: to ask the store for it takes a while

        def page(client: Any, _path: str, _attempts: Attempts) -> Any:
            nonlocal pages
            going, pages = pages, None
            going = going or obstore.list(client, folder or None, offset=after, chunk_size=_LIST_PAGE)
            found: Any = next(going, [])
            pages = going  # nothing was cut
            return found

        while found := self._drive(prefix, page, writes=writes):
            after = found[-1]["path"]
            for meta in found:
                info = describe(meta["path"].removeprefix(root).removeprefix("/"), meta)
                if info.key.startswith(prefix):
                    yield info

    def _drive(
        self,
        key: str,
        call: Call[T],
        policy: RetryPolicy | None = None,
        *,
        retries_for_s: float = 0.0,
        writes: bool = False,
    ) -> T:
        """Ask the store for something until it answers, as far as the policy allows.

        Who is refused with credentials may still be let in without: public buckets are like that.
        """
        shown = self.shown(key)
        policy = policy or self.retry
        attempts = Attempts(policy, self.hooks, shown)
        refusal: AccessDeniedError | None = None
        if policy.attempts == 1 and (left_s := self._gate.left_s(self.hooks)) > 0:
            self.hooks.sleep(left_s)  # for a failure would be the only try
        while True:
            is_anonymous = not writes and (refusal is not None or self._name in anonymous)
            tuning = ClientTuning(
                stall_s=policy.stall_s, retries_for_s=retries_for_s, is_anonymous=is_anonymous, writes=writes
            )
            try:
                with self._asking(shown):
                    result = call(get_client(self._name, tuning, self._connect), self._path(key), attempts)
            except AccessDeniedError as error:
                if is_anonymous or writes or not self.cloud.may_try_anonymous(self.settings.options):
                    raise refusal or self._explained(error) from error
                refusal = error
            except StoreError as error:
                attempts.failed(error)
            else:
                if refusal is not None:
                    anonymous.add(self._name)
                return result

    @contextmanager
    def _asking(self, shown: str) -> Iterator[None]:
        """Translate errors; leave a store alone that has too much to do, for its client hides for how long it asks."""
        began_at = self.hooks.now()
        if (left_s := self._gate.left_s(self.hooks)) > 0:
            raise StoreError(f"{shown}: the server answered 429 or 503 a moment ago", retry_after_s=left_s)
        try:
            with translated_errors(shown, self._place[0]):
                yield
        except StoreError as error:
            if error.facts.get("status") in (429, 503):
                error.facts["retry_after_s"] = self._gate.close(began_at, self.retry, self.hooks)
            raise

    def _explained(self, error: AccessDeniedError) -> AccessDeniedError:
        """Explain that no process gave credentials, which is the likely reason of a refusal."""
        if not self.settings.options.get("anonymous"):
            return error
        return AccessDeniedError(
            f"{error.message}. No credentials were found, so the request was not signed: pass storage_options=, or"
            " set the environment variables of this store",
            **error.facts,
        )

    def shown(self, key: str) -> str:
        """Return the URL of an object as it may be shown."""
        return join_url(self._shown_root, key)

    # What every request needs, and no request changes.

    @cached_property
    def _place(self) -> tuple[str, str]:
        return self.cloud.place(self.settings)

    @cached_property
    def _gate(self) -> Gate:
        return gates[url_scheme(self.settings.url), self._place[0], self.settings.options.get("endpoint")]

    @cached_property
    def _name(self) -> str:
        return name_of(self.settings)

    @cached_property
    def _shown_root(self) -> str:
        return shown_url(self.settings.url)

    def _path(self, key: str) -> str:
        root = self._place[1]
        return f"{root}/{key}" if root else key

    def _connect(self, tuning: ClientTuning) -> Any:
        return self.cloud.connect(self.settings, tuning, self._place[0])


def object_family(cloud: Cloud, resolve: Resolve) -> StoreFamily:
    """Return what the URL schemes of a cloud stand for."""
    return StoreFamily(open=lambda settings, retry, hooks: ObjectStore(cloud, settings, retry, hooks), resolve=resolve)


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Split `scheme://bucket/some/prefix/`."""
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not bucket:
        raise ConfigError(f"{shown_url(url)!r} has no bucket: write {url.partition(':')[0]}://bucket/path")
    if ":" in bucket.partition("@")[0]:
        raise ConfigError(f"{shown_url(url)} must not contain credentials: pass them as storage_options")
    prefix = prefix.strip("/")
    return bucket, check_key(prefix) if prefix else ""
