"""A value as bytes and back, without pickle: nothing that is read can run code.

magic, length of the description        16 bytes
the description, as JSON: the value with arrays and bytes left out, and what these are
arrays and bytes, one after another, maybe compressed
digest of all that                      16 bytes
"""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

import numpy as np

from penstock.codecs.compress import Codec, parse_compression
from penstock.codecs.digest import digest
from penstock.errors import ConfigError, CorruptShardError

_MAGIC = b"PSTKVAL2"  # those of version 1 are made anew: their digest leaves out text, numbers and types
_HEAD = struct.Struct("<8sQ")
_KINDS = "?biufcSUmM"  # of arrays: numbers, text and times, but no objects
_PLAIN = (str, int, float, bool, type(None))
_HASH, _DIGEST_BYTES = "xxh3_64", 16  # as text
# What is stored may unpack to this many times its size, and no more: a few bytes must not fill the memory.
_MOST_UNPACKED, _SMALL_BYTES = 2000, 1 << 20
_CODECS = {"gzip": "gz", "zstd": "zstd"}


def compression_of(name: str) -> Codec | None:
    """Find the codec of `none`, `gzip`, `lz4` or `zstd`."""
    if name == "none":
        return None
    if name == "lz4":
        return Codec("lz4", "lz4", range(1, 13), 4)
    if name not in _CODECS:
        raise ConfigError(f"compression={name!r} is unknown: use one of none, gzip, lz4, zstd")
    return parse_compression(_CODECS[name])[0]


def encode(value: Any, about: dict[str, Any], compression: str = "none") -> bytes:
    """Give a value, and what is said about it, as bytes. What cannot be stored safely is an error."""
    blobs: list[bytes] = []
    shape = _take_apart(value, blobs, "the value")
    body = b"".join(blobs)
    codec = compression_of(compression)
    stored = body if codec is None else codec.compress(body)
    description = {
        "about": about,
        "value": shape,
        "sizes": [len(blob) for blob in blobs],
        "compression": compression,
    }
    text = json.dumps(description).encode()
    data = _HEAD.pack(_MAGIC, len(text)) + text + stored
    return data + _digest(data)


def decode(data: bytes, where: str) -> tuple[Any, dict[str, Any]]:
    """Give back a value and what is said about it; anything else than what `encode` gives is an error."""
    try:
        description, stored = _open(data)
        blobs = _split(_unpack(stored, description, where), description["sizes"])
        return _put_together(description["value"], blobs), dict(description["about"])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, struct.error) as error:
        if isinstance(error, CorruptShardError):
            raise
        raise CorruptShardError(f"{where} is not a stored value, or is damaged: {error}", where=where) from error


def _open(data: bytes) -> tuple[dict[str, Any], bytes]:
    magic, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("it does not begin like one")
    data, written = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if _digest(data) != written:
        raise ValueError("its bytes are not those that were written")
    description = json.loads(data[_HEAD.size : _HEAD.size + length])
    if not isinstance(description, dict):
        raise ValueError("its description is not a JSON object")
    return description, data[_HEAD.size + length :]


def _digest(data: bytes) -> bytes:
    return digest([data], (_HASH,))[_HASH].encode()


def _unpack(stored: bytes, description: dict[str, Any], where: str) -> bytes:
    total = sum(description["sizes"])
    codec = compression_of(description["compression"])
    if codec is None:
        return stored
    if total > _SMALL_BYTES + _MOST_UNPACKED * len(stored):
        raise ValueError(f"{len(stored)} bytes are said to hold {total}")
    out = bytearray(total)
    if total:
        codec.decompress_into(stored, out, where)
    return bytes(out)


def _split(body: bytes, sizes: list[int]) -> list[bytes]:
    ends = np.cumsum([0, *sizes]).tolist()
    if min(sizes, default=0) < 0 or ends[-1] != len(body):
        raise ValueError(f"it holds {len(body)} bytes, and describes {ends[-1]}")
    return [body[begin:end] for begin, end in itertools.pairwise(ends)]


def _take_apart(value: Any, blobs: list[bytes], where: str) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        array = np.asarray(value)
        if array.dtype.kind not in _KINDS:
            raise ConfigError(f"{where} is an array of {array.dtype}, which cannot be stored without pickle")
        blobs.append(array.tobytes())
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {kind: [len(blobs) - 1, array.dtype.str, list(array.shape)]}
    if isinstance(value, bytes | bytearray):
        blobs.append(bytes(value))
        return {"bytes": len(blobs) - 1}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_take_apart(each, blobs, f"{where}[{number}]") for number, each in enumerate(value)]}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _take_apart(each, blobs, f"{where}[{name!r}]") for name, each in value.items()}}
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which cannot be stored without pickle: store dicts with text as keys,"
        " lists, tuples, arrays, text, bytes and numbers"
    )


def _put_together(shape: Any, blobs: list[bytes]) -> Any:
    if isinstance(shape, _PLAIN):
        return shape
    ((kind, inner),) = shape.items()
    if kind == "dict":
        return {name: _put_together(each, blobs) for name, each in inner.items()}
    if kind in ("list", "tuple"):
        made = [_put_together(each, blobs) for each in inner]
        return made if kind == "list" else tuple(made)
    if kind == "bytes":
        return blobs[inner]
    if kind not in ("array", "number"):
        raise ValueError(f"there is no {kind!r}")
    number, name, size = inner
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS or dtype.names is not None:
        raise ValueError(f"it describes an array of {dtype}")
    array = np.frombuffer(blobs[number], dtype).reshape(size).copy()
    return array if kind == "array" else array[()]
