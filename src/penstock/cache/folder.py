"""One cache directory as the fetcher knows it: which files are ours, how large they are, and how one is evicted."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.cache.bring import has_size
from penstock.cache.failpoints import reach
from penstock.cache.item import Item, dump_item, item_of_shard, load_item
from penstock.cache.layout import (
    PART_SUFFIX,
    control_folder,
    fetched_log,
    pin_path,
    stripe_of,
    stripe_of_part,
)
from penstock.cache.lock import Descriptor, try_lock
from penstock.cache.policy import Shelf
from penstock.errors import BadIndexError
from penstock.index.mosaic_json import INDEX_NAME, parse_index
from penstock.index.paths import is_plain_name, resolve_inside

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.cache.lock import Stripes

# A shard that was just handed over is not evicted before its reader has locked it, unless the reader died.
_HAND_OVER_S = 5.0


class Folder:
    """Not safe for threads by itself: `Room` calls it under its lock."""

    def __init__(self, directory: Path, stripes: Stripes) -> None:
        self.directory = directory
        self.shelf = Shelf()
        self.reserved_bytes = 0  # of items on their way, as they will stay
        self.temporary_bytes = 0  # what they need besides, until they are there
        self.is_scanned = False
        self._stripes = stripes
        self._items: dict[str, Item] = {}
        self._logged: set[str] = set()
        self._handed_over: dict[str, float] = {}
        self._index_stamp: tuple[int, int] | None = None

    # --- What is there --------------------------------------------------------------------------------------

    def scan(self) -> None:
        """Find the files of the index, and what was fetched besides, wherever they came from."""
        self.is_scanned = True
        for item in (*self._indexed(), *self._remembered()):
            self._items.setdefault(item.name, item)
        sizes = self._list_files()
        for name, item in self._items.items():
            num_bytes = sum(sizes.get(file, (0, 0.0))[0] for file in item.names)
            if num_bytes:
                last_use = max(sizes[file][1] for file in item.names if file in sizes)
                self.shelf.put(name, num_bytes, last_use)
            else:
                self.shelf.drop(name)

    def add(self, item: Item) -> None:
        """Count an item that is there now."""
        if item.name == INDEX_NAME:
            self.is_scanned = False  # a new index may know of files that lie here already
            return
        self._items[item.name] = item
        num_bytes = self._measure(item)
        if num_bytes:
            self.shelf.put(item.name, num_bytes, time.time())
        if item.is_object or not (self.directory / INDEX_NAME).exists():
            self._remember(item)  # nothing else will tell the next fetcher that it is ours

    def hand_over(self, name: str) -> None:
        """Keep an item until its reader says that it has locked it."""
        self._handed_over[name] = time.monotonic() + _HAND_OVER_S

    def taken(self, name: str) -> None:
        """Trust the reader's own lock from now on."""
        self._handed_over.pop(name, None)

    def last_use(self, name: str) -> float | None:
        """Give when an item was last leased, or None if none of its files is left."""
        for file in self._items[name].names:
            with suppress(OSError):
                return self._path(file).lstat().st_atime
        return None

    def _measure(self, item: Item) -> int:
        total = 0
        for file in item.names:
            with suppress(OSError):
                total += self._path(file).lstat().st_size
        return total

    def _list_files(self) -> dict[str, tuple[int, float]]:
        """Give size and time of use of every plain file, by its name below the directory."""
        found: dict[str, tuple[int, float]] = {}
        control = control_folder(self.directory)
        root = os.fspath(self.directory)
        pending = [root]
        while pending:
            folder = pending.pop()
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path != os.fspath(control):
                            pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            found[os.path.relpath(entry.path, root)] = status.st_size, status.st_atime
        return found

    def _indexed(self) -> list[Item]:
        path = self.directory / INDEX_NAME
        try:
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_size
            if stamp == self._index_stamp:
                return []
            index = parse_index(path.read_bytes(), str(path))
        except (OSError, BadIndexError):  # whoever reads the dataset gets that error; here it only means "none of ours"
            return []
        self._index_stamp = stamp
        return [item_of_shard(shard) for shard in index.shards]

    def _remembered(self) -> list[Item]:
        items = []
        with suppress(FileNotFoundError, NotADirectoryError):
            for line in fetched_log(self.directory).read_bytes().splitlines():
                with suppress(ValueError, TypeError):  # a line that a crash cut short
                    item = load_item(json.loads(line))
                    if all(is_plain_name(name) for name in item.names):
                        items.append(item)
                        self._logged.add(item.name)
        return items

    def _remember(self, item: Item) -> None:
        if item.name in self._logged:
            return
        self._logged.add(item.name)
        path = fetched_log(self.directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:  # one write, so that lines of several processes do not mix
            file.write(json.dumps(dump_item(item)).encode() + b"\n")

    def _path(self, name: str) -> Path:
        return resolve_inside(self.directory, name)

    # --- Making room ----------------------------------------------------------------------------------------

    def evict(self, name: str) -> bool:
        """Delete an item, unless somebody reads it, waits to read it, pinned it, or is writing it."""
        if self._handed_over.get(name, 0.0) > time.monotonic() or pin_path(self.directory, name).exists():
            return False
        stripe = self._stripes.try_take(self.directory, stripe_of(name))
        if stripe is None:
            return False
        try:
            return self._evict_locked(name)
        finally:
            self._stripes.leave(stripe)

    def _evict_locked(self, name: str) -> bool:
        first = self._path(name)
        lock: Descriptor | None = None
        try:
            with suppress(FileNotFoundError):
                lock = Descriptor(os.open(first, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
                if not try_lock(lock.number, fcntl.LOCK_EX, first):
                    return False
            reach("evict.before")
            for number, file in enumerate(self._items[name].names):
                if number == 1:
                    reach("evict.between_parts")
                self._path(file).unlink(missing_ok=True)
            reach("evict.after")
        finally:
            if lock is not None:
                lock.close()
        self.shelf.drop(name)
        self._handed_over.pop(name, None)
        return True

    def sweep(self) -> None:
        """Remove what killed fetchers left on its way, where no living one holds the lock."""
        for path in control_folder(self.directory).glob(f"*{PART_SUFFIX}"):
            stripe = stripe_of_part(path)
            taken = None if stripe is None else self._stripes.try_take(self.directory, stripe)
            if taken is not None:
                path.unlink(missing_ok=True)
                self._stripes.leave(taken)


def is_complete(directory: Path, item: Item) -> bool:
    """Tell whether all files of an item are there in their right sizes."""
    return all(has_size(resolve_inside(directory, part.raw.name), part.raw.num_bytes) for part in item.parts)
