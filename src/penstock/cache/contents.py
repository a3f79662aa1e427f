"""What lies in cache directories: which copies of which dataset, how large, since when, and who has it open."""

from __future__ import annotations

import enum
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.editions import editions_in
from penstock.cachedir.folder import check_control, has_own_control
from penstock.cachedir.layout import control_folder, pin_path, place_of, plain_name, user_cache_dir
from penstock.cachedir.ledger import Ledger
from penstock.cachedir.lock import pids_holding
from penstock.cachedir.presence import status_if_unchanged
from penstock.cachedir.written import find_written
from penstock.errors import ObjectNotFoundError
from penstock.files import os_errors
from penstock.storage.base import url_scheme
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.cachedir.editions import Edition
    from penstock.cachedir.ledger import Record
    from penstock.cachedir.written import WrittenFolder


# --- For users ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedEdition:
    """One version of a dataset, as its index was when a job opened it."""

    opened: float  # when it was opened last, as seconds since 1970
    is_newest: bool
    is_open: bool  # some process reads it
    processes: tuple[int, ...]  # their ids, where the system tells
    num_bytes: int  # of copies that were brought for it


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedDataset:
    """What one cache directory holds of one dataset. Times are seconds since 1970."""

    source: str  # where it comes from, without secrets
    directory: str
    num_shards: int  # other objects that were fetched are counted among them
    num_files: int
    num_bytes: int
    pinned_bytes: int
    outdated_bytes: int  # copies that only an earlier edition has, which no job reads: the first to go
    since: float | None  # when the oldest copy came
    last_used: float | None  # when any copy was last read
    editions: tuple[CachedEdition, ...]  # the newest first

    @property
    def is_open(self) -> bool:
        """Whether some process reads it."""
        return any(edition.is_open for edition in self.editions)

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes that read it, where the system tells."""
        return tuple(sorted({pid for edition in self.editions for pid in edition.processes}))


def list_cache(folders: Sequence[str | os.PathLike[str]] | None = None) -> tuple[CachedDataset, ...]:
    """List what is cached, by dataset and directory.

    Args:
        folders: Folders that you passed as `local`, or folders above them; by default your user cache.
    """
    found: list[CachedDataset] = []
    for directory in find_directories(folders):
        contents = read_contents(directory)
        opened = [edition.edition for edition in contents.editions if edition.is_open]
        found += describe(contents, {edition.name: pids_holding(edition.table_path) for edition in opened})
    found += map(describe_written, written_below(folders))
    return tuple(sorted(found, key=lambda dataset: (dataset.source, dataset.directory)))


# --- Which directories there are ----------------------------------------------------------------------------


def find_directories(folders: Sequence[str | os.PathLike[str]] | None = None) -> list[Path]:
    """Find the cache directories of this user, in the folders named or, if none is, in the user's own cache.

    A split lies in a folder of its own, so folders below are looked at too, but no link is followed.
    """
    if folders is None:
        return sorted(_below(Path(os.path.realpath(user_cache_dir()))))  # as the fetcher writes it, without links
    found: set[Path] = set()
    for folder in folders:
        root = Path(os.path.realpath(Path(folder).expanduser()))
        with os_errors(root):
            if not root.is_dir():
                raise ObjectNotFoundError(
                    f"{root} is not a folder: name a folder that you passed as `local`", path=str(root)
                )
            if os.path.lexists(control_folder(root)):
                check_control(root)
            found |= set(_below(root))
    return sorted(found)


def written_below(folders: Sequence[str | os.PathLike[str]] | None = None) -> list[WrittenFolder]:
    """Find what was written of sources in the user's own cache, or what of it lies in the folders named."""
    found = find_written()
    if folders is None:
        return found
    roots = [Path(os.path.realpath(Path(folder).expanduser())) for folder in folders]
    places = [Path(os.path.realpath(written.directory)) for written in found]
    return [
        written
        for written, place in zip(found, places, strict=True)
        if any(root == place or root in place.parents for root in roots)
    ]


def is_below_own_cache(directory: Path) -> bool:
    """Return whether a directory was made by us, below the user's own cache: then it goes when it is empty."""
    return Path(os.path.realpath(user_cache_dir())) in directory.parents


def is_at(source: str, url: str) -> bool:
    """Return whether a dataset comes from a URL or path, or from below it, as its splits do."""
    source, place = _as_path(source), _as_path(place_of(url))
    if source == place or source.startswith(place.rstrip("/") + "/"):
        return True
    is_elsewhere = url_scheme(place) is not None and source.startswith(f"{place} at ")  # another endpoint
    return is_elsewhere or source == url


def _below(root: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(root):
        directory = Path(folder)
        if control_folder(directory).name in names:
            try:
                if has_own_control(directory):
                    yield directory
            except FileNotFoundError:
                continue  # it was cleared at this moment
        names[:] = [name for name in names if not name.startswith(".")]


def _as_path(place: str) -> str:
    """Return a folder of this machine in one spelling."""
    return str(LocalStore.from_url(place).root) if url_scheme(place) == "file" else place


# --- As it is found -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedCopy:
    """The files of a shard, or of another object, that were brought and still are as they were left."""

    directory: Path
    record: Record
    num_files: int
    num_bytes: int
    since_s: float
    last_used_s: float
    is_pinned: bool

    @property
    def source(self) -> str:
        """Where it comes from."""
        return self.record.url

    @property
    def is_apart(self) -> bool:
        """Whether it lies in the folder of its edition, because its plain name is taken."""
        return plain_name(self.record.name) != self.record.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEdition:
    """An edition as it was found."""

    edition: Edition
    source: str | None  # None: it was left unfinished
    opened_s: float
    is_open: bool
    is_newest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What one directory holds."""

    directory: Path
    copies: tuple[CachedCopy, ...]
    index: CachedCopy | None  # the index that lies beside them for other readers
    editions: tuple[FoundEdition, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of all copies, as a cache limit counts them."""
        return sum(copy.num_bytes for copy in self.copies)


class Standing(enum.Enum):
    """What a copy is worth."""

    NEEDED = enum.auto()  # a job reads an edition that was replaced since: maybe it cannot be fetched again
    ORDINARY = enum.auto()
    OUTDATED = enum.auto()  # only an earlier edition has it, and no job reads that


def read_contents(directory: Path) -> Contents:
    """Look at a cache directory. What is not as we left it is not ours, and is left out."""
    with os_errors(directory):
        copies = [copy for record in Ledger(directory).all() if (copy := _find(directory, record)) is not None]
        editions = [
            FoundEdition(
                edition=edition,
                source=None if (about := edition.about()) is None else about.place,
                opened_s=edition.opened_s(),
                is_open=edition.is_open(),
            )
            for edition in editions_in(directory)
        ]
    return Contents(
        directory=directory,
        copies=tuple(copy for copy in copies if not copy.record.is_index),
        index=next((copy for copy in copies if copy.record.is_index), None),
        editions=mark_newest(editions),
    )


def _find(directory: Path, record: Record) -> CachedCopy | None:
    status = status_if_unchanged(directory, record.files[0])  # the first file stands for all
    if status is None:
        return None
    files = [file for file in record.files if status_if_unchanged(directory, file) is not None]
    return CachedCopy(
        directory=directory,
        record=record,
        num_files=len(files),
        num_bytes=sum(file.num_bytes for file in files),
        since_s=status.st_mtime,
        last_used_s=status.st_atime,
        is_pinned=pin_path(directory, plain_name(record.name)).exists(),
    )


# --- What it means ------------------------------------------------------------------------------------------


def mark_newest(editions: Iterable[FoundEdition]) -> tuple[FoundEdition, ...]:
    """Mark the edition of each source that was opened last, and put the newest first."""
    marked: list[FoundEdition] = []
    seen: set[str | None] = {None}
    for found in sorted(editions, key=lambda found: (-found.opened_s, found.edition.name)):
        marked.append(replace(found, is_newest=found.source not in seen))
        seen.add(found.source)
    return tuple(marked)


def standings(contents: Contents) -> list[Standing]:
    """Return what each copy is worth, in their order."""
    editions = {found.edition.name: found for found in contents.editions}
    return [_standing(copy, editions.get(copy.record.edition)) for copy in contents.copies]


def _standing(copy: CachedCopy, edition: FoundEdition | None) -> Standing:
    if edition is not None and edition.is_open and not edition.is_newest:
        return Standing.NEEDED
    if copy.is_apart and (edition is None or not (edition.is_open or edition.is_newest)):
        return Standing.OUTDATED
    return Standing.ORDINARY


def describe(contents: Contents, processes: Mapping[str, tuple[int, ...]]) -> list[CachedDataset]:
    """Sum up what a directory holds, by dataset; `processes` tells who has which edition open."""
    copies: defaultdict[str, list[CachedCopy]] = defaultdict(list)
    outdated: defaultdict[str, int] = defaultdict(int)
    by_edition: defaultdict[str, int] = defaultdict(int)
    for copy, standing in zip(contents.copies, standings(contents), strict=True):
        copies[copy.record.url].append(copy)
        by_edition[copy.record.edition] += copy.num_bytes
        if standing is Standing.OUTDATED:
            outdated[copy.record.url] += copy.num_bytes
    sources = {*copies, *(found.source for found in contents.editions if found.source is not None)}
    return [
        CachedDataset(
            source=source,
            directory=str(contents.directory),
            num_shards=len(copies[source]),
            num_files=sum(copy.num_files for copy in copies[source]),
            num_bytes=sum(copy.num_bytes for copy in copies[source]),
            pinned_bytes=sum(copy.num_bytes for copy in copies[source] if copy.is_pinned),
            outdated_bytes=outdated[source],
            since=min((copy.since_s for copy in copies[source]), default=None),
            last_used=max((copy.last_used_s for copy in copies[source]), default=None),
            editions=tuple(
                CachedEdition(
                    opened=found.opened_s,
                    is_newest=found.is_newest,
                    is_open=found.is_open,
                    processes=processes.get(found.edition.name, ()),
                    num_bytes=by_edition[found.edition.name],
                )
                for found in contents.editions
                if found.source == source
            ),
        )
        for source in sorted(sources)
    ]


def describe_written(written: WrittenFolder) -> CachedDataset:
    """Describe what was written of a source as a dataset, each file a shard."""
    is_in_use = written.is_in_use
    return CachedDataset(
        source=written.source,
        directory=str(written.directory),
        num_shards=written.num_files,
        num_files=written.num_files,
        num_bytes=written.num_bytes,
        pinned_bytes=0,
        outdated_bytes=0,
        since=written.since_s,
        last_used=written.last_used_s,
        editions=(
            CachedEdition(
                opened=written.last_used_s,
                is_newest=True,
                is_open=is_in_use,
                processes=written.processes if is_in_use else (),
                num_bytes=written.num_bytes,
            ),
        ),
    )
