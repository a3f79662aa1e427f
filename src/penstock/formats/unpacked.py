"""Raw copies of compressed files, kept in a folder for this and later readers: which of them count, and making them.

A copy counts only if it was made from the packed file that lies there now. Beside each lies a small hidden file that
says what it was made from and which file it is itself; both by size, time and inode. It is written before the copy gets
its name: whoever is killed in between leaves a note about a file that is not there, which fits none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.codecs.unpack import map_file, unpack_into
from penstock.errors import ObjectNotFoundError, StoreError
from penstock.files import appearing, read_file, translated

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from penstock.formats.base import ShardBytes

_LONGEST_NOTE = 4096


def note_path(copy: Path) -> Path:
    """Give the hidden file that says what a copy was made from."""
    return copy.with_name(f".{copy.name}.made-from")


def describe_file(path: Path) -> list[int]:
    """Say which file lies here, so that another one, also of the same name and size, is told apart."""
    with translated(path):
        status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def is_current(copy: Path, packed: Path) -> bool:
    """Tell whether a copy is what somebody made of the packed file that lies there now."""
    note = _read_note(copy)
    return note is not None and note == {"packed": describe_file(packed), "copy": describe_file(copy)}


def is_outdated(raw: Path, packed: Path) -> bool:
    """Tell whether a raw file beside its packed one is a copy that was made of an earlier one.

    Files without a note were put there by others, who know what they do.
    """
    try:
        return _read_note(raw) is not None and not is_current(raw, packed)
    except ObjectNotFoundError:
        return False  # the raw file is all there is


def make_copy(
    copy: Path, data: Buffer, compression: str, num_bytes: int, *, packed: Path, made_from: list[int]
) -> ShardBytes:
    """Unpack the bytes of a packed file to where later readers find them, and map the copy.

    `made_from` describes the packed file as it was before it was read.
    """
    with translated(copy), appearing(copy, flush=True) as part:
        unpack_into(data, compression, num_bytes, part, str(packed))
        note = {"packed": made_from, "copy": describe_file(part)}
        with appearing(note_path(copy)) as note_part:
            note_part.write_text(json.dumps(note))
        return map_file(part)


def _read_note(copy: Path) -> Any:
    try:
        data = read_file(note_path(copy))
        return json.loads(data) if len(data) <= _LONGEST_NOTE else None
    except (StoreError, ValueError):
        return None
