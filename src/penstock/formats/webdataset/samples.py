"""Members of a tar → samples, as WebDataset's own library groups them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import CorruptShardError
from penstock.outside_text import NAME_CHARACTERS, Bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.formats.webdataset.headers import Member

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
