"""Keeps file names of an index inside its dataset's folder: indexes come from outside."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from penstock.errors import BadIndexError

_PLAIN = re.compile("[^\\\\\0\ud800-\udfff]+")  # no backslash, no NUL, nothing that UTF-8 cannot spell
_FORBIDDEN_PARTS = frozenset({"", ".", ".."})  # an absolute path begins with an empty part


def is_plain_name(basename: str) -> bool:
    """Tell whether a file name stays below the folder it is relative to, by its spelling alone."""
    return bool(_PLAIN.fullmatch(basename)) and _FORBIDDEN_PARTS.isdisjoint(basename.split("/"))


def resolve_inside(folder: Path, basename: str) -> Path:
    """Give the path of a file of the dataset, refusing symbolic links that lead out of its folder."""
    path = folder / PurePosixPath(basename)
    root, target = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([root, target]) != root:
        raise BadIndexError(
            f"{path} leads outside the dataset's folder through a symbolic link: copy the file into the folder",
            basename=basename,
        )
    return path
