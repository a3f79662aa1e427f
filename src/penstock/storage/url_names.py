"""Names of files in URLs: where they are escaped, and how the URL of a file is made of a root and a name below it.

A name below a root is a real one, as its store has it. URLs of web servers, of SFTP servers and of files (`file://`)
escape what would mean something else in them: `%20`, `%23`. Keys of buckets, paths on the Hub and plain paths are
written as they are.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from penstock.storage.base import url_scheme

_WITH_ESCAPES = ("http", "https", "file", "sftp", "ssh")
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
