"""`http(s)://host/path`: any web server, for reading."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError
from penstock.outside_text import Bounded
from penstock.storage.base import StoreFamily, check_key, shown_url, split_url
from penstock.storage.http_headers import NO_LIST, READ_ONLY, HttpHeaderStore, must_check_redirects
from penstock.storage.object import Cloud, ObjectStore
from penstock.storage.options import CONNECTION_NAMES, connection_config, resolve_connection, take_options
from penstock.storage.url_names import QUERIES, unescaped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import Store, StoreSettings
    from penstock.storage.object_client import ClientTuning
    from penstock.storage.retry import RetryHooks, RetryPolicy

_HEADER_NAME = Bounded(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", 1024)
_HEADER_VALUE = Bounded("[\\t\\x20-\\x7e\\xa0-\\xff]*", 1 << 16)
_NAMES = {"headers": "headers", "client_kwargs": "client_kwargs", **CONNECTION_NAMES}


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
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers.setdefault("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
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


def connect_http(settings: StoreSettings, tuning: ClientTuning) -> Any:
    """Make the client of a host: the path goes into the keys, because a root with a slash at its end sends two."""
    from obstore.store import HTTPStore

    root = f"{urlsplit(settings.url).scheme}://{_place(settings)[0]}"
    config = connection_config(root, settings.options)
    return HTTPStore.from_url(
        root,
        client_options=tuning.client_options(default_headers=settings.options.get("headers", {}), **config),
        retry_config=tuning.retry_config(),
    )


cloud = Cloud(
    place=_place,
    connect=connect_http,
    may_try_anonymous=lambda _: False,
    read_only=READ_ONLY,
    no_list=NO_LIST,
    is_trusted=lambda _: False,  # anybody can have a web server
)


def _open(settings: StoreSettings, retry: RetryPolicy, hooks: RetryHooks) -> Store:
    if settings.options.get(QUERIES) or must_check_redirects(settings.options.get("headers", {})):
        return HttpHeaderStore(settings, retry, hooks)
    return ObjectStore(cloud, settings, retry, hooks)


family = StoreFamily(open=_open, resolve=resolve_http)
