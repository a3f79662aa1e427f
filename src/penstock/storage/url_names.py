"""Names of files in URLs: where they are escaped, how the URL of a file is made of a root and a name, and queries.

A name below a root is a real one, as its store has it. URLs of web servers, of SFTP servers and of files (`file://`)
escape what would mean something else in them: `%20`, `%23`. Keys of buckets, paths on the Hub and plain paths are
written as they are.

A file on the web is named by its URL without the query, such as a signature: names go into caches, states and messages,
and a query may be a secret, or be another one tomorrow. It travels with the options of its store, and every request for
the file carries it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from penstock.storage.base import url_scheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import StoreSettings

_WITH_ESCAPES = ("http", "https", "file", "sftp", "ssh")
WEB = ("http", "https")
QUERIES = "queries"  # the option of a store: real path on the host → what is asked for, path and query as written
_KEPT_IN_PATH = "/%:@!$&'()*+,;=~"  # as they stand: others may have signed them so
_KEPT_IN_QUERY = _KEPT_IN_PATH + "?[]"
_KEPT = "/:@!$&'()+,;="  # what means nothing else in a path, neither to servers nor in a glob


def has_escapes(url: str) -> bool:
    """Return whether names are escaped in such a URL."""
    return url_scheme(url) in _WITH_ESCAPES


def unescaped(path: str) -> str:
    """Return the real name of an escaped one. Parts that cannot be escaped text stay: `100%`, `per%cent`."""
    return "/".join(map(_unescaped_part, path.split("/"))) if "%" in path else path


def _unescaped_part(part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        return part


def escaped(name: str) -> str:
    """Return a real name as it stands in a URL."""
    return quote(name, safe=_KEPT, errors="surrogateescape")  # a message may be about a name that is no text


def real_name(url: str, part: str) -> str:
    """Return the real name that a part of a URL or of a plain path stands for."""
    return unescaped(part) if has_escapes(url) else part


def join_url(root: str, name: str) -> str:
    """Return the URL, or the plain path, of what has a real name below a root."""
    folder = root if root.endswith(":///") else f"{root.rstrip('/')}/"
    return folder + (escaped(name) if has_escapes(root) else name)


def split_query(url: str) -> tuple[str, str]:
    """Cut a URL into the name of a file and its query, which only web servers have."""
    name, _, query = url.partition("?") if url_scheme(url) in WEB else (url, "", "")
    return name, query


def with_queries(settings: StoreSettings, queries: Mapping[str, str]) -> StoreSettings:
    """Return a store with the queries of its files, out of those of URLs; those for other servers are not for it."""
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
