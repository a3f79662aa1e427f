"""Headers of tar files: the same members as `tarfile` finds, of every writer's kind, and damaged ones refused."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptShardError
from penstock.formats.webdataset.headers import BLOCK, Member, walk
from penstock.formats.webdataset.reader import MappedTar

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
letters = st.sampled_from("ab.-_ü漢 ") | st.characters(codec="utf-8", categories=["L", "N"])
parts = st.text(letters, min_size=1, max_size=60)
names = st.lists(parts, min_size=1, max_size=5).map("/".join).filter(lambda name: not name.startswith("/"))
members = st.lists(st.tuples(names, st.binary(max_size=1200) | st.just(b"x" * BLOCK)), max_size=8)


def write(files: list[tuple[str, bytes]], tar_format: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def read(data: bytes) -> list[Member]:
    return list(walk(MappedTar(data), "a.tar"))


def contents(data: bytes) -> list[tuple[str, bytes]]:
    return [(member.name, data[member.data : member.end]) for member in read(data)]


def contents_by_tarfile(data: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = [(member.name, tar.extractfile(member)) for member in tar if member.isreg()]
        return [(name, file.read()) for name, file in found if file is not None]


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@given(files=members)
def test_members_are_those_of_tarfile(tar_format: int, files: list[tuple[str, bytes]]) -> None:
    data = write(files, tar_format)
    assert contents(data) == contents_by_tarfile(data)


@given(
    files=st.lists(
        st.tuples(st.from_regex(r"([a-z]{1,9}/){0,9}[a-z]{1,90}", fullmatch=True), st.binary(max_size=9)), max_size=5
    )
)
def test_members_of_ustar_with_names_in_two_parts(files: list[tuple[str, bytes]]) -> None:
    data = write(files, tarfile.USTAR_FORMAT)
    assert contents(data) == contents_by_tarfile(data) == files


def test_members_lie_one_behind_the_other() -> None:
    data = write([("a", b"1"), ("x" * 300, b"2" * 600), ("c", b"")], tarfile.PAX_FORMAT)
    found = read(data)
    assert [member.begin for member in found] == [0, 1024, found[1].data + 1024]
    for member in found[1:]:  # each begins where one may begin to read
        assert contents(data[member.begin :])[0][0] == member.name


def test_what_is_no_regular_file_is_left_out() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "for all"}) as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"Z"):
            info = tarfile.TarInfo(f"other{ord(kind)}")
            info.type, info.linkname = kind, "b" * 200
            tar.addfile(info)
        info = tarfile.TarInfo("file")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    assert contents(out.getvalue()) == contents_by_tarfile(out.getvalue()) == [("file", b"abc")]


def header(**fields: bytes) -> bytes:
    """Make a header by hand; fields by name, at their places."""
    places = {"name": 0, "size": 124, "chksum": 148, "typeflag": 156, "magic": 257, "prefix": 345}
    block = bytearray(BLOCK)
    for name, value in ({"typeflag": b"0", "magic": b"ustar\x0000"} | fields).items():
        block[places[name] : places[name] + len(value)] = value
    if "chksum" not in fields:
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_sizes_beyond_octal_digits() -> None:
    assert contents(header(name=b"a", size=b"\x80" + (3).to_bytes(11, "big")) + b"abc") == [("a", b"abc")]
    huge = header(name=b"a", size=b"\x80" + (1 << 70).to_bytes(11, "big"))
    with pytest.raises(CorruptShardError, match=r"a\.tar is not a valid tar file, at byte 0: it ends before the 11805"):
        read(huge)


def test_old_and_strange_headers() -> None:
    assert contents(header(name=b"old", typeflag=b"\0", magic=bytes(8), size=b"1\0") + b"x") == [("old", b"x")]
    assert contents(header(name=b"folder/", typeflag=b"\0", magic=bytes(8))) == []
    signed = bytearray(header(name="ü".encode(), size=b"0", chksum=b" " * 8))
    signed[148:156] = b"%06o\0 " % (sum(signed) - 256 * 2)
    assert contents(bytes(signed)) == [("ü", b"")]
    assert contents(header(name=b"\xff", size=b"0")) == [("\udcff", b"")]
    gnu = header(name=b"a", magic=b"ustar  \0", prefix=b"00000000000")  # times of access, there
    assert contents(gnu) == [("a", b"")]


def test_tars_end_where_blocks_of_zeros_begin() -> None:
    one, other = write([("a", b"1")], tarfile.GNU_FORMAT), write([("b", b"2")], tarfile.GNU_FORMAT)
    assert contents(one + other) == [("a", b"1")]
    assert contents(one[:1024]) == contents(one[:513]) == [("a", b"1")]
    assert contents(bytes(10240)) == contents(b"") == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(name=b"a", size=b"777")[:300], "ends within a header"),
        (header(name=b"a", size=b"777") + b"abc", "ends before the 511 bytes of 'a'"),
        (header(name=b"a", chksum=b"000000\0 "), "checksum is wrong"),
        (b"hello world" * 100, "no header begins there"),
        (header(name=b"a", size=b"-1"), "no header begins there"),
        (header(name=b"a", size=b"9"), "no header begins there"),
        (header(name=b"a", size=b"\xff" * 12), "no header begins there"),
        (header(typeflag=b"L", size=b"77777777"), "a header of 16777215 bytes"),
        (header(typeflag=b"L", size=b"10") + b"abc", "ends within a header"),
        (header(typeflag=b"L", size=b"3") + b"abc".ljust(512, b"\0"), "ends before the member"),
        (header(typeflag=b"x", size=b"7") + b"9 a=bc\n".ljust(512, b"\0"), "pax header that is not valid"),
        (header(typeflag=b"x", size=b"7") + b"7 abcd\n".ljust(512, b"\0"), "pax header that is not valid"),
        (header(typeflag=b"x", size=b"7") + b"0 a=bc\n".ljust(512, b"\0"), "pax header that is not valid"),
        (header(typeflag=b"x", size=b"13") + b"11 size=-1\n".ljust(512, b"\0"), "size that is not a number"),
        (header(typeflag=b"S", name=b"a"), "sparse file"),
    ],
)
def test_damaged_tars_are_refused_by_name(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptShardError, match=rf"a\.tar is not a valid tar file, at byte \d+: .*{reason}"):
        read(data)


@given(data=st.data(), tar_format=st.sampled_from(FORMATS))
def test_any_damage_is_found_or_does_no_harm(data: st.DataObject, tar_format: int) -> None:
    tar = bytearray(write([("a.txt", b"hello"), ("b" * 90, b"x" * 700)], tar_format))
    for _ in range(data.draw(st.integers(1, 3))):
        tar[data.draw(st.integers(0, len(tar) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(tar))
    except CorruptShardError:
        return
    assert all(0 <= member.begin < member.data <= member.end <= len(tar) for member in found)
