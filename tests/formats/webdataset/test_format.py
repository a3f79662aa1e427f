"""WebDataset: samples are grouped, named and decoded as its own library does it, wherever a tar is cut."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, CorruptShardError
from penstock.formats.webdataset import format as webdataset
from penstock.formats.webdataset.headers import split_name
from tests.formats.in_place import InPlace, MemoryFile

if TYPE_CHECKING:
    from collections.abc import Iterator


def tar_of(files: dict[str, bytes] | list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items() if isinstance(files, dict) else files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def found_in(files: dict[str, bytes] | list[tuple[str, bytes]], **options: Any) -> list[dict[str, Any]]:
    return InPlace("webdataset", MemoryFile("d/a.tar", tar_of(files))).samples(**options)


# What the library itself makes of these names (webdataset 1.0.2, `base_plus_ext`).
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.SEG.Png", ("a", "seg.png")),
        ("x/y.z/a.b.c", ("x/y.z/a", "b.c")),
        ("./a.txt", ("./a", "txt")),
        ("../../etc/passwd.txt", ("../../etc/passwd", "txt")),
        ("/etc/passwd.txt", ("/etc/passwd", "txt")),
        ("a.", ("a", "")),
        ("noext", None),
        ("x.d/noext", None),
        (".hidden", None),
        ("x/.hidden", ("x/", "hidden")),
        ("x.d/.hidden", None),
        ("x.d/y/.hidden", ("x.d/y/", "hidden")),
    ],
)
def test_names_are_cut_as_the_library_cuts_them(name: str, expected: tuple[str, str] | None) -> None:
    assert split_name(name) == expected


def test_neighbours_with_one_key_are_a_sample() -> None:
    files = [
        ("a.txt", b"1"),
        ("a.cls", b"7\n"),
        ("__meta__", b"x"),
        ("__meta__/b.txt", b"x"),
        ("a.json", b'{"k": [1]}'),
        ("README", b"x"),
        ("b.cls", b"8"),
        ("a.cls", b"9"),
    ]
    url = {"__url__": "d/a.tar"}
    assert found_in(files) == [
        {"__key__": "a", **url, "txt": "1", "cls": 7, "json": {"k": [1]}},
        {"__key__": "b", **url, "cls": 8},
        {"__key__": "a", **url, "cls": 9},
    ]


def test_members_are_decoded_by_their_extension() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    files = {"a.npy": npy(array), "a.x.npy": npy(np.asfortranarray(array)), "a.bin": b"\0\xff", "a.txt": "ü".encode()}
    files |= {"a.pkl": b"cos\nsystem\n(S'true'\ntR.", "a.id": b"12"}
    [sample] = found_in(files)
    assert np.array_equal(sample.pop("npy"), array)
    assert np.array_equal(sample.pop("x.npy"), array)
    expected = {"bin": b"\0\xff", "txt": "ü", "pkl": files["a.pkl"], "id": 12, "__key__": "a", "__url__": "d/a.tar"}
    assert sample == expected


def test_images_go_through_the_image_decoder() -> None:
    from PIL import Image

    files = {}
    for extension, name in {"png": "PNG", "jpg": "JPEG", "seg.png": "PNG"}.items():
        out = io.BytesIO()
        Image.new("RGB", (4, 3), (255, 0, 0)).save(out, format=name)
        files[f"a.{extension}"] = out.getvalue()
    [pil] = found_in(files)
    assert pil["png"].size == pil["jpg"].size == (4, 3)
    [arrays] = found_in(files, image_decoder="array")
    assert arrays["seg.png"].shape == arrays["jpg"].shape == (3, 4, 3)
    [raw] = found_in(files, image_decoder="raw")
    assert raw["png"] == files["a.png"]


def test_columns_hold_none_where_a_sample_lacks_a_member() -> None:
    tar = tar_of({"a.cls": b"1", "a.txt": b"x", "b.cls": b"2", "c.cls": b"3", "c.txt": b"z"})
    found = InPlace("webdataset", MemoryFile("a.tar", tar))
    [columns] = found.columns()
    assert isinstance(columns["cls"], np.ndarray)
    assert list(columns.pop("cls")) == [1, 2, 3]
    assert columns == {"__key__": ["a", "b", "c"], "__url__": ["a.tar"] * 3, "txt": ["x", None, "z"]}
    assert found.samples(columns=("txt",)) == [{"txt": "x"}, {}, {"txt": "z"}]
    with found.opened() as [reader]:
        assert reader.read([2, 1, 2])[1] == {"__key__": "b", "__url__": "a.tar", "cls": 2}
        assert reader.read_columns([0, 2])["txt"] == ["x", "z"]
    with pytest.raises(ConfigError, match="'jpg'"):
        found.samples(columns=("jpg",))


def test_arrays_of_one_shape_are_one_array_by_column() -> None:
    tar = tar_of({f"{row}.npy": npy(np.full((2, 2), row)) for row in range(3)})
    [columns] = InPlace("webdataset", MemoryFile("a.tar", tar)).columns(columns=("npy",))
    assert np.asarray(columns["npy"]).tolist() == [[[row] * 2] * 2 for row in range(3)]
    assert isinstance(columns["npy"], np.ndarray)


samples = st.lists(
    st.tuples(
        st.text("abü./", min_size=1, max_size=150),
        st.dictionaries(st.sampled_from(["bin", "x.bin", "dat"]), st.binary(max_size=1100), min_size=1),
    ),
    max_size=12,
)


@given(samples=samples, span_bytes=st.integers(1, 8000), chunk_bytes=st.integers(100, 5000), compressed=st.booleans())
def test_samples_come_back_wherever_a_tar_is_cut(
    samples: list[tuple[str, dict[str, bytes]]], span_bytes: int, chunk_bytes: int, compressed: bool
) -> None:
    files = [
        (f"{key}/{number}.{extension}", data)
        for number, (key, members) in enumerate(samples)
        for extension, data in members.items()
    ]
    tar = tar_of(files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webdataset, "SPAN_BYTES", span_bytes)
        patch.setattr(webdataset, "_SMALLEST_SPAN_BYTES", span_bytes // 4)
        found = InPlace("webdataset", MemoryFile("a.tar", tar, chunk_bytes, is_compressed=compressed))
        read = found.samples()
    if compressed or not samples:
        assert len(found.scanned.shards) == bool(samples)
    assert [sample["__key__"] for sample in read] == [f"{key}/{number}" for number, (key, _) in enumerate(samples)]
    assert [{n: v for n, v in sample.items() if not n.startswith("__")} for sample in read] == [m for _, m in samples]


class CountedFile(MemoryFile):
    """Counts the bytes that are read of it."""

    num_read = 0

    def read(self, begin: int, end: int) -> bytes:
        self.num_read += end - begin
        return super().read(begin, end)

    def chunks(self) -> Iterator[bytes]:
        for chunk in super().chunks():
            self.num_read += len(chunk)
            yield chunk


def test_tars_of_large_members_are_not_read_whole() -> None:
    sizes = [90_000] * 50 + [10] * 200 + [90_000] * 50
    tar = tar_of({f"{row}.bin": row.to_bytes(2, "big") * (size // 2) for row, size in enumerate(sizes)})
    file = CountedFile("a.tar", tar, 4096, seek_bytes=10_000)
    found = InPlace("webdataset", file)
    num_read = file.num_read
    assert [int.from_bytes(sample["bin"][:2], "big") for sample in found.samples()] == list(range(len(sizes)))
    assert num_read < len(tar) // 3


@pytest.mark.parametrize(
    ("tar", "reason"),
    [
        (b"", "is empty"),
        (tar_of({"a.bin": bytes(9000)})[:5000], "ends before the 9000 bytes"),
        (b"PK\x03\x04" + bytes(1000), "not a valid tar file, at byte 0"),
        (tar_of([("a.txt", b"1"), ("a.TXT", b"2")]), "two members 'a.TXT' in one sample"),
        (tar_of({f"a{row}.{row}": b"" for row in range(1100)}), "more than 1000 kinds"),
    ],
    ids=["empty", "cut", "zip", "twice", "kinds"],
)
def test_tars_that_make_no_sense_are_refused_by_name(tar: bytes, reason: str) -> None:
    for compressed in (False, True) if tar else (False,):
        with pytest.raises(CorruptShardError, match=rf"d/a\.tar .*{reason}"):
            InPlace("webdataset", MemoryFile("d/a.tar", tar, is_compressed=compressed))


def test_a_tar_may_end_where_its_last_member_does() -> None:
    tar = tar_of({"a.txt": b"x" * 600, "b.txt": b"y" * 600})
    cut = tar[: 512 + 1024 + 512 + 600]
    for compressed in (False, True):
        found = InPlace("webdataset", MemoryFile("a.tar", cut, 500, is_compressed=compressed))
        assert found.scanned.shards[-1].span.end == len(cut)
        assert [sample["txt"] for sample in found.samples()] == ["x" * 600, "y" * 600]


def test_a_tar_without_members_has_no_shards() -> None:
    assert InPlace("webdataset", MemoryFile("a.tar", tar_of({}))).scanned.shards == ()


BAD_ARRAYS = {
    "objects": npy(np.array([{}, None])),
    "absurd": npy(np.zeros(3)).replace(b"(3,)", b"(9999999999999,)"),
    "cut": npy(np.zeros(3))[:-1],
    "nonsense": b"nonsense",
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_a_member_that_is_not_what_it_is_called_is_a_bad_sample(kind: str) -> None:
    tar = tar_of({"a.npy": npy(np.zeros(2)), "b.npy": BAD_ARRAYS[kind], "c.npy": npy(np.zeros(2))})
    with InPlace("webdataset", MemoryFile("a.tar", tar)).opened() as [reader]:
        assert len(reader.read([0, 2])) == 2
        with pytest.raises(CorruptShardError, match="row 1: column 'npy' "):
            reader.read([0, 1, 2])


@pytest.mark.parametrize(("extension", "data"), [("json", b"{"), ("cls", b"x"), ("txt", b"\xff")])
def test_broken_text_is_a_bad_sample(extension: str, data: bytes) -> None:
    tar = tar_of({f"a.{extension}": json.dumps(1).encode(), f"b.{extension}": data})
    with InPlace("webdataset", MemoryFile("a.tar", tar)).opened() as [reader]:
        with pytest.raises(CorruptShardError, match=f"row 1: column '{extension}' cannot be decoded"):
            reader.read_columns([0, 1])


def test_a_shard_of_another_number_of_samples_is_corrupt() -> None:
    found = InPlace("webdataset", MemoryFile("a.tar", tar_of({"a.txt": b"1"})))
    found.file = MemoryFile("a.tar", tar_of({"b.cls": b"1"}))
    with pytest.raises(CorruptShardError, match="'b.cls' of a kind that is not in its index"):
        found.samples()
    found.file = MemoryFile("a.tar", tar_of({}))
    with pytest.raises(CorruptShardError, match="holds 0 samples, but the index says 1"):
        found.samples()
