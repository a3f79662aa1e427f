"""The datasets that go back and forth, made the same way in both environments.

Nothing here may import penstock or the other library: each side brings its own writers.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Sample = dict[str, Any]

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
HASHES = [
    *("blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384", "sha3_224", "sha3_256", "sha3_384"),
    *("sha3_512", "sha512", "xxh128", "xxh32", "xxh3_128", "xxh3_64", "xxh64"),
]
COMPRESSIONS = [
    *("br", "br:0", "br:11", "bz2", "bz2:1", "bz2:9", "gz", "gz:0", "gz:9", "snappy"),
    *("zstd", "zstd:1", "zstd:22"),
]


@dataclass(frozen=True)
class Case:
    """One dataset: which writer makes it, with which arguments, from which samples."""

    name: str
    columns: dict[str, str]
    make: Callable[[], list[Sample]]
    writer: str = "MDSWriter"
    options: dict[str, Any] = field(default_factory=dict)
    # These come back as what was stored, not as what was given.
    lossy: frozenset[str] = frozenset()
    # Whether the files depend on nothing but the samples; image and compression libraries may differ.
    same_bytes: bool = True
    # Datasets in these subdirectories, under one merged index.
    partitions: tuple[str, ...] = ()
    # Merge by naming the indexes instead of the directory above them.
    indexes_named: bool = False
    # Written in two goes, the second of which continues the first.
    appended: bool = False
    # The other library cannot make it, only read it.
    ours_only: bool = False

    @property
    def compressed(self) -> bool:
        return "compression" in self.options

    @property
    def hashes(self) -> list[str]:
        names: list[str] = self.options.get("hashes", [])
        return names

    def expected(self) -> list[Sample]:
        """The samples as they should be read, without the lossy columns."""
        kept = sorted(set(self.columns) - self.lossy)
        return [{name: as_read(sample[name], self.columns[name]) for name in kept} for sample in self.make()]


def as_read(value: Any, encoding: str) -> Any:
    """Numbers go in as Python's and come out as NumPy's where the column has a NumPy type."""
    return np.dtype(encoding).type(value) if encoding in INTEGERS + FLOATS else value


def write_case(case: Case, directory: Path, library: Any, merge_index: Callable[..., Any]) -> None:
    """Writes the dataset with the writers of `library`."""
    samples = case.make()
    folders = case.partitions or (".",) * (2 if case.appended else 1)
    per_folder = -(-len(samples) // len(folders))
    for number, folder in enumerate(folders):
        options = {**case.options, "append": True} if case.appended and number else case.options
        with getattr(library, case.writer)(out=str(directory / folder), columns=case.columns, **options) as writer:
            for sample in samples[number * per_folder : (number + 1) * per_folder]:
                writer.write(sample)
    if case.indexes_named:
        merge_index([str(directory / folder / "index.json") for folder in case.partitions], str(directory))
    elif case.partitions:
        merge_index(str(directory), keep_local=True)


# --- samples ---


def ramp(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    """Different values in every cell, within the range of every type."""
    return (np.arange(np.prod(shape)) % 101).reshape(shape).astype(dtype)


def scalar_samples() -> list[Sample]:
    samples = []
    for number in range(9):
        sample: Sample = {"int": number * -(10**15)}
        for dtype in INTEGERS:
            limits = np.iinfo(dtype)
            sample[dtype] = [limits.min, limits.max, number][number % 3]
        for dtype in FLOATS:
            sample[dtype] = [0.1 * number, float("inf"), float("nan")][number % 3]
        samples.append(sample)
    return samples


def text_samples() -> list[Sample]:
    texts = ["", "plain", "naïve — 漢字 🚰", "line\nbreak\ttab\0nul", "x" * 3000]
    return [
        {
            "bytes": bytes(range(number, 200)),
            "str": texts[number % 5],
            "str_int": (-7) ** (number * 11),
            "str_float": [0.1, -1e300, float("inf"), float("nan"), 5e-324][number % 5],
            "str_decimal": Decimal(f"{number}.{'10' * number}5"),
            "json": {"n": number, "deep": [None, True, 1.5, texts[number % 5], {"k": []}]},
            "not a column": "ignored",
        }
        for number in range(10)
    ]


def json_samples() -> list[Sample]:
    values: list[Any] = [None, False, 0, -1.25, "é", [], {}, [[1], {"a": None}], {"ключ": "значение"}]
    return [{"value": value} for value in values]


def array_columns() -> dict[str, str]:
    columns = {"any": "ndarray", "any_again": "ndarray:"}
    for dtype in INTEGERS + FLOATS:
        columns[f"{dtype}_shape"] = f"ndarray:{dtype}"
        columns[f"{dtype}_fixed"] = f"ndarray:{dtype}:3,2"
    return columns


def array_samples() -> list[Sample]:
    shapes = [(1,), (7,), (2, 3), (300,), (1, 1, 1, 5), (70_000,), (2, 1, 256)]
    samples = []
    for number, shape in enumerate(shapes):
        sample: Sample = {
            "any": ramp((INTEGERS + FLOATS)[number], *shape),
            "any_again": np.asfortranarray(ramp("float32", 4, 5)),
        }
        for dtype in INTEGERS + FLOATS:
            sample[f"{dtype}_shape"] = ramp(dtype, *shape)
            sample[f"{dtype}_fixed"] = ramp(dtype, 3, 2) + number
        samples.append({name: value.astype(column_dtype(name, value)) for name, value in sample.items()})
    return samples


def column_dtype(name: str, value: np.ndarray[Any, Any]) -> Any:
    """Arithmetic may have widened the values of a column of fixed type."""
    prefix = name.split("_")[0]
    return value.dtype if prefix == "any" else np.dtype(prefix)


def token_samples() -> list[Sample]:
    return [{"tokens": ramp("int32", 2048) + np.int32(number)} for number in range(30)]


def picture(mode: str, width: int = 13, height: int = 7) -> Image.Image:
    ramps = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    return Image.fromarray(ramps).convert(mode)


def jpeg_bytes(width: int, height: int = 9) -> bytes:
    stored = io.BytesIO()
    picture("RGB", width, height).save(stored, format="JPEG")
    return stored.getvalue()


def image_samples() -> list[Sample]:
    modes = ["RGB", "L", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "I", "F", "1"]
    return [
        {
            "pil": picture(mode, width=5 + number),
            "png": picture(["RGB", "L", "RGBA", "LA", "1"][number % 5]),
            "jpeg": picture(["RGB", "L", "CMYK"][number % 3], width=16, height=16),
            "stored_jpeg": jpeg_bytes(8 + number),
        }
        for number, mode in enumerate(modes)
    ]


def image_list_samples() -> list[Sample]:
    return [
        {
            "pils": [picture(mode) for mode in ["RGB", "L"][:number]],
            "pngs": [picture("RGBA", width=2 + other) for other in range(number)],
            "jpegs": [picture("RGB", width=20 + other) for other in range(number)],
            "array": [jpeg_bytes(4 + other) for other in range(number + 1)],
            "alias": [jpeg_bytes(5)] * (number + 1),
        }
        for number in range(4)
    ]


def pickle_samples() -> list[Sample]:
    values: list[Any] = [
        *(None, 1, "text", (1, 2.5, b"bytes"), [1, [2]], {"a": (None,), 3: "b"}),
        *(ramp("float32", 3, 4), np.int16(-3)),
    ]
    return [{"value": value} for value in values]


def stored_form_samples() -> list[Sample]:
    """Bytes are stored as they are in any column, whatever its encoding."""
    return [
        {
            "int": number.to_bytes(8, "little", signed=True),
            "float32": np.float32(number / 7).tobytes(),
            "str": f"déjà {number}".encode(),
            "json": b'{"already": "encoded"}',
            "array": ramp("int16", 2, 2).tobytes(),
        }
        for number in range(-2, 3)
    ]


def plain_samples() -> list[Sample]:
    """For JSON, CSV, TSV and XSV: strings, integers and floats."""
    texts = ["", "plain", "naïve 漢字 🚰", '"quoted"', " spaces ", "back\\slash"]
    return [
        {"name": texts[number % 6], "n": (-10) ** number, "x": [0.1, -1e300, 5e-324][number % 3]}
        for number in range(12)
    ]


def small_samples() -> list[Sample]:
    return [{"id": number, "text": f"sample {number} " + "ab" * (number % 50)} for number in range(200)]


def odd_name_samples() -> list[Sample]:
    return [{"Z": number, "a b": "x", "é": number / 3, "_": b"", "10": 1, "9": 2} for number in range(5)]


# --- cases ---

PLAIN = {"name": "str", "n": "int", "x": "float"}
SMALL = {"id": "int64", "text": "str"}
# Two-character separators and newlines are allowed, and single ones other than the usual.
LINE_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "json": ("JSONWriter", {}),
    "json-crlf": ("JSONWriter", {"newline": "\r\n"}),
    "csv": ("CSVWriter", {}),
    "csv-crlf": ("CSVWriter", {"newline": "\r\n"}),
    "tsv": ("TSVWriter", {}),
    "tsv-long-newline": ("TSVWriter", {"newline": "<end>\n"}),
    "xsv": ("XSVWriter", {"separator": ";"}),
    "xsv-long": ("XSVWriter", {"separator": "||", "newline": "\r\n"}),
    "xsv-unicode": ("XSVWriter", {"separator": "→", "newline": "¶"}),
}


def mds_cases() -> list[Case]:
    scalars = {name: name for name in ["int", *INTEGERS, *FLOATS]}
    texts = {name: name for name in ["bytes", "str", "str_int", "str_float", "str_decimal", "json"]}
    images = {"pil": "pil", "png": "png", "jpeg": "jpeg", "stored_jpeg": "jpeg"}
    lists = {
        "pils": "list[pil]",
        "pngs": "list[png]",
        "jpegs": "list[jpeg]",
        "array": "jpeg_array",
        "alias": "jpegarray",
    }
    stored = {"int": "int", "float32": "float32", "str": "str", "json": "json", "array": "ndarray:int16:2,2"}
    odd = {"Z": "int", "a b": "str", "é": "float64", "_": "bytes", "10": "uint8", "9": "int8"}
    return [
        Case("scalars", scalars, scalar_samples, options={"size_limit": 600}),
        Case("texts", texts, text_samples, options={"size_limit": 4096}),
        Case("json-values", {"value": "json"}, json_samples),
        Case("arrays", array_columns(), array_samples, options={"size_limit": 1 << 20}),
        Case("tokens", {"tokens": "ndarray:int32:2048"}, token_samples, options={"size_limit": "64kb"}),
        Case("images", images, image_samples, lossy=frozenset({"jpeg", "stored_jpeg"}), same_bytes=False),
        Case(
            "image-lists",
            lists,
            image_list_samples,
            lossy=frozenset({"jpegs", "array", "alias"}),
            same_bytes=False,
        ),
        Case("pickles", {"value": "pkl"}, pickle_samples, same_bytes=False),
        Case("stored-forms", stored, stored_form_samples, lossy=frozenset(stored)),
        Case("odd-names", odd, odd_name_samples),
    ]


def layout_cases() -> list[Case]:
    """Several shards, a first shard without samples, all hashes, merged indexes."""
    many = {"size_limit": 2000, "hashes": ["sha1", "xxh64"]}
    tiny = {"size_limit": 10, "hashes": ["md5"]}
    cases = [
        Case("mds-shards", SMALL, small_samples, options=many),
        Case("mds-one-shard", SMALL, small_samples, options={"size_limit": None}),
        Case("mds-empty-first-shard", SMALL, small_samples, options=tiny),
        Case("mds-every-hash", SMALL, small_samples, options={"hashes": HASHES, "size_limit": 4000}),
        Case("mds-merged", SMALL, small_samples, options=many, partitions=("a", "b", "c")),
        Case(
            "mds-merged-zstd",
            SMALL,
            small_samples,
            options={**many, "compression": "zstd"},
            partitions=("a", "b", "c"),
            same_bytes=False,
        ),
        Case(
            "mds-merged-nested",
            SMALL,
            small_samples,
            options=many,
            partitions=("a", "b/c", "b/d/e"),
            ours_only=True,
        ),
        Case("mds-merged-by-name", SMALL, small_samples, options=many, partitions=("a", "b"), indexes_named=True),
        Case("mds-appended", SMALL, small_samples, options=many, appended=True, ours_only=True),
        Case("csv-merged", PLAIN, plain_samples, "CSVWriter", partitions=("a", "b")),
        Case("json-merged", PLAIN, plain_samples, "JSONWriter", partitions=("a", "b"), ours_only=True),
    ]
    for name, (writer, options) in LINE_FORMATS.items():
        cases.append(Case(name, PLAIN, plain_samples, writer, {**options, "hashes": ["sha1"]}))
        cases.append(Case(f"{name}-shards", PLAIN, plain_samples, writer, {**options, "size_limit": 100}))
    for name in ("csv", "json"):
        writer, options = LINE_FORMATS[name]
        cases.append(Case(f"{name}-empty-first-shard", PLAIN, plain_samples, writer, {**options, "size_limit": 1}))
    return cases


def compression_cases() -> list[Case]:
    cases = []
    for compression in COMPRESSIONS:
        options = {"compression": compression, "hashes": ["sha1", "xxh3_64"], "size_limit": 5000}
        name = f"mds-{compression.replace(':', '-')}"
        cases.append(Case(name, SMALL, small_samples, options=options, same_bytes=False))
    for compression in ("br", "bz2", "gz", "snappy", "zstd"):
        for name in ("json", "csv", "tsv", "xsv-long"):
            writer, options = LINE_FORMATS[name]
            options = {**options, "compression": compression, "hashes": ["sha1"], "size_limit": 200}
            cases.append(Case(f"{name}-{compression}", PLAIN, plain_samples, writer, options, same_bytes=False))
    return cases


CASES = {case.name: case for case in [*mds_cases(), *layout_cases(), *compression_cases()]}
