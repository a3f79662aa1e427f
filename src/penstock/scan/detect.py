"""Which format files are of: their names say so, and where they do not, their first bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.formats.files import file_formats, get_file_format
from penstock.scan.patterns import split_suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_BYTES = 512  # a tar says what it is after 257
# Those of MosaicML Streaming's shards are called so already.
_OURS = {"csv": "csv_file", "tsv": "tsv_file"}


@dataclass(frozen=True, slots=True)
class FileKind:
    """The format of a file, and how it is compressed."""

    format: str
    compression: str | None = None


def format_of(name: str) -> str:
    """Return the registered name of a format that a user names, or say which there are."""
    ours = _OURS.get(name, name)
    if ours not in file_formats():
        raise ConfigError(f"unknown format {name!r}: use one of {', '.join(sorted([*_offered_formats(), 'mds']))}")
    return ours


def shown_format(name: str) -> str:
    """Return the name of a format as users say it."""
    return next((shown for shown, ours in _OURS.items() if ours == name), name)


def _offered_formats() -> list[str]:
    """Name the formats that users may name: one without an ending is for our own use."""
    return [shown_format(name) for name in file_formats() if get_file_format(name).suffixes]


def known_suffixes() -> tuple[str, ...]:
    """Return all endings of names that tell a format."""
    return tuple(suffix for name in file_formats() for suffix in get_file_format(name).suffixes)


def kind_of_name(name: str) -> FileKind | None:
    """Detect the format of a file by its name; None: the name says nothing."""
    rest, compression = split_suffix(name)
    found = [
        (len(suffix), format_name)
        for format_name in file_formats()
        for suffix in get_file_format(format_name).suffixes
        if rest.endswith(suffix)
    ]
    return FileKind(max(found)[1], compression) if found else None


def kind_of_bytes(first: bytes) -> FileKind | None:
    """Detect the format of a file by its first bytes; None: they say nothing."""
    for name in file_formats():
        form = get_file_format(name)
        if form.magic and first[form.magic_at :].startswith(form.magic):
            return FileKind(name)
    return None


def kinds_of(
    names: Sequence[str], read_first: Callable[[str], bytes], wanted: str | None, where: str
) -> list[FileKind]:
    """Detect the format of each of some files, which must all be of one.

    With `wanted` that is the format, and names say only how files are compressed. Without, it is what names say; files
    whose names say nothing are asked for their first bytes.
    """
    if wanted is not None:
        return [FileKind(wanted, split_suffix(name)[1]) for name in names]
    kinds = []
    for name in names:
        kind = kind_of_name(name)
        if kind is None:
            kind = kind_of_bytes(read_first(name))
        if kind is None:
            raise ConfigError(
                f"cannot tell the format of {name} in {where}, neither by its name nor by its first bytes: pass"
                f" format=, one of {', '.join(_offered_formats())}"
            )
        kinds.append(kind)
    _check_one_format(names, kinds, where)
    return kinds


def _check_one_format(names: Sequence[str], kinds: Sequence[FileKind], where: str) -> None:
    examples: dict[str, str] = {}
    for name, kind in zip(names, kinds, strict=True):
        examples.setdefault(kind.format, name)
    if len(examples) > 1:
        listed = ", ".join(f"{name} ({shown_format(kind)})" for kind, name in sorted(examples.items()))
        raise ConfigError(
            f"{where} holds files of several formats: {listed}. Choose one with format= or a glob, or make a"
            " stream for each"
        )
