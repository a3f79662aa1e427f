"""`http(s)://host/path`: any web server, for reading.

The client of object stores asks, but where there are headers of the user's own: they go to the host that they were
given for, and to no other. That client follows redirects by itself, takes off `Authorization` and `Cookie` on the way
to another host, and leaves `X-Api-Key` and all others on. It cannot be told not to. So where there are such headers, a
small client of our own asks, and follows redirects with open eyes. It also reads files with queries of their own, which
the other would take for parts of names.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.outside_text import Bounded
from penstock.storage.base import (
    ObjectInfo,
    RangeSupport,
    StoreFamily,
    StoreSettings,
    check_key,
    redacted,
    shown_url,
    split_url,
    whole_seconds,
)
from penstock.storage.object import Cloud, ObjectStore, untagged_version
from penstock.storage.object_client import certificate_error
from penstock.storage.options import CONNECTION_NAMES, option_names, read_certificates, resolve_connection, take_options
from penstock.storage.pool import ConnectionPool
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.streams import ReadsBodies, ResponseBody, cut_chunks
from penstock.storage.url_names import QUERIES, join_url, real_path, unescaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.storage.base import Store, StoreSettings
    from penstock.storage.object_client import ClientTuning
    from penstock.types import Span

_TAKEN_OFF = {"authorization", "cookie"}  # by the other client, on the way to another host
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 10
_PASSING = (408, 425, 429)
_MAX_CONNECTIONS = 32
_CHUNK_BYTES = 1 << 18
_LONGEST_ANSWER = 1 << 16  # of bodies that are thrown away; behind a longer one, the connection is not used again
_RANGE = Bounded(r"bytes (\d+)-\d+/(\d+)", 64)

Origin = tuple[str, str, int]  # scheme, host, port


def origin_of(url: str) -> Origin:
    """Return what must be equal for two URLs to be of one server."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname or "", parts.port or (443 if scheme == "https" else 80)


def redirect_target(shown: str, url: str, location: str | None) -> str:
    """Return the address that a redirect names; what is no web server, or leads from TLS to plain text, is refused."""
    try:
        target = urljoin(url, location or "")
        scheme, host, _ = origin_of(target)
    except ValueError:
        scheme, host, target = "", "", ""
    if not location or not host or scheme not in ("http", "https"):
        raise RequestRefusedError(f"{shown}: the server redirects to something that is not a web server")
    if scheme == "http" and url.startswith("https:"):
        raise RequestRefusedError(f"{shown}: the server redirects to {shown_url(target)}, which is not encrypted")
    return target


def _basic_login(parts: SplitResult) -> str | None:
    """Return the header for the name and password of a URL, if it has any."""
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


@dataclass(frozen=True, slots=True)
class Network:
    """How servers are reached: through a proxy, and trusting which certificates."""

    proxy: str | None = field(default=None, repr=False)
    no_proxy: str = ""
    verify: str | bool = True

    def connect(self, origin: Origin, stall_s: float) -> http.client.HTTPConnection:
        """Prepare a connection, which opens with its first request."""
        scheme, host, port = origin
        proxy = urlsplit(self.proxy) if self.proxy and not self._avoids_proxy(host) else None
        near = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
        if scheme == "http":
            return http.client.HTTPConnection(*near, timeout=stall_s)
        connection = http.client.HTTPSConnection(*near, timeout=stall_s, context=self._trust())
        if proxy is not None:
            connection.set_tunnel(host, port, self.proxy_headers())
        return connection

    def target(self, url: str) -> tuple[str, dict[str, str]]:
        """Return what the first line of a request asks for, and the headers that only a proxy sees."""
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        scheme, host, port = origin_of(url)
        if scheme == "http" and self.proxy and not self._avoids_proxy(host):
            name = f"[{host}]" if ":" in host else host
            return f"http://{name}:{port}{path}", self.proxy_headers()
        return path, {}

    def proxy_headers(self) -> dict[str, str]:
        """Return the proxy's own credentials."""
        login = _basic_login(urlsplit(self.proxy or ""))
        return {} if login is None else {"Proxy-Authorization": login}

    def _avoids_proxy(self, host: str) -> bool:
        names = [name.strip().lower().lstrip(".") for name in self.no_proxy.split(",") if name.strip()]
        return any(name == "*" or host == name or host.endswith(f".{name}") for name in names)

    def _trust(self) -> ssl.SSLContext:
        if self.verify is False:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        if isinstance(self.verify, str):
            return ssl.create_default_context(cadata=read_certificates(self.verify).decode("ascii", "ignore"))
        return ssl.create_default_context()


class HttpConnection:
    """One connection to one server, for one request at a time."""

    def __init__(self, origin: Origin, network: Network, stall_s: float) -> None:
        self._http = network.connect(origin, stall_s)
        self._answer: http.client.HTTPResponse | None = None

    def ask(self, method: str, target: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a request and give the answer, whose body is still to be read."""
        try:
            self._answer = self._send(method, target, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if self._answer is None:
                raise
            self._http.close()  # it had been idle for longer than the server likes; the next request opens it anew
            self._answer = self._send(method, target, headers)
        return self._answer

    def _send(self, method: str, target: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self._http.request(method, target, headers=dict(headers))
        return self._http.getresponse()

    def is_open(self) -> bool:
        """Return whether the last answer was read to its end."""
        return self._answer is None or self._answer.isclosed()

    def close(self) -> None:
        """Hang up."""
        self._http.close()


connections: ConnectionPool[HttpConnection] = ConnectionPool(_MAX_CONNECTIONS)


class WebFiles:
    """What is true of every web server: it is for reading, and has no lists."""

    settings: StoreSettings

    def list(self, prefix: str = "") -> NoReturn:
        """Refuse: web servers have no lists."""
        raise RequestRefusedError(
            f"{join_url(shown_url(self.settings.url), prefix)} cannot be listed: a web server does not list its files;"
            " name them, as an index does"
        )

    def check_writable(self) -> NoReturn:
        """Refuse: web servers are for reading."""
        raise ConfigError(f"{shown_url(self.settings.url)} cannot be written to: web servers are read-only")

    def upload(self, path: Path, key: str) -> None:  # noqa: ARG002
        """Refuse: web servers are for reading."""
        self.check_writable()

    def delete(self, key: str) -> None:  # noqa: ARG002
        """Refuse: web servers are for reading."""
        self.check_writable()


class WebStore(WebFiles, ObjectStore):
    """The files below a path of a web server, read by the client of object stores."""


@dataclass(frozen=True)
class HttpHeaderStore(WebFiles, ReadsBodies[None]):
    """The files below a path of a web server that wants to see certain headers."""

    settings: StoreSettings
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hooks: RetryHooks = field(default_factory=RetryHooks, repr=False, compare=False)
    ranges: RangeSupport = field(default_factory=RangeSupport, init=False, repr=False, compare=False)

    @contextmanager
    def _open(self, key: str, span: Span) -> Iterator[ResponseBody]:
        if len(span) == 0:
            with self._session(key):
                yield ResponseBody(self._describe(None, key), iter(()))
            return
        wanted = {"Range": f"bytes={span.begin}-{span.end - 1}"}
        with self._session(key), self._request("GET", key, wanted) as answer:
            if answer.status != 416:
                self._check(key, answer)
                info, begin = _describe(key, answer)
                self.ranges.are_sent = self.ranges.are_sent and answer.status == 206
                if begin != (span.begin if answer.status == 206 else 0):
                    raise StoreError(
                        f"{self._shown(key)}: the server sent bytes from {begin} on, not from {span.begin}"
                    )
                yield ResponseBody(info, _chunks(answer, span.begin - begin, len(span)))
                return
            answer.read(_LONGEST_ANSWER)
        with self._session(key):
            yield ResponseBody(self._describe(None, key), iter(()))  # the file ends before the range begins

    def _describe(self, _session: None, key: str) -> ObjectInfo:
        """Ask what a file is. A signed query is good for reading alone: then its first byte is asked for."""
        is_signed = self._signed_target(key) is not None
        wanted = {"Range": "bytes=0-0"} if is_signed else {}
        with self._request("GET" if is_signed else "HEAD", key, wanted) as answer:
            if is_signed and answer.status == 416:  # it has no first byte
                answer.read(_LONGEST_ANSWER)
                return ObjectInfo(key, 0)
            self._check(key, answer)
            info = _describe(key, answer)[0]
            answer.read(_LONGEST_ANSWER if is_signed else None)
            return info

    @contextmanager
    def _request(self, method: str, key: str, wanted: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Ask, and go where the server sends us; another host does not see the user's headers."""
        url, stall_s = self._url(key), self.retry.stall_s
        for _ in range(_MOST_REDIRECTS):
            origin = origin_of(url)
            target, for_proxy = self._network.target(url)
            own = self.settings.options.get("headers", {}) if origin == origin_of(self._host) else {}
            headers = {"User-Agent": "penstock", **own, **for_proxy, **wanted, "Accept-Encoding": "identity"}
            connect = partial(HttpConnection, origin, self._network, stall_s)
            with connections.lease((origin, self._network, stall_s), connect, timeout_s=self.retry.patience_s) as line:
                answer = line.ask(method, target, headers)
                if answer.status not in _REDIRECTS:
                    yield answer
                    return
                answer.read(_LONGEST_ANSWER)
                url = redirect_target(self._shown(key), url, answer.headers.get("Location"))
        raise RequestRefusedError(f"{self._shown(key)}: the server redirects more than {_MOST_REDIRECTS} times")

    def _check(self, key: str, answer: http.client.HTTPResponse) -> None:
        if answer.status in (200, 206):
            return
        answer.read(_LONGEST_ANSWER)
        raise _refusal(self._shown(key), answer.status, answer.headers.get("Retry-After") or "")

    @contextmanager
    def _session(self, key: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise  # some of ours are errors of the operating system too
        except TimeoutError as error:
            raise StoreTimeoutError(f"{self._shown(key)}: the server sent nothing for too long") from error
        except ssl.SSLCertVerificationError as error:
            raise certificate_error(self._shown(key), str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{self._shown(key)}: {redacted(str(error)) or type(error).__name__}") from error

    def _shown(self, key: str = "") -> str:
        return join_url(shown_url(self.settings.url), key)

    @property
    def has_queries(self) -> bool:
        """Whether files were named with queries of their own."""
        return bool(self.settings.options.get(QUERIES))

    def _signed_target(self, key: str) -> str | None:
        targets: Mapping[str, str] = self.settings.options.get(QUERIES) or {}
        return targets.get(f"{self._path}{key}")

    def _url(self, key: str) -> str:
        signed = self._signed_target(key)
        return self._host + (quote(f"{self._path}{key}") if signed is None else signed)

    @cached_property
    def _host(self) -> str:
        parts = urlsplit(self.settings.url)
        return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2]}/"

    @cached_property
    def _path(self) -> str:
        path = real_path(self.settings.url)
        return f"{path}/" if path else ""

    @cached_property
    def _network(self) -> Network:
        options = self.settings.options
        return Network(options.get("proxy"), options.get("no_proxy") or "", options.get("verify", True))


def _refusal(shown: str, status: int, retry_after: str) -> StoreError:
    """Return what an answer without an object means."""
    reason = f"{shown}: the server answered {status}"
    if status in (404, 410):
        return ObjectNotFoundError(f"there is no object {shown}")
    if status in (401, 403):
        return AccessDeniedError(
            f"no access to {shown}: the server answered {status}. Check your headers and permissions, and"
            " whether the query of the URL has expired if it has one"
        )
    if status < 500 and status not in _PASSING:
        return RequestRefusedError(reason, status=status)
    wait_s = float(retry_after) if retry_after.isdecimal() else None
    return StoreError(reason, status=status, retry_after_s=wait_s)


def _describe(key: str, answer: http.client.HTTPResponse) -> tuple[ObjectInfo, int]:
    """Return what the whole object is, and where in it the body begins."""
    headers = answer.headers
    part = _RANGE.fullmatch(headers.get("Content-Range") or "")
    length = part.group(2) if part else headers.get("Content-Length") or ""
    if not length.isdecimal() or (part is None and answer.status == 206):
        raise RequestRefusedError(f"{key}: the server did not tell the size of the file", key=key)
    try:
        modified = parsedate_to_datetime(headers.get("Last-Modified") or "")
    except (TypeError, ValueError):
        modified = None
    num_bytes = int(length)
    tag = headers.get("ETag") or (untagged_version(modified, num_bytes) if modified else None)
    info = ObjectInfo(key, num_bytes, tag, whole_seconds(modified.timestamp()) if modified else None)
    return info, int(part.group(1)) if part else 0


def _chunks(answer: http.client.HTTPResponse, skip: int, wanted: int) -> Iterator[bytes]:
    """Yield the bytes of a range, also from a server that sends the whole file whatever it is asked for."""
    yield from cut_chunks(iter(lambda: answer.read1(_CHUNK_BYTES), b""), skip, wanted)
    if not answer.length:
        answer.read()  # it has all been read, and now it knows


_HEADER_NAME = Bounded(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", 1024)
_HEADER_VALUE = Bounded("[\\t\\x20-\\x7e\\xa0-\\xff]*", 1 << 16)
_NAMES = option_names("headers", "client_kwargs", *CONNECTION_NAMES)


def resolve_http(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather headers, among them those for a name and password in the URL."""
    parts = split_url(url)
    if not parts.hostname:
        raise ConfigError(f"{shown_url(url)!r} has no host")
    if parts.query or parts.fragment:
        raise ConfigError(
            f"{shown_url(url)}: the URL of a dataset cannot have a query, only those of single files can: to send a"
            " token, pass headers= in storage_options"
        )
    taken = take_options("http", options, _NAMES)
    headers = {**(taken.get("client_kwargs") or {}).get("headers", {}), **(taken.get("headers") or {})}
    _check_headers(headers)
    login = _basic_login(parts)
    if login is not None:
        headers.setdefault("Authorization", login)
    found = resolve_connection(url, taken, environ)
    return {"headers": headers, **found} if headers else found


def _check_headers(headers: Mapping[str, Any]) -> None:
    """Refuse what cannot be sent, without showing it."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ConfigError("http: headers= has a name that is not a valid header name")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"http: the value of the header {name!r} must be one line of Latin-1 text")


def _place(settings: StoreSettings) -> tuple[str, str]:
    parts = urlsplit(settings.url)
    prefix = unescaped(parts.path).strip("/")
    return parts.netloc.rpartition("@")[2], check_key(prefix) if prefix else ""


def connect_http(settings: StoreSettings, tuning: ClientTuning, host: str) -> Any:
    """Make the client of a host: the path goes into the keys, because a root with a slash at its end sends two."""
    from obstore.store import HTTPStore

    root = f"{urlsplit(settings.url).scheme}://{host}"
    return HTTPStore.from_url(root, **tuning.config(root, settings.options, settings.options.get("headers")))


cloud = Cloud(
    place=_place,
    connect=connect_http,
    may_try_anonymous=lambda _: False,
    is_trusted=lambda _: False,  # there are all kinds of web servers
)


def _open(settings: StoreSettings, retry: RetryPolicy, hooks: RetryHooks) -> Store:
    if settings.options.get(QUERIES) or not _TAKEN_OFF.issuperset(map(str.lower, settings.options.get("headers", ()))):
        return HttpHeaderStore(settings, retry, hooks)
    return WebStore(cloud, settings, retry, hooks)


family = StoreFamily(open=_open, resolve=resolve_http)
