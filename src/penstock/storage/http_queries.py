"""Queries of single files on the web, such as the signatures of presigned URLs.

A file is named by its URL without the query: names go into caches, states and messages, and a query may be a secret, or
be another one tomorrow. It travels with the options of its store, and every request for the file carries it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from penstock.storage.base import url_scheme
from penstock.storage.url_names import unescaped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import StoreSettings

WEB = ("http", "https")
QUERIES = "queries"  # the option of a store: real path on the host → what is asked for, path and query as written
_KEPT_IN_PATH = "/%:@!$&'()*+,;=~"  # as they stand: others may have signed them so
_KEPT_IN_QUERY = _KEPT_IN_PATH + "?[]"


def split_query(url: str) -> tuple[str, str]:
    """Cut a URL into the name of a file and its query, which only web servers have."""
    name, _, query = url.partition("?") if url_scheme(url) in WEB else (url, "", "")
    return name, query


def with_queries(settings: StoreSettings, queries: Mapping[str, str]) -> StoreSettings:
    """Return a store the queries of its files, which are told by their URLs; those for other servers are not for it."""
    server = _server(settings.url)
    own = {real_path(url): _target(url, query) for url, query in queries.items() if _server(url) == server}
    return replace(settings, options={**settings.options, QUERIES: own}) if own else settings


def _server(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.rpartition("@")[2].lower()


def real_path(url: str) -> str:
    """Return the path of a URL by its real names, without the slash that it begins with."""
    return "/".join(part for part in unescaped(_path(url)).split("/") if part)


def _path(url: str) -> str:
    return url.partition("://")[2].partition("/")[2]


def _target(url: str, query: str) -> str:
    """Return the path and the query of a request, with nothing changed that may stand there."""
    return f"{quote(_path(url), safe=_KEPT_IN_PATH)}?{quote(query, safe=_KEPT_IN_QUERY)}"
