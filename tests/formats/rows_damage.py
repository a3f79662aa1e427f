"""Damage to files of lines, to tars and to what they are compressed with: found while they are scanned, or later."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from typing import TYPE_CHECKING

import brotli
import cramjam
import numpy as np

from penstock.codecs.stream import decompress_stream
from penstock.formats.base import ReadOptions
from tests.formats.in_place import InPlace, MemoryFile
from tests.formats.webdataset.test_format import npy, tar_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from penstock.formats.base import ShardReader

    Damage = Callable[[bytes, random.Random], bytes]
    Read = Callable[[ShardReader, random.Random], None]


def lines() -> list[tuple[str, bytes]]:
    rows = [{"id": row, "text": "ü" * (row % 9), "more": [row, None, {"a": 0.5}]} for row in range(60)]
    quoted = "".join(f'{row},"a ""quoted""\n field",{row / 2}\r\n' for row in range(60))
    return [
        ("jsonl", b"\xef\xbb\xbf" + "\n".join(map(json.dumps, rows)).encode()),
        ("jsonl", "\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()),
        ("csv_file", f"id,text,half\n{quoted}".encode()),
        ("csv_file", b'id,text\n1,5" disk\n2,"x"y\n' * 20),
        ("tsv_file", b"a\tb\n" + b"1\t2\n" * 50),
        ("text", "Zeile für Zeile\n".encode() * 50),
    ]


def tars() -> list[tuple[str, bytes]]:
    files = {}
    for row in range(12):
        files[f"folder/{row:03}.txt"] = b"hello"
        files[f"folder/{row:03}.json"] = b'{"a": [1, 2]}'
        files[f"folder/{row:03}.cls"] = str(row).encode()
        files[f"folder/{row:03}.{'x' * 120}.npy"] = npy(np.arange(row))
    return [("webdataset", tar_of(files))]


def packed() -> list[tuple[str, bytes]]:
    [(_, data), *_] = lines()
    codecs: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "br": brotli.compress,
        "zstd": lambda raw: bytes(cramjam.zstd.compress(raw)),
    }
    return [(codec, compress(data) * (codec != "br") + compress(data)) for codec, compress in codecs.items()]


def damage_files(files: list[tuple[str, bytes]], damage: Damage, read: Read) -> Callable[[random.Random], None]:
    """Damage a file before it is scanned, or after."""

    def run(rng: random.Random) -> None:
        name, data = rng.choice(files)
        if rng.random() < 0.7:
            data, after = damage(data, rng), data
            file = InPlace(name, MemoryFile("a.file", data, rng.choice((7, 100, 1 << 20)), rng.random() < 0.2))
        else:
            file, after = InPlace(name, MemoryFile("a.file", data)), damage(data, rng)
        for info in file.infos:
            span = info.parts[0].span
            for content in (data, after):
                raw = content if span is None else content[span.offset : span.offset + span.num_bytes]
                read(file.form.open([raw], info, ReadOptions()), rng)

    return run


def damage_packed(damage: Damage, read: Read) -> Callable[[random.Random], None]:
    """Damage a compressed file."""
    files = packed()

    def run(rng: random.Random) -> None:
        codec, stored = rng.choice(files)
        stored = damage(stored, rng) if rng.random() < 0.9 else stored  # most codecs notice all of it
        size = rng.choice((50, 1 << 20))
        chunks = (stored[begin : begin + size] for begin in range(0, len(stored), size))
        data = b"".join(decompress_stream(chunks, codec, "a.file"))
        with InPlace("jsonl", MemoryFile("a.file", data, is_compressed=True)).opened() as readers:
            for reader in readers:
                read(reader, rng)

    return run
