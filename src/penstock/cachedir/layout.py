"""Names on disk: where a cache lies, and what penstock keeps in it besides the shards."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from penstock.files import PART_SUFFIX
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.storage.base import shown_url, url_scheme

NUM_STRIPES = 64
_CONTROL = ".penstock"
_READABLE = Bounded(r"[^A-Za-z0-9._-]+", NAME_CHARACTERS)
_APART = Bounded(rf"\A{_CONTROL.replace('.', '[.]')}/editions/[0-9a-f]+/files/", NAME_CHARACTERS)


def default_directory(url: str, split: str | None) -> Path:
    """Return the folder that caches a dataset when the user names none: the same for the same URL, in every job.

    It carries no secret of the URL: user names, passwords and queries are left out.
    """
    place = place_of(url)
    if split:
        place = f"{place}/{split}"
    tail = _READABLE.sub("-", place)[-60:].strip("-.") or "data"
    return user_cache_dir() / f"{tail}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def user_cache_dir() -> Path:
    """Return the folder under which default caches lie."""
    ours = os.environ.get("PENSTOCK_CACHE_DIR")
    if ours:
        return Path(ours).expanduser().absolute()  # the fetcher stands elsewhere
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "penstock"


def place_of(url: str) -> str:
    """Return a URL or path in one spelling, without user names, passwords and queries."""
    if url_scheme(url) is None:
        return os.path.abspath(os.path.expanduser(url))  # noqa: PTH100, PTH111  links stay as the user wrote them
    return shown_url(url).rstrip("/")


def control_folder(directory: Path) -> Path:
    """Return the folder of locks, pins and files that are being fetched."""
    return directory / _CONTROL


def stripe_of(name: str) -> int:
    """Return the number of the lock file that a shard shares with a fixed part of all others."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % NUM_STRIPES


def stripe_name(stripe: int) -> str:
    """Return the name of a lock file. Lock files are never deleted: a lock on a deleted file excludes no process."""
    return f"stripe-{stripe:02}.lock"


def new_part_path(directory: Path, stripe: int) -> Path:
    """Return a fresh name for a file to fetch to; it says whose lock must be free before others may remove it."""
    return control_folder(directory) / f"{stripe:02}-{os.urandom(8).hex()}{PART_SUFFIX}"


def stripe_of_part(path: Path) -> int | None:
    """Return the stripe of a file that is being fetched, or None if the name is not one of ours."""
    digits = path.name.lstrip(".").partition("-")[0]
    return int(digits) if digits.isdigit() and int(digits) < NUM_STRIPES else None


def pin_path(directory: Path, name: str) -> Path:
    """Return the marker that keeps a shard from being evicted, in this job and in later ones."""
    return control_folder(directory) / "pins" / hashlib.sha256(name.encode()).hexdigest()[:32]


def ledger_path(directory: Path) -> Path:
    """Return the list of what we brought: nothing else is ever replaced or evicted."""
    return control_folder(directory) / "ledger.jsonl"


def boots_path(directory: Path) -> Path:
    """Return the list of boots in which something was brought."""
    return control_folder(directory) / "boots.jsonl"


def editions_folder(directory: Path) -> Path:
    """Return the folder of what belongs to one edition of a dataset each."""
    return control_folder(directory) / "editions"


def apart_name(edition: str, name: str) -> str:
    """Return the name of a copy that an edition has for itself, because its plain name is taken."""
    return f"{_CONTROL}/editions/{edition}/files/{name}"


def plain_name(name: str) -> str:
    """Return the plain name of a copy, wherever it lies."""
    match = _APART.search(name)
    return name[match.end() :] if match else name
