"""Rows → tar files as WebDataset has them: a member for each value, whose extension says what it is."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ColumnTypeError, ConfigError
from penstock.formats.shard_files import OneFileShard, ShardBlocks, ShardFileFormat
from penstock.formats.webdataset.decode import KEY, URL, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.types import Sample


class TarSaveFormat(ShardFileFormat):
    """Tar files, each sample under the key that it has, or under its number."""

    def __init__(self, compression: str | None) -> None:
        if compression not in (None, "none"):
            raise ConfigError(f"compression={compression!r} is not for webdataset: its members are compressed already")

    def begin(self, rows: Sequence[Sample]) -> None:
        """Members have no columns in common."""

    def open(self, folder: Path, number: int) -> ShardBlocks:
        """Begin a file."""
        return _TarFile(folder / f"shard-{number:05}.tar")


class _TarFile(OneFileShard):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115

    def _write(self, rows: Sequence[Sample], first: int) -> None:
        for number, row in enumerate(rows, first):
            key = str(row.get(KEY, f"{number:09}"))
            for name, value in row.items():
                if name not in (KEY, URL):
                    extension, data = member_of(name, value)
                    about = tarfile.TarInfo(f"{key}.{extension}")
                    about.size = len(data)
                    self._tar.addfile(about, io.BytesIO(data))

    def close(self) -> None:
        """Write the end of the file."""
        self._tar.close()
        super().close()


def member_of(name: str, value: Any) -> tuple[str, bytes]:
    """Return the extension and the bytes of a value: read again, it is the same."""
    if "/" in name:
        raise ConfigError(f"column {name!r} cannot be a member of a tar file: rename it")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return name, value
    if isinstance(value, str):
        return _ending(name, "txt"), value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return _ending(name, "cls"), str(value).encode()
    if isinstance(value, np.ndarray):
        out = io.BytesIO()
        np.save(out, value, allow_pickle=False)
        return _ending(name, "npy"), out.getvalue()
    try:
        return _ending(name, "json"), json.dumps(value).encode()
    except TypeError as error:
        raise ColumnTypeError(
            f"column {name!r} cannot be a member of a tar file: {error}. Pass bytes, such as those of a JPEG",
            column=name,
        ) from error


def _ending(name: str, extension: str) -> str:
    return name if kind_of(name) == kind_of(extension) else f"{name}.{extension}"
