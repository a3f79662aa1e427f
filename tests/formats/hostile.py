"""Reads what an enemy wrote, in a process of its own with little memory. Run by the tests of hostile values.

Prints one JSON list per case: the error's class and message, or what was read, and the most memory used so far.
"""

from __future__ import annotations

import json
import resource
import struct
import warnings
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from penstock.errors import PenstockError
from penstock.index.model import Column, ShardLayout
from tests.formats.making import make_layout, mds_shard, open_parts, read_stored

if TYPE_CHECKING:
    from collections.abc import Callable

HUGE = 2**32 - 1


def pixels(width: int, height: int, mode: bytes = b"L", data: bytes = b"\0") -> bytes:
    return struct.pack("<III", width, height, len(mode)) + mode + data


def jpeg(width: int, height: int) -> bytes:
    """A JPEG file that claims to be of this size."""
    out = BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG")
    data = out.getvalue()
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def png(width: int, height: int) -> bytes:
    """A PNG file that claims to be of this size, with a good check sum."""
    out = BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    data = out.getvalue()
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def lie(column: Column, record: bytes) -> Any:
    layout = ShardLayout(format="mds", columns=(column,))
    return open_parts(layout, [mds_shard([record])], 1).read([0])


CASES: dict[str, Callable[[], Any]] = {
    "pil huge both": lambda: read_stored("pil", pixels(HUGE, HUGE)),
    "pil huge width": lambda: read_stored("pil", pixels(HUGE, 1)),
    "pil no width": lambda: read_stored("pil", pixels(0, HUGE, data=b"")),
    "pil no height": lambda: read_stored("pil", pixels(HUGE, 0, data=b"")),
    "pil unknown mode": lambda: read_stored("pil", pixels(65536, 65536, b"XX", b"")),
    "pil huge mode": lambda: read_stored("pil", struct.pack("<III", 1, 1, HUGE) + b"L\0"),
    "pil mode not text": lambda: read_stored("pil", pixels(1, 1, b"\xff")),
    "pil wraps": lambda: read_stored("pil", pixels(65536, 65536, b"RGBA", b"")),
    "list[pil] huge": lambda: read_stored(
        "list[pil]", struct.pack("<II", 0, 1) + struct.pack("<I", 14) + pixels(HUGE, HUGE)
    ),
    "list[png] count": lambda: read_stored("list[png]", struct.pack("<II", 0, HUGE)),
    "list[png] sizes": lambda: read_stored("list[png]", struct.pack("<IIII", 0, 2, HUGE, HUGE)),
    "list[jpeg] wraps": lambda: read_stored("list[jpeg]", struct.pack("<IIII", 0, 2, HUGE, 1)),
    "jpeg_array count": lambda: read_stored("jpeg_array", struct.pack("<I", HUGE)),
    "jpeg_array sizes": lambda: read_stored("jpeg_array", struct.pack("<II", 1, HUGE)),
    "jpeg pil": lambda: read_stored("jpeg", jpeg(65535, 65535)),
    "jpeg array": lambda: read_stored("jpeg", jpeg(65535, 65535), image_decoder="array"),
    "jpeg array at the limit": lambda: read_stored("jpeg", jpeg(65500, 65500), image_decoder="array"),
    "jpeg array beyond the bound": lambda: read_stored("jpeg", jpeg(13378, 13378), image_decoder="array"),
    "list[jpeg] array": lambda: read_stored(
        "list[jpeg]", struct.pack("<III", 0, 1, len(jpeg(65535, 65535))) + jpeg(65535, 65535), image_decoder="array"
    ),
    "jpeg_array array": lambda: read_stored(
        "jpeg_array", struct.pack("<II", 1, len(jpeg(65535, 65535))) + jpeg(65535, 65535), image_decoder="array"
    ),
    "png pil": lambda: read_stored("png", png(2**31 - 1, 2**31 - 1)),
    "png array": lambda: read_stored("png", png(2**31 - 1, 2**31 - 1), image_decoder="array"),
    "ndarray huge": lambda: read_stored("ndarray", b"\x42\x0a" + struct.pack("<II", HUGE, HUGE) + bytes(8)),
    "ndarray wraps": lambda: read_stored("ndarray", b"\x08\x0b" + struct.pack("<QQ", 2**32, 2**32)),
    "ndarray none": lambda: read_stored("ndarray", b"\x08\x0b" + struct.pack("<QQ", 0, 2**64 - 1)),
    "ndarray axes": lambda: read_stored("ndarray", b"\x08\xff" + b"\xff" * 504),
    "fixed huge": lambda: lie(Column("x", f"ndarray:uint8:{2**31 - 1}", 2**31 - 1), b"abc"),
    "fixed huger": lambda: lie(Column("x", f"ndarray:uint8:{HUGE}", HUGE), b"abc"),
    "samples": lambda: open_parts(make_layout({"x": "int"}), [struct.pack("<I", HUGE)], HUGE),
    "json deep": lambda: read_stored("json", b"[" * 1_000_000),
    "int long": lambda: read_stored("str_int", b"9" * 1_000_000),
    "decimal long": lambda: read_stored("str_decimal", b"1e" + b"9" * 100),
}


def most_memory() -> int:
    """The most memory this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def limit_memory(more_mb: int) -> None:
    """Let the process map this much more than it has now."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + (more_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    warnings.simplefilter("ignore")
    np.array(Image.open(BytesIO(jpeg(8, 8))).convert("RGB"))  # load the libraries before counting
    read_stored("jpeg", jpeg(8, 8), image_decoder="array")
    limit_memory(256)
    for name, run in CASES.items():
        try:
            outcome = ["read", repr(run())[:100]]
        except PenstockError as error:
            outcome = ["ours", str(error)]
        except BaseException as error:  # noqa: BLE001  reported to the test
            outcome = ["foreign", repr(error)]
        print(json.dumps([name, *outcome, most_memory()]))


if __name__ == "__main__":
    main()
