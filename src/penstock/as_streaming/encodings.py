"""MosaicML Streaming's encodings, compressions and digests, by its tables, classes and functions: ours do the work."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.codecs.compress import known_compressions, parse_compression
from penstock.codecs.digest import digest, known_hashes
from penstock.errors import ColumnTypeError, UnknownEncodingError
from penstock.formats.encodings.base import Encoding as OurEncoding
from penstock.formats.encodings.table import encodings, get_encoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self


# --- MDS columns ------------------------------------------------------------------------------------------------


class Encoding:
    """How the values of a column are stored: inherit it, and put the class into `_encodings` under its name."""

    size: int | None = None  # bytes of every value, if they are always as many

    def encode(self, obj: Any) -> bytes:
        """Return the stored bytes of a value."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """Turn stored bytes into a value."""
        raise NotImplementedError

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        if not isinstance(data, expected_type):
            raise ColumnTypeError(f"expects {expected_type}, got {type(data).__name__}")


class _Registered(Encoding):
    """An encoding of our registry, under the names that the original gives such things."""

    column_encoding: ClassVar[str]

    def __init__(self, *settings: str) -> None:
        self._ours = get_encoding(":".join([self.column_encoding, *settings]))

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Bytes of every value, if they are always as many."""
        return self._ours.num_bytes

    def encode(self, obj: Any) -> bytes:
        """Return the stored bytes of a value."""
        is_stored = isinstance(obj, bytes) and self.column_encoding == "bytes"
        return obj if is_stored else self._ours.encode(obj)

    def decode(self, data: bytes) -> Any:
        """Turn stored bytes into a value."""
        return self._ours.decode(data)


class _UsersOwn(OurEncoding):
    """An encoding that a user put into the original's table, as our registry wants it."""

    follows_index = True  # shards may have been written before it took the name of another one

    def __init__(self, name: str, kind: Callable[[], Any]) -> None:
        self._theirs = kind()
        self.num_bytes = getattr(self._theirs, "size", None)
        self.is_unsafe = name == "pkl"

    def encode(self, value: Any) -> bytes:
        """Return the stored bytes of a value."""
        return bytes(self._theirs.encode(value))

    def decode(self, data: bytes) -> Any:
        """Turn stored bytes into a value."""
        return self._theirs.decode(data)


def _class_of(column_encoding: str, name: str) -> type[Encoding]:
    return type(name, (_Registered,), {"column_encoding": column_encoding, "__module__": __name__})


class EncodingTable(MutableMapping[str, Any]):
    """Name of an encoding → its class. What is put here is registered, and may take the place of one of ours."""

    def __init__(self) -> None:
        self._theirs: dict[str, Any] = {}
        self._replaced: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self._theirs:
            return self._theirs[name]
        if name not in encodings:
            raise UnknownEncodingError(f"unknown column encoding {name!r}: use one of {', '.join(encodings.names())}")
        return NDArray if name == "ndarray" else _class_of(name, name)

    def __setitem__(self, name: str, kind: Callable[[], Any]) -> None:
        old = encodings.replace(name, partial(_UsersOwn, name, kind))
        self._replaced.setdefault(name, old)
        self._theirs[name] = kind
        get_encoding.cache_clear()

    def __delitem__(self, name: str) -> None:
        del self._theirs[name]
        encodings.replace(name, self._replaced.pop(name))
        get_encoding.cache_clear()

    def __iter__(self) -> Iterator[str]:
        return iter(encodings.names())

    def __len__(self) -> int:
        return len(encodings.names())


mds_encodings = EncodingTable()


class NDArray(_Registered):
    """Arrays: of any type and shape or, where these are given, of one."""

    column_encoding = "ndarray"

    def __init__(self, dtype: str | None = None, shape: Sequence[int] | None = None) -> None:
        self.dtype, self.shape = dtype, shape
        super().__init__(*filter(None, [dtype, ",".join(map(str, shape or ()))]))

    @classmethod
    def from_str(cls, text: str) -> Self:
        """Read what stands after the name in a column's encoding: `"int32"` or `"int32:3,4"`, or nothing."""
        dtype, _, shape = text.partition(":")
        return cls(dtype or None, [*map(int, shape.split(","))] if shape else None)


# Name of a class → its encoding. Classes are found by their names in this module, also by pickle.
_MDS_CLASSES = {
    **{name: name.lower() for name in ("Bytes", "Str", "Int", "UInt8", "UInt16", "UInt32", "UInt64", "Int8", "Int16")},
    **{name: name.lower() for name in ("Int32", "Int64", "Float16", "Float32", "Float64", "PIL", "JPEG", "PNG")},
    **{f"{name}List": f"list[{name.lower()}]" for name in ("PIL", "JPEG", "PNG")},
    "StrInt": "str_int",
    "StrFloat": "str_float",
    "StrDecimal": "str_decimal",
    "JSON": "json",
    "JPEGArray": "jpeg_array",
    "Pickle": "pkl",
}
globals().update({name: _class_of(encoding, name) for name, encoding in _MDS_CLASSES.items()})


def get_mds_encodings() -> set[str]:
    """List the names of all encodings."""
    return set(encodings.names())


def is_mds_encoding(encoding: str) -> bool:
    """Return whether this is one of them, with or without settings after a colon."""
    return encoding.partition(":")[0] in encodings


def is_mds_encoding_safe(encoding: str) -> bool:
    """Return whether reading it cannot run code of its writer."""
    return not get_encoding(encoding).is_unsafe


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Return the stored bytes of a value; bytes are stored as they are."""
    return obj if isinstance(obj, bytes) else get_encoding(encoding).encode(obj)


def mds_decode(encoding: str, data: bytes) -> Any:
    """Turn stored bytes into a value."""
    return get_encoding(encoding).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Return the bytes of every value, if they are always as many."""
    return get_encoding(encoding).num_bytes


# --- JSON and XSV columns ---------------------------------------------------------------------------------------

_KINDS: dict[str, type] = {"str": str, "int": int, "float": float}


def _kind_of(encoding: str) -> type:
    if encoding not in _KINDS:
        raise UnknownEncodingError(f"unknown encoding {encoding!r} for a text column: use one of {', '.join(_KINDS)}")
    return _KINDS[encoding]


def is_json_encoding(encoding: str) -> bool:
    """Return whether a JSON column can have this encoding."""
    return encoding in _KINDS


def is_json_encoded(encoding: str, value: Any) -> bool:
    """Return whether a value fits a JSON column; one of another type is an error."""
    Encoding._validate(value, _kind_of(encoding))
    return True


is_xsv_encoding = is_json_encoding  # of CSV, TSV and XSV columns


def xsv_encode(encoding: str, value: Any) -> str:
    """Return the text of a value."""
    Encoding._validate(value, _kind_of(encoding))
    return str(value)


def xsv_decode(encoding: str, value: str) -> Any:
    """Turn text into a value."""
    return _kind_of(encoding)(value)


class _TextColumn:
    """A column of a text format, under the original's names: `is_encoded` of JSON, the others of XSV."""

    column_encoding: ClassVar[str]

    def is_encoded(self, obj: Any) -> bool:
        """Return whether a value fits; one of another type is an error."""
        return is_json_encoded(self.column_encoding, obj)

    def encode(self, obj: Any) -> str:
        """Return the text of a value."""
        return xsv_encode(self.column_encoding, obj)

    def decode(self, obj: str) -> Any:
        """Turn text into a value."""
        return xsv_decode(self.column_encoding, obj)


JsonStr, JsonInt, JsonFloat = (
    type(f"Json{name.title()}", (_TextColumn,), {"column_encoding": name, "__module__": __name__}) for name in _KINDS
)
XsvStr, XsvInt, XsvFloat = JsonStr, JsonInt, JsonFloat


# --- Compressions and digests ------------------------------------------------------------------------------------


class Compression:
    """One way to compress."""

    extension: str

    def compress(self, data: bytes) -> bytes:
        """Compress bytes in one piece."""
        return compress(self._text, data)

    def decompress(self, data: bytes) -> bytes:
        """Return the content back."""
        return decompress(self._text, data)

    @property
    def _text(self) -> str:
        return self.extension


class LevelledCompression(Compression):
    """One way to compress that has levels; left out, the level is the usual one."""

    def __init__(self, level: int | None = None) -> None:
        codec, _ = parse_compression(self.extension if level is None else f"{self.extension}:{level}")
        self.level = codec.default_level if level is None else level

    @property
    def levels(self) -> list[int]:
        """All levels, from the quickest to the most thorough."""
        return list(parse_compression(self.extension)[0].levels or ())

    @property
    def _text(self) -> str:
        return f"{self.extension}:{self.level}"


def _codec_class(name: str, extension: str, base: type[Compression] = LevelledCompression) -> type[Compression]:
    return type(name, (base,), {"extension": extension, "__module__": __name__})


Brotli = _codec_class("Brotli", "br")
Bzip2 = _codec_class("Bzip2", "bz2")
Gzip = _codec_class("Gzip", "gz")
Snappy = _codec_class("Snappy", "snappy", Compression)  # which has no levels
Zstandard = _codec_class("Zstandard", "zstd")


def get_compressions() -> set[str]:
    """List every accepted form, with and without level."""
    return set(known_compressions())


def is_compression(algo: str | None) -> bool:
    """Return whether this is one of them; None, for no compression, is."""
    return algo is None or algo in get_compressions()


def get_compression_extension(algo: str) -> str:
    """Return the ending of a compressed file."""
    return parse_compression(algo)[0].name


def compress(algo: str | None, data: bytes) -> bytes:
    """Compress bytes, unless `algo` is None."""
    if algo is None:
        return data
    codec, level = parse_compression(algo)
    return codec.compress(data, level)


def decompress(algo: str | None, data: bytes) -> bytes:
    """Return the content back, unless `algo` is None."""
    return data if algo is None else parse_compression(algo)[0].decompress(data)


def get_hashes() -> set[str]:
    """List the names of all digests."""
    return set(known_hashes())


def is_hash(algo: str) -> bool:
    """Return whether this is one of them."""
    return algo in get_hashes()


def get_hash(algo: str, data: bytes) -> str:
    """Digest bytes, as lower-case hex."""
    return digest([data], [algo])[algo]
