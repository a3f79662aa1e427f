"""Keeps file names of an index inside its dataset's folder: indexes come from outside."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from penstock.errors import BadIndexError


def check_basename(basename: str, where: str) -> str:
    """Return the name if it stays below the folder it is relative to, by its spelling alone."""
    parts = basename.split("/")
    if (
        not basename
        or "" in parts
        or "." in parts
        or ".." in parts
        or "\\" in basename
        or "\0" in basename
        or Path(basename).is_absolute()
    ):
        raise BadIndexError(
            f"{where} names the file {basename!r}, which is not a plain path below the dataset's folder",
            basename=basename,
        )
    return basename


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
