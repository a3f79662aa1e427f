"""Images with more than eight bits in a channel keep all of them as arrays, or are refused."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import CorruptShardError
from penstock.testing.formats import is_same
from tests.formats.columnar.test_nodes import write_parquet
from tests.formats.columnar.test_writers import hub_table
from tests.formats.in_place import InPlace, MemoryFile
from tests.formats.making import build, make_layout, open_parts, read_stored, store_and_read
from tests.formats.webdataset.test_format import tar_of

DEPTH = (np.arange(384, dtype=np.uint16) * 170).reshape(16, 24)  # 384 values, most of them above 255


def stored(pixels: Any, kind: str, **settings: Any) -> bytes:
    out = BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(out, format=kind, **settings)
    return out.getvalue()


def deep_png(channels: int) -> bytes:
    """A PNG of 16 bits per channel: 2 is gray and alpha, 3 RGB, 4 RGBA."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 4, 2, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + np.arange(4 * channels, dtype=">u2").tobytes() for _ in range(2))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deep_ppm() -> bytes:
    return b"P6 2 1 65535\n" + np.arange(6, dtype=">u2").tobytes()


def deep_tiff() -> bytes:
    """A TIFF of one row of two pixels of 3 × 16 bits."""
    fields = [(256, 3, 1, 2), (257, 3, 1, 1), (258, 3, 3, 122), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 128)]
    fields += [(277, 3, 1, 3), (278, 3, 1, 1), (279, 4, 1, 12)]
    entries = b"".join(struct.pack("<HHII", *field) for field in fields)
    table = struct.pack("<H", len(fields)) + entries + bytes(4)
    return (b"II*\0" + struct.pack("<I", 8) + table).ljust(122, b"\0") + struct.pack("<3H", 16, 16, 16) + bytes(12)


def jpeg_2000(bits: int) -> bytes:
    """A JPEG 2000 codestream of RGB whose header says how many bits each channel has."""
    data = stored(np.zeros((4, 4, 3), np.uint8), "JPEG2000", no_jp2=True)
    at = data.index(b"\xff\x4f\xff\x51") + 42
    return (
        data[:at]
        + b"".join(bytes([bits - 1]) + data[at + 3 * n + 1 : at + 3 * n + 3] for n in range(3))
        + data[at + 9 :]
    )


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("png", stored(DEPTH, "PNG")),
        ("jpeg", stored(DEPTH, "PNG")),  # columns of this name may hold any image
        ("png", stored(DEPTH, "TIFF")),
        ("png", stored(DEPTH, "TIFF", compression="tiff_deflate")),
        ("png", stored(Image.fromarray(DEPTH), "PPM")),
        ("png", stored(DEPTH, "JPEG2000", irreversible=False)),
    ],
)
def test_sixteen_bits_of_gray_are_one_channel_of_uint16(encoding: str, data: bytes) -> None:
    assert is_same(read_stored(encoding, data, image_decoder="array"), DEPTH[..., None])
    image = read_stored(encoding, data)
    assert isinstance(image, Image.Image)
    assert np.array_equal(np.asarray(image), DEPTH)
    assert read_stored(encoding, data, image_decoder="raw") == data


def test_images_that_are_stored_as_pixels_keep_their_mode() -> None:
    pixels_of: dict[str, Any] = {
        "I;16": DEPTH,
        "I": DEPTH.astype(np.int32) * -70_000,
        "F": DEPTH.astype(np.float32) / 7,
    }
    for mode, pixels in pixels_of.items():
        image = Image.fromarray(pixels)
        assert image.mode == mode
        assert store_and_read("pil", image).mode == mode
        assert is_same(store_and_read("pil", image, image_decoder="array"), pixels[..., None])
        [listed] = store_and_read("list[pil]", [image], image_decoder="array")
        assert is_same(listed, pixels[..., None])
    big_endian = struct.pack("<III", 24, 16, 5) + b"I;16B" + DEPTH.astype(">u2").tobytes()
    assert is_same(read_stored("pil", big_endian, image_decoder="array"), DEPTH[..., None])


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "1"])
def test_eight_bits_are_rgb_as_before(mode: str) -> None:
    image = Image.fromarray((DEPTH >> 8).astype(np.uint8)).convert(mode)
    for data in (stored(image, "PNG"), stored(image, "TIFF")):
        assert is_same(read_stored("png", data, image_decoder="array"), np.array(image.convert("RGB")))


@pytest.mark.parametrize(
    "data",
    [*map(deep_png, (2, 3, 4)), deep_ppm(), deep_tiff(), jpeg_2000(12)],
    ids=["PNG of LA", "PNG of RGB", "PNG of RGBA", "PPM", "TIFF", "JPEG 2000"],
)
def test_bits_that_pillow_drops_are_an_error(data: bytes) -> None:
    with pytest.raises(CorruptShardError, match=r"row 0.*'x' holds a .* with more than 8 bits in a channel, of which"):
        read_stored("png", data, image_decoder="array")
    assert read_stored("png", data).size[0] in (2, 4)  # what Pillow makes of it
    assert read_stored("png", data, image_decoder="raw") == data
    assert read_stored("png", jpeg_2000(8), image_decoder="array").shape == (4, 4, 3)


def test_by_column_images_of_one_depth_are_one_array() -> None:
    layout = make_layout({"x": "png"})
    deep, shallow = stored(DEPTH, "PNG"), stored((DEPTH >> 8).astype(np.uint8), "PNG")
    samples = [{"x": data} for data in (deep, deep, shallow)]
    reader = open_parts(layout, build(layout, samples), 3, image_decoder="array")
    columns: Any = reader.read_columns([0, 1])["x"]
    assert is_same(columns, np.stack([DEPTH[..., None]] * 2))
    mixed = reader.read_columns([0, 2])["x"]
    assert [(each.dtype, each.shape) for each in mixed] == [(np.uint16, (16, 24, 1)), (np.uint8, (16, 24, 3))]


def test_images_of_the_hub_and_of_tars_keep_their_bits() -> None:
    data = stored(DEPTH, "PNG")
    table = hub_table([{"bytes": data, "path": "a.png"}] * 2, {"_type": "Image"})
    parquet = InPlace("parquet", MemoryFile("a.file", write_parquet(table)))
    tar = InPlace("webdataset", MemoryFile("a.tar", tar_of({"0.depth.png": data, "1.depth.png": data})))
    for file, name in ((parquet, "image"), (tar, "depth.png")):
        assert [is_same(each[name], DEPTH[..., None]) for each in file.samples(image_decoder="array")] == [True, True]
        assert np.array_equal(np.asarray(file.samples()[1][name]), DEPTH)
        [columns] = file.columns(image_decoder="array")
        assert is_same(columns[name], np.stack([DEPTH[..., None]] * 2))
