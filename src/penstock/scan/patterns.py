"""What users may call their data: a folder, a glob, a list, one file. No IO here.

A source is a root, as it was written, and what to look for below it: real names, in which nothing is escaped. A copy of
the data in another place has another root and the same names, so it is the same data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from penstock.codecs.stream import split_compression
from penstock.errors import ConfigError
from penstock.outside_text import IGNORECASE, NAME_CHARACTERS, Bounded
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.hub_location import parse_hub_url
from penstock.storage.url_names import WEB, real_name, split_query, unescaped

_MAGIC = Bounded(r"[*?\[{]", NAME_CHARACTERS)
_WEB_MAGIC = Bounded(r"[*\[{]", NAME_CHARACTERS)  # `?` begins a query there
# What lies beside data, and is none.
_BESIDE = Bounded(
    r"\A(?:(readme|license|licence|changelog|dataset_infos?|dataset_dict|state)(\.[a-z]+)?|.*\.(md|crc|lock))",
    NAME_CHARACTERS,
    IGNORECASE,
)

Given = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Where to look, and what for: names, globs and folders below the root. An empty one is the root itself."""

    root: str
    patterns: tuple[str, ...]


def has_magic(text: str) -> bool:
    """Return whether a name may be a glob."""
    return bool((_WEB_MAGIC if url_scheme(text) in WEB else _MAGIC).search(text))


def is_list(given: Given) -> bool:
    """Return whether several things are named."""
    return isinstance(given, Sequence) and not isinstance(given, str)


def take_queries(given: Given) -> tuple[Given, dict[str, str]]:
    """Return what a user named without the queries of files on the web, and these by the URLs that they belong to.

    Whatever has a query is a file, so it comes back as a list.
    """
    each = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    cut = [split_query(os.fspath(one)) for one in each]
    if not any(query for _, query in cut):
        return given, {}
    queries: dict[str, str] = {}  # by real names
    for url, query in cut:
        if query and has_magic(url):
            raise ConfigError(f"{shown_url(url)}?… cannot be a glob and have a query: pass a list of files")
        if "#" in query:
            raise ConfigError(
                f"{shown_url(url)}?… has a fragment, which no server gets to see: leave out # and the rest"
            )
        if queries.setdefault(unescaped(url), query) != query:
            raise ConfigError(
                f"{shown_url(url)} is named twice, with different queries. Files are told apart by their paths: name"
                " each once"
            )
    return [url for url, _ in cut], {url: query for url, query in cut if query}


def split_suffix(name: str) -> tuple[str, str | None]:
    """Return the last part of a name, in lower case, and how its content is compressed if the name says so."""
    return split_compression(name.rpartition("/")[2].lower())


def find_source(given: Given, suffixes: Sequence[str]) -> NamedFiles:
    """Cut what a user gave into a root and what to look for; `suffixes` tell names of files from those of folders."""
    if is_list(given):
        return _of_list([os.fspath(each) for each in given if each])  # type: ignore[union-attr]
    url = os.fspath(given)  # type: ignore[arg-type]
    if has_magic(url) or is_file_name(url, suffixes):
        root, pattern = _split(url)
        return NamedFiles(root, (pattern,))
    return NamedFiles(url, ("",))


def is_file_name(url: str, suffixes: Sequence[str]) -> bool:
    """Return whether a name is that of a file: it ends as files of some format do."""
    return not url.endswith("/") and split_suffix(url)[0].endswith(tuple(suffixes))


def _split(url: str) -> tuple[str, str]:
    """Cut a URL before its first part that may be a glob, or before its last one."""
    head, parts = _parts(url)
    count = next((number for number, part in enumerate(parts) if has_magic_part(part, url)), len(parts) - 1)
    return _join(head, parts[:count]), real_name(url, "/".join(parts[count:]))


def has_magic_part(part: str, url: str) -> bool:
    """Return whether a part of a URL may be a glob."""
    return bool((_WEB_MAGIC if url_scheme(url) in WEB else _MAGIC).search(part))


def _parts(url: str) -> tuple[str, list[str]]:
    """Cut a URL into what comes before its path (with the bucket or host) and the parts of that."""
    scheme = url_scheme(url)
    if scheme is None:
        head, path = ("/", url[1:]) if url.startswith("/") else ("", url)
    elif scheme == "file":
        head, path = "file:///", url.partition(":")[2].lstrip("/")
    else:
        host, _, path = url.partition("://")[2].partition("/")
        head = f"{url.partition('://')[0]}://{host}/"
        if scheme == "hf":  # what names a repository and its revision cannot be cut
            path = parse_hub_url(url)[3]
            head = url.rstrip("/").removesuffix(path)
    parts = [part for part in path.split("/") if part]
    if not parts:
        raise ConfigError(f"{shown_url(url)!r} does not name a file or folder")
    return head, parts


def _join(head: str, parts: Sequence[str]) -> str:
    joined = head + "/".join(parts)
    return joined.rstrip("/") if joined.strip("/") and not joined.endswith(":///") else joined or "."


def _of_list(urls: Sequence[str]) -> NamedFiles:
    """Find the folder that holds everything in a list; the list keeps its order."""
    if not urls:
        raise ConfigError("the list of files is empty: pass at least one")
    cut = [_parts(url) for url in urls]
    heads = {head for head, _ in cut}
    if len(heads) > 1:
        one, other = sorted(heads)[:2]
        raise ConfigError(
            f"the list names files in several places, such as {shown_url(one)} and {shown_url(other)}: make a stream"
            " for each"
        )
    folders = []
    for url, (_, parts) in zip(urls, cut, strict=True):
        literal = next((n for n, part in enumerate(parts) if has_magic_part(part, url)), len(parts) - 1)
        folders.append(parts[:literal])
    first, last = min(folders), max(folders)
    common = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    (head,) = heads
    patterns = tuple(real_name(url, "/".join(parts[common:])) for url, (_, parts) in zip(urls, cut, strict=True))
    return NamedFiles(_join(head, first[:common]), tuple(dict.fromkeys(patterns)))


# --- Names ----------------------------------------------------------------------------------------------------


def is_hidden(name: str, *, also_underscore: bool) -> bool:
    """Return whether any part of a name says that it is not meant: `.git`, `_SUCCESS`."""
    marks = (".", "_") if also_underscore else (".",)
    return any(part.startswith(marks) for part in name.split("/"))


def is_beside(name: str) -> bool:
    """Return whether a file is one that lies beside data: a README, a licence."""
    return bool(_BESIDE.fullmatch(name.rpartition("/")[2]))


def literal_prefix(pattern: str) -> str:
    """Return what every name that fits a glob begins with."""
    match = _MAGIC.search(pattern)
    return pattern[: match.start()] if match else pattern


@lru_cache(maxsize=256)
def _spelled_out(glob: str) -> list[list[str]]:
    """Cut a glob into what fits one folder or file, and `**` for any folders; braces, `{a,b}`, make several of it."""
    spelled, left = list[list[str]](), [glob]
    while left:
        if len(left) + len(spelled) > 1000 or len(glob) > NAME_CHARACTERS:
            raise ConfigError(f"{glob[:200]!r} is too long, or stands for too many names: pass a list of files")
        one = left.pop()
        end = one.find("}", one.find("{") + 1)
        begin = one.rfind("{", 0, max(end, 0))
        parts = one.split("/")
        glued = next((number for number, part in enumerate(parts) if "**" in part and part != "**"), None)
        if begin >= 0:
            left += [f"{one[:begin]}{choice}{one[end + 1 :]}" for choice in one[begin + 1 : end].split(",")]
        elif glued is not None:  # it stays within a folder, or ends one and begins another
            for new in ("*", "*/**/*"):
                left.append("/".join([*parts[:glued], parts[glued].replace("**", new, 1), *parts[glued + 1 :]]))
        else:
            spelled.append([*(part.replace("[^", "[!") for part in parts), *(["*"] if parts[-1] == "**" else [])])
    return spelled


def _fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Match the parts of a name one by one; only the last `**` before a part can have to take more of them."""
    at, number, again = 0, 0, None
    while number < len(parts):
        if at < len(pattern) and pattern[at] == "**":
            at, again = at + 1, (at + 1, number)
        elif at < len(pattern) and fnmatchcase(parts[number], pattern[at]):
            at, number = at + 1, number + 1
        elif again is not None:
            again = (again[0], again[1] + 1)
            at, number = again
        else:
            return False
    return at == len(pattern)


def fits(pattern: str, name: str) -> bool:
    """Return whether a name fits a glob, in little time for any of them; what begins with a dot must be meant by it."""
    if is_hidden(name, also_underscore=False) and not is_hidden(pattern, also_underscore=False):
        return False
    return len(name) <= NAME_CHARACTERS and any(_fits(each, name.split("/")) for each in _spelled_out(pattern))
