"""Raw data of many small files: which there are, in which order they are written, and what is in one of them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.cache.proxied import open_proxied
from penstock.conversion.inputs import TableSource
from penstock.errors import BadSampleError, EmptyDatasetError
from penstock.extras import require
from penstock.formats.encodings.images import image_file_kind
from penstock.order.keys import hash_key, permutation
from penstock.storage.base import shown_url
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from penstock.storage.base import ObjectInfo, Store
    from penstock.types import Int64Array, Sample

VALIDATE: dict[str, Any] = {"type": int, "default": 1, "help": "0: do not decode each image to see that it is whole"}


@dataclass(frozen=True, slots=True, eq=False)
class FileList(Sequence[str]):
    """The names of files below a root, in few bytes each: there may be millions, and each worker gets them."""

    names: bytes = field(repr=False)  # one after the other
    bounds: Int64Array
    num_bytes: int  # of all files
    fingerprint: str  # which changes with names, sizes and versions

    @classmethod
    def of(cls, infos: Iterable[ObjectInfo]) -> FileList:
        """Take in files as a store lists them."""
        names, ends, hasher, total = bytearray(), [0], hashlib.blake2b(digest_size=16), 0
        for info in infos:
            names += info.key.encode("utf-8", "surrogateescape")
            ends.append(len(names))
            total += info.num_bytes
            hasher.update(f"{info.key!a}:{info.num_bytes}:{info.version};".encode())
        return cls(bytes(names), np.array(ends, np.int64), total, hasher.hexdigest())

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: Any) -> Any:
        begin, end = self.bounds[number : number + 2].tolist()
        return self.names[begin:end].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))


def list_files(root: str, folder: str, suffixes: Sequence[str]) -> FileList:
    """List the files of a folder below a root with one of some endings, in lower case, sorted by name."""
    ends = tuple(suffixes)
    infos = _store(root).list(f"{folder}/")
    found = FileList.of(info for info in infos if info.key.lower().endswith(ends) and "/." not in f"/{info.key}")
    if not len(found):
        raise EmptyDatasetError(
            f"there is no file *{' or *'.join(ends)} below {shown_url(join_url(root, folder))}", path=folder
        )
    return found


def file_infos(root: str, names: Sequence[str]) -> FileList:
    """List files that must all be there."""
    return FileList.of(map(_store(root).stat, names))


@lru_cache(maxsize=8)
def _store(root: str) -> Store:
    return open_proxied(root)


def read_raw(root: str, name: str) -> bytes:
    """Read a raw file."""
    return bytes(_store(root).read(name))


def read_image(row: Sample, name: str) -> bytes:
    """Read an image file; if the row says so, decode all its pixels to see that it is whole; errors name the file."""
    data, where = read_raw(row["root"], name), shown_url(join_url(row["root"], name))
    if row["validates"]:
        pillow = require("PIL.Image", extra="images", purpose="images")
        try:
            pillow.open(io.BytesIO(data)).load()
        except Exception as error:
            raise BadSampleError(f"{where} is no image, or a damaged one: {error}", file=where) from error
    elif image_file_kind(data) is None:
        raise BadSampleError(f"{where} is no image file: it begins with {data[:8]!r}", file=where)
    return data


# --- Records in a keyed order ---


class Records(Protocol):
    """Rows of raw data, by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> Sample: ...


def keyed_records(
    records: Records, seed: tuple[int | str, ...] | None, fingerprint: str, num_bytes: int, **shared: Any
) -> TableSource:
    """Return records in an order that a key decides, or as they are without one, each with its number as `i`.

    What is `shared` stands in each of them.
    """
    size = len(records)
    order = np.arange(size, dtype=np.int64) if seed is None else permutation(hash_key("recipe", *seed), size)
    told = f"{fingerprint}-{'in-order' if seed is None else seed!r}"
    return TableSource((records, order, shared), size, _read_records, told, num_bytes)


def _read_records(table: tuple[Records, Int64Array, Sample], begin: int, end: int) -> list[Sample]:
    records, order, shared = table
    return [{"i": number, **shared, **records[number]} for number in order[begin:end].tolist()]
