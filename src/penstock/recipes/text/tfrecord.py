"""TFRecord files and the examples of TensorFlow in them, without TensorFlow.

A record is its length, a checksum of that, its bytes and a checksum of these. An example is a message of protobuf: it
maps names to lists of integers, floats or bytes.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError, CorruptShardError
from penstock.extras import require
from penstock.files import atomic_write, os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MOST_BYTES = 1 << 30  # of a record
_BYTES_AT_ONCE = 1 << 20
_MASK = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
_BYTES_LIST, _FLOAT_LIST, _INT_LIST = 1, 2, 3  # fields of a feature


# --- Records ---


def masked_crc(data: bytes) -> int:
    """Return the checksum of TFRecord: a CRC32C, turned and shifted, so that checksums of checksums differ."""
    crc: int = require("crc32c", extra="text", purpose="reading and writing TFRecord files").crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def write_records(paths: Sequence[Path], payloads: Iterable[bytes]) -> int:
    """Deal records to files in turn, and return their number. No file appears before all of them are whole."""
    count = 0
    with ExitStack() as stack:
        files = []
        for path in paths:
            stack.enter_context(os_errors(path))
            part = stack.enter_context(atomic_write(path, flush=True))
            files.append(stack.enter_context(part.open("xb")))
        for count, payload in enumerate(payloads, 1):
            header = struct.pack("<Q", len(payload))
            file = files[(count - 1) % len(files)]
            file.write(header + _CHECKSUM.pack(masked_crc(header)) + payload + _CHECKSUM.pack(masked_crc(payload)))
    return count


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file; what is cut off or changed is an error that names the record."""
    for number, (payload, crc) in enumerate(_records(path, keeps=True)):
        if masked_crc(payload) != crc:
            raise CorruptShardError(f"{path}: the checksum of record {number} is wrong. Bring the file again")
        yield payload


def count_records(path: Path) -> int:
    """Count the records of a file, without reading what is in them."""
    return sum(1 for _ in _records(path, keeps=False))


def _records(path: Path, *, keeps: bool) -> Iterator[tuple[bytes, int]]:
    with os_errors(path), path.open("rb") as file:
        size, at, number = path.stat().st_size, 0, 0
        while header := file.read(_HEADER.size):
            length, crc = _HEADER.unpack(header) if len(header) == _HEADER.size else (_MOST_BYTES, 0)
            end = at + _HEADER.size + length + _CHECKSUM.size
            if length >= _MOST_BYTES or end > size or masked_crc(header[:8]) != crc:
                raise CorruptShardError(f"{path} is cut off or damaged at record {number}, byte {at}: bring it again")
            if keeps:
                payload = file.read(length)
                yield payload, _CHECKSUM.unpack(file.read(_CHECKSUM.size))[0]
            else:
                file.seek(end)
                yield b"", 0
            at, number = end, number + 1


# --- Examples ---


def pack_example(features: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Write arrays of integers and floats as an example."""
    entries = b""
    for name, values in features.items():
        if values.dtype.kind == "f":
            kind, packed = _FLOAT_LIST, values.astype("<f4").tobytes()
        elif values.dtype.kind in "iu":
            kind, packed = _INT_LIST, b"".join(map(_varint, values.tolist()))
        else:
            raise ConfigError(f"feature {name!r} is of {values.dtype}: examples take integers and floats")
        feature = _field(kind, _field(1, packed))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def unpack_example(data: bytes, where: str) -> dict[str, Any]:
    """Return the features of an example: arrays of int64 and float32, and lists of bytes."""
    try:
        features: dict[str, Any] = {}
        for _, body in _fields(data):
            for _, entry in _fields(body):
                parts = dict(_fields(entry))
                features[bytes(parts[1]).decode()] = _values(parts.get(2, b""))
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise CorruptShardError(f"{where} is no example of TensorFlow: {error!r}", where=where) from error
    return features


def _values(feature: bytes) -> Any:
    for kind, body in _fields(feature):
        items = [item for number, item in _fields(body) if number == 1]
        if kind == _BYTES_LIST:
            return items
        if kind == _FLOAT_LIST:
            return np.frombuffer(b"".join(items), "<f4")
        if kind == _INT_LIST:
            numbers = [one for item in items for one in ([item] if isinstance(item, int) else _varints(item))]
            return np.array(numbers, np.uint64).view(np.int64)
    return []


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("a number of more than 64 bits")


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
        if at + size > len(data):
            raise ValueError("a field is cut off")
        yield key >> 3, data[at : at + size]
        at += size
