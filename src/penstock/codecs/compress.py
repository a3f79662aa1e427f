"""Compression of whole files: five codecs, each `name` or `name:level`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, CorruptShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to compress, with the range of its levels. Its code is loaded on first use."""

    name: str
    module: str
    levels: range | None = None
    default_level: int | None = None
    suffix: str = ""  # cramjam keeps unframed snappy under names of its own

    def compress(self, data: Buffer, level: int | None = None) -> bytes:
        """Compress in one piece."""
        arguments = () if self.levels is None else (self.default_level if level is None else level,)
        return bytes(self._function(f"compress{self.suffix}")(data, *arguments))

    def decompress(self, data: Buffer) -> bytes:
        """Return the content back, however long it is: of data that you trust."""
        return bytes(self._function(f"decompress{self.suffix}")(data))

    def compress_into(self, data: Buffer, out: Buffer, level: int | None = None) -> int:
        """Compress in one piece into a buffer of at least `most_compressed_bytes`, and give the number of bytes.

        Lets other threads run meanwhile.
        """
        arguments = () if self.levels is None else (self.default_level if level is None else level,)
        num_bytes: int = self._function(f"compress{self.suffix}_into")(data, out, *arguments)
        return num_bytes

    def decompress_into(self, data: Buffer, out: Buffer, where: str) -> None:
        """Fill a writable buffer, which must be exactly as long as the content. Lets other threads run meanwhile."""
        expected = memoryview(out).nbytes
        try:
            written = self._function(f"decompress{self.suffix}_into")(data, out)
        except Exception as error:
            raise CorruptShardError(
                f"{where} cannot be decompressed to the {expected} bytes that the index says: {error}", where=where
            ) from error
        if written != expected:
            raise CorruptShardError(
                f"{where} decompresses to {written} bytes, but the index says {expected}", where=where
            )

    def _function(self, name: str) -> Any:
        return getattr(getattr(import_module("cramjam"), self.module), name)


_CODECS = {
    codec.name: codec
    for codec in (
        Codec("br", "brotli", range(12), 11),
        Codec("bz2", "bzip2", range(1, 10), 9),
        Codec("gz", "gzip", range(10), 9),
        Codec("snappy", "snappy", suffix="_raw"),
        Codec("zstd", "zstd", range(1, 23), 3),
    )
}


# What other programs compress with; nothing is written so here.
_ONLY_READ = {codec.name: codec for codec in (Codec("xz", "xz"),)}


def reading_codec(text: str) -> Codec:
    """Return the codec of `"zstd"` or `"zstd:7"`, for reading."""
    return _ONLY_READ.get(text) or parse_compression(text)[0]


def most_compressed_bytes(num_bytes: int) -> int:
    """Return a size that no codec exceeds: snappy asks for a sixth more than it is given."""
    return num_bytes + num_bytes // 6 + 4096


def known_compressions() -> list[str]:
    """List every accepted form, with and without level, sorted."""
    levels = [f"{codec.name}:{level}" for codec in _CODECS.values() for level in codec.levels or ()]
    return sorted([*_CODECS, *levels])


def parse_compression(text: str) -> tuple[Codec, int | None]:
    """Turn `"zstd"` or `"zstd:7"` into a codec and a level, or raise an error that lists what there is."""
    name, _, digits = text.partition(":")
    codec = _CODECS.get(name)
    if codec is None:
        forms = ", ".join(_describe(codec) for codec in _CODECS.values())
        raise ConfigError(f"unknown compression {text!r}: use one of {forms}")
    if text not in known_compressions():
        raise ConfigError(f"{name} does not have the level given in compression={text!r}: use {_describe(codec)}")
    return codec, int(digits) if digits else None


def _describe(codec: Codec) -> str:
    if codec.levels is None:
        return codec.name
    return f"{codec.name}[:{codec.levels.start}-{codec.levels.stop - 1}]"
