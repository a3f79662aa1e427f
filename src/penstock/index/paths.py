"""Keeps file names of an index inside its dataset's folder: indexes come from outside."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from penstock.errors import BadIndexError
from penstock.outside_text import IGNORECASE, NAME_CHARACTERS, Bounded

INDEX_NAME = "index.json"
WHAT_IS_READ = f"penstock reads folders with an {INDEX_NAME}, and Parquet, JSON lines, CSV, text, Arrow and tar files"
_PLAIN = Bounded("[^\\\\\0\ud800-\udfff]+", NAME_CHARACTERS)  # no backslash, no NUL, nothing that UTF-8 cannot spell
_FORBIDDEN_PARTS = frozenset({"", ".", ".."})  # an absolute path begins with an empty part
_INDEX = INDEX_NAME.replace(".", "[.]")
_CONTROL = "\0-\x1f\x7f-\x9f"
# Parts that do not begin with a dot; also on disks where upper and lower case are one, none is an index.
_SHARD_PART = f"(?!{_INDEX}(?:/|\\Z))[^./\\\\{_CONTROL}\ud800-\udfff][^/\\\\{_CONTROL}\ud800-\udfff]*"
_SHARD_NAME = Bounded(f"{_SHARD_PART}(?:/{_SHARD_PART})*", NAME_CHARACTERS, IGNORECASE)


def is_plain_name(basename: str) -> bool:
    """Return whether a file name stays below the folder it is relative to, by its spelling alone."""
    return bool(_PLAIN.fullmatch(basename)) and _FORBIDDEN_PARTS.isdisjoint(basename.split("/"))


def is_shard_name(basename: str) -> bool:
    """Return whether an index may call a file of a shard so: below its folder, and nothing that others rely on.

    Readers write shards to a folder that may hold more than their cache. Whatever begins with a dot there belongs to
    others (`.penstock`, `.git`, `.bashrc`), `index.json` is the index, and control characters would reach terminals.
    """
    return bool(_SHARD_NAME.fullmatch(basename))


def resolve_inside(folder: Path, basename: str) -> Path:
    """Return the path of a file of the dataset, refusing symbolic links that lead out of its folder."""
    path = folder / PurePosixPath(basename)
    if is_plain_name(basename) and not _leads_elsewhere(folder, basename):
        return path  # what most names are, and quick to tell
    root, target = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([root, target]) != root:
        raise BadIndexError(
            f"{path} leads outside the folder of the dataset through a symbolic link: copy the file into the folder",
            basename=basename,
        )
    return path


def _leads_elsewhere(folder: Path, basename: str) -> bool:
    """Return whether any part of a name below a folder is a symbolic link, wherever it leads."""
    path = os.fspath(folder)
    for part in basename.split("/"):
        path = f"{path}/{part}"
        if os.path.islink(path):  # noqa: PTH114  which says no where pathlib raises: names that are too long
            return True
    return False
