"""One file of an index of files, from plain values of JSON: all is checked, since it comes from outside."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from penstock.errors import IndexFieldError
from penstock.index.entry import formats
from penstock.index.model import Column, ShardLayout
from penstock.index.paths import is_shard_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST = 2**62
_MOST_SAMPLES = 2**48


class FileShard(NamedTuple):
    """One shard of a file, as `formats.files.ScannedShard` says it, in plain numbers."""

    num_samples: int
    begin: int  # of what is stored, also if that is compressed
    end: int
    raw_bytes: int
    is_exact: bool = True
    details: bytes = b""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One file, as it was when it was scanned."""

    name: str
    num_bytes: int
    version: str | None
    layout: ShardLayout
    shards: tuple[FileShard, ...]

    @property
    def identity(self) -> tuple[str, int, str | None]:
        """What must still be true of the file for this to be true of its content."""
        return self.name, self.num_bytes, self.version


class FileHead(NamedTuple):
    """What an index says of a file besides its shards."""

    name: str
    num_bytes: int
    version: str | None
    layout: ShardLayout


class FilesLoader:
    """Turns plain values into files, or says what is wrong with them."""

    most = _MOST
    most_samples = _MOST_SAMPLES

    def __init__(self, where: str) -> None:
        self._where = where

    def refuse(self, problem: str) -> NoReturn:
        """Return what is wrong."""
        raise IndexFieldError(f"Index file at {self._where} {problem}: make it again with penstock index")

    def list_in(self, value: Any, field: str) -> list[Any]:
        """Return a field that must be a list."""
        found = value.get(field) if isinstance(value, dict) else None
        if not isinstance(found, list):
            self.refuse(f"has {field!r} that is not a list")
        return found

    def layout(self, value: Any) -> ShardLayout:
        """Read one layout."""
        columns = self.list_in(value, "columns")
        name, compression, settings = value.get("format"), value.get("compression"), value.get("settings")
        if not isinstance(name, str) or name not in formats or not hasattr(formats.get(name), "scan"):
            self.refuse(f"names the unknown format {name!r}")
        if not isinstance(compression, str | None) or not isinstance(settings, dict):
            self.refuse("has a layout whose compression or settings are not valid")
        return ShardLayout(
            format=name,
            columns=tuple(self._column(column) for column in columns),
            compression=compression,
            settings=settings,
        )

    def _column(self, value: Any) -> Column:
        if not isinstance(value, list) or list(map(type, value[:2])) != [str, str] or len(value) != 3:
            self.refuse("has a column without a name and a type")
        return Column(value[0], value[1], None if value[2] is None else self._count(value[2]))

    def file(self, value: Any, layouts: Sequence[ShardLayout]) -> IndexedFile:
        """Read one file."""
        head = self.head(value, layouts)
        return IndexedFile(*head, self.shards(head, self.list_in(value, "shards")))

    def name(self, value: Any) -> str:
        """Read the name of a file."""
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or not is_shard_name(name):
            self.refuse(f"names the file {name!r}, which is not a plain path inside the folder")
        return name

    def head(self, value: Any, layouts: Sequence[ShardLayout]) -> FileHead:
        """Read all of a file but its shards."""
        name, version = self.name(value), value.get("version")
        if not isinstance(version, str | None):
            self.refuse(f"has a version of {name} that is not text")
        layout = layouts[self._count(value.get("layout"), len(layouts) - 1)]
        return FileHead(name, self._count(value.get("bytes")), version, layout)

    def shards(self, head: FileHead, values: Sequence[Any]) -> tuple[FileShard, ...]:
        """Read the shards of a file."""
        is_whole = head.layout.compression is not None and len(values) == 1  # whatever else an older index says
        loaded = tuple(self._shard(value, head.name, _MOST if is_whole else head.num_bytes) for value in values)
        return (loaded[0]._replace(begin=0, end=head.num_bytes),) if is_whole else loaded

    def _shard(self, value: Any, name: str, num_bytes: int) -> FileShard:
        if not isinstance(value, list) or len(value) not in (4, 6):
            self.refuse(f"has a shard of {name} that is not valid")
        num_samples, begin, end, raw_bytes = (self._count(number) for number in value[:4])
        if not begin <= end <= num_bytes or num_samples > _MOST_SAMPLES:
            self.refuse(f"has a shard of {name} that lies outside of that file")
        if len(value) == 4:
            return FileShard(num_samples, begin, end, raw_bytes)
        try:
            return FileShard(
                num_samples, begin, end, raw_bytes, bool(value[4]), base64.b64decode(value[5], validate=True)
            )
        except (TypeError, ValueError, binascii.Error):
            self.refuse(f"has details of a shard of {name} that are not base64")

    def _count(self, value: Any, most: int = _MOST) -> int:
        if type(value) is not int or not 0 <= value <= most:
            self.refuse(f"has {value!r} instead of a number from 0 to {most}")
        return value
