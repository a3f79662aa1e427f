"""MosaicML Streaming's names for compression and digests; our codecs do the work."""

from __future__ import annotations

from penstock.codecs.compress import known_compressions, parse_compression
from penstock.codecs.digest import digest, known_hashes


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


def _class_of(name: str, extension: str, base: type[Compression] = LevelledCompression) -> type[Compression]:
    return type(name, (base,), {"extension": extension, "__module__": __name__})


Brotli = _class_of("Brotli", "br")
Bzip2 = _class_of("Bzip2", "bz2")
Gzip = _class_of("Gzip", "gz")
Snappy = _class_of("Snappy", "snappy", Compression)  # which has no levels
Zstandard = _class_of("Zstandard", "zstd")


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
