"""The headers of a tar file, one after the other: what each member is called, and where its bytes are.

POSIX (ustar and pax), GNU and older tars. Names are only ever names here: nothing is extracted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol
from zlib import adler32

from penstock.errors import CorruptShardError
from penstock.outside_text import NAME_CHARACTERS, Bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


BLOCK = 512
_MOST_HEADER_BYTES = 1 << 20  # of a name, or of what else extends a header
_NO_BLOCK = bytes(BLOCK)
_GNU_MAGIC = b"ustar  \0"
_REGULAR = frozenset((0, ord("0"), ord("7")))
_WITHOUT_DATA = b"123456"  # links, devices, folders; their size means nothing
_ADLER_BASE = 65521


class TarBytes(Protocol):
    """The bytes of a tar file, which are asked for in rising order."""

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from one place to another; fewer if the file ends before."""

    def reaches(self, end: int) -> bool:
        """Return whether the file has so many bytes."""


class Member(NamedTuple):
    """One file within a tar."""

    name: str
    begin: int  # of its header, or of the first of those that extend it
    data: int
    num_bytes: int

    @property
    def end(self) -> int:
        """Where its bytes end."""
        return self.data + self.num_bytes


def walk(tar: TarBytes, where: str) -> Iterator[Member]:
    """Yield the regular files of a tar, in order, until it ends; a damaged one is a `CorruptShardError`."""
    position, begin = 0, 0
    extended = _Extended()
    while True:
        block = tar.read(position, position + BLOCK)
        if len(block) < BLOCK or block == _NO_BLOCK:
            if block.strip(b"\0"):
                raise _broken(where, position, "it ends within a header")
            if extended.is_set:
                raise _broken(where, position, "it ends before the member that a header is about")
            return
        kind, data, num_bytes = block[156], position + BLOCK, _check_header(block, where, position)
        if kind in b"xXgLK":
            if num_bytes > _MOST_HEADER_BYTES:
                raise _broken(where, position, f"it has a header of {num_bytes} bytes")
            extended.add(kind, tar.read(data, data + num_bytes), num_bytes, where, position)
            position = data + _padded(num_bytes)
            continue
        name = extended.name or _name_of(block)
        if extended.num_bytes is not None:
            num_bytes = extended.num_bytes
        if kind in _WITHOUT_DATA:
            num_bytes = 0
        if not tar.reaches(data + num_bytes):
            raise _broken(where, position, f"it ends before the {num_bytes} bytes of {name[:200]!r} do")
        if kind == ord("S"):
            raise _broken(where, position, f"{name[:200]!r} is a sparse file, which penstock does not read")
        position = data + _padded(num_bytes)
        if kind in _REGULAR and not (kind == 0 and name.endswith("/")):
            yield Member(name.rstrip("/"), begin, data, num_bytes)
        begin, extended = position, _Extended()


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK) * BLOCK


def _broken(where: str, position: int, reason: str) -> CorruptShardError:
    return CorruptShardError(f"{where} is not a valid tar file, at byte {position}: {reason}", path=where)


class _Extended:
    """What the headers before a member say of it."""

    def __init__(self) -> None:
        self.is_set = False
        self.name: str | None = None
        self.num_bytes: int | None = None

    def add(self, kind: int, data: bytes, num_bytes: int, where: str, position: int) -> None:
        if len(data) != num_bytes:
            raise _broken(where, position, "it ends within a header")
        if kind == ord("g"):  # for all members that follow; what such headers say in practice is of no interest here
            return
        self.is_set = True
        if kind == ord("L"):
            self.name = _text(data)
        elif kind != ord("K"):
            self._add_records(data, where, position)

    def _add_records(self, data: bytes, where: str, position: int) -> None:
        """Take what pax says, in lines of "length key=value\\n"."""
        while data.strip(b"\0"):
            length_text, _, rest = data.partition(b" ")
            length = int(length_text) if length_text.isdigit() and len(length_text) < 10 else 0
            record = rest[: max(length - len(length_text) - 2, 0)]
            key, is_pair, value = record.partition(b"=")
            if not is_pair or length > len(data) or data[length - 1 : length] != b"\n":
                raise _broken(where, position, "it has a pax header that is not valid")
            if key == b"path":
                self.name = value.decode("utf-8", "surrogateescape")
            elif key == b"size":
                self.num_bytes = int(value) if value.isdigit() and len(value) < 20 else None
                if self.num_bytes is None:
                    raise _broken(where, position, "it has a pax header with a size that is not a number")
            elif key.startswith(b"GNU.sparse."):
                raise _broken(where, position, "a member is a sparse file, which penstock does not read")
            data = data[length:]


def _check_header(block: bytes, where: str, position: int) -> int:
    """Check that a block is a header, and give the size that it states."""
    try:
        stored = _number(block[148:156])
        num_bytes = _number(block[124:136])
    except ValueError as error:
        raise _broken(where, position, "no header begins there") from error
    # The sum of all bytes, with spaces in place of the sum itself. A half of Adler's is that sum, at the speed of C.
    blanked = block[:148] + b"        " + block[156:]
    if adler32(blanked) & 0xFFFF != (stored + 1) % _ADLER_BASE and stored != _signed_sum(blanked):
        raise _broken(where, position, "no header begins there: its checksum is wrong")
    return num_bytes


def _signed_sum(block: bytes) -> int:
    """Add bytes as old programs did, which took them for signed numbers."""
    return sum(block) - 256 * sum(byte > 127 for byte in block)


def _number(field: bytes) -> int:
    """Read a number that is not negative: digits to the base of 8 or, if it is large, bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.partition(b"\0")[0].strip() or b"0", 8) if field[0] not in b"-+" else int("")


def _name_of(block: bytes) -> str:
    name = _text(block[:100])
    if block[345] and block[257:265] != _GNU_MAGIC:  # where GNU tar has other things
        return f"{_text(block[345:500])}/{name}"
    return name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


_META = Bounded(r"\A__[^/]*__($|/)", NAME_CHARACTERS)
_MOST_EXTENSIONS = 1000


class TarSample(NamedTuple):
    """One sample: where its members are, by extension."""

    key: str
    begin: int  # of its first header
    members: dict[str, Member]


def split_name(name: str) -> tuple[str, str] | None:
    """Cut a name at the first dot after its last slash into key and extension; None: it belongs to no sample."""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot > base:
        return name[:dot], name[dot + 1 :].lower()
    # A hidden file: its key ends with its folder, if that has no dot either.
    is_ours = dot == base > 0 and "." not in name[name.rfind("/", 0, base - 1) + 1 : base]
    return (name[:base], name[dot + 1 :].lower()) if is_ours else None


def group_members(members: Iterable[Member], where: str) -> Iterator[TarSample]:
    """Yield samples: members that follow one another and have one key."""
    sample: TarSample | None = None
    for member in members:
        parts = None if member.name.startswith("__") and _META.search(member.name) else split_name(member.name)
        if parts is None:
            continue
        key, extension = parts
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = TarSample(key, member.begin, {})
        elif extension in sample.members or len(sample.members) >= _MOST_EXTENSIONS:
            raise CorruptShardError(
                f"{where} has two members {member.name[:200]!r} in one sample, or too many members", path=where
            )
        sample.members[extension] = member
    if sample is not None:
        yield sample
