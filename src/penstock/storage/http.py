"""`http(s)://host/path`: any web server, for reading."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError
from penstock.storage.base import StoreFamily, check_key, shown_url, split_url
from penstock.storage.connection import CONNECTION_NAMES, connection_config, resolve_connection
from penstock.storage.object import Cloud, ObjectStore
from penstock.storage.options import take_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import StoreSettings
    from penstock.storage.object_client import ClientTuning

_NAMES = {"headers": "headers", "client_kwargs": "client_kwargs", **CONNECTION_NAMES}


def resolve_http(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather headers, among them those for a name and password in the URL."""
    parts = split_url(url)
    if not parts.hostname:
        raise ConfigError(f"{shown_url(url)!r} lacks a host")
    if parts.query or parts.fragment:
        raise ConfigError(
            f"{shown_url(url)}: a query cannot be part of a root that objects lie below; pass headers= for a token"
        )
    taken = take_options("http", options, _NAMES)
    headers = {**(taken.get("client_kwargs") or {}).get("headers", {}), **(taken.get("headers") or {})}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers.setdefault("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    found = resolve_connection(url, taken, environ)
    return {"headers": headers, **found} if headers else found


def _place(settings: StoreSettings) -> tuple[str, str]:
    parts = urlsplit(settings.url)
    prefix = unquote(parts.path).strip("/")
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
    read_only="web servers are for reading",
    no_list="a web server does not say what it has; name the files, as an index does",
)
family = StoreFamily(
    open=lambda settings, retry, hooks: ObjectStore(cloud, settings, retry, hooks), resolve=resolve_http
)
