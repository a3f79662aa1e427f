"""One cache directory: whose it is, which files in it are ours, how large they are, and how one is evicted."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

from penstock.cachedir.layout import control_folder, editions_folder, pin_path, plain_name, stripe_of_part
from penstock.cachedir.ledger import Ledger
from penstock.cachedir.lock import open_locked
from penstock.cachedir.presence import status_if_unchanged
from penstock.errors import AccessDeniedError, CacheError, StoreError
from penstock.failpoints import failpoint
from penstock.files import PART_SUFFIX, make_folders, os_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.cachedir.ledger import Record
    from penstock.cachedir.lock import Stripes

T = TypeVar("T")

_TRIES = 5


def prepare_folder(directory: Path, *, is_private: bool) -> list[str]:
    """Make a cache directory ready for use, and give warnings to show about it.

    Below the user's own cache no other user may look. A folder that the user names is left as it is, but what is ours
    in it must be ours: a link or a folder of another user there could make us write or delete anywhere.
    """

    def prepare() -> list[str]:
        make_folders(directory, 0o700 if is_private else 0o777)
        warnings = describe_risks(directory, directory.stat(), os.getuid())
        control = control_folder(directory)
        with suppress(FileExistsError):
            control.mkdir(mode=0o700)
        check_control(directory)
        if stat.S_IMODE(control.lstat().st_mode) & 0o077:
            control.chmod(0o700)
        return warnings

    try:
        return beside_clearing(directory, prepare)
    except AccessDeniedError as error:
        raise _not_writable(directory, error) from error
    except StoreError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EROFS:
            raise _not_writable(directory, error) from error
        raise


def _not_writable(directory: Path, error: StoreError) -> AccessDeniedError:
    reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error.message
    return AccessDeniedError(
        f"cannot write to the cache folder {directory} ({reason}): choose another one with `local`, or with the"
        " environment variable PENSTOCK_CACHE_DIR",
        path=str(directory),
    )


def beside_clearing(directory: Path, attempt: Callable[[], T]) -> T:
    """Do something in a directory, anew if the cache was cleared at that moment and removed what was empty."""
    with os_errors(directory):
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):
                return attempt()
        return attempt()


def check_control(directory: Path) -> None:
    """Raise if what lies under the name of our own folder in a cache directory is not what this user made there."""
    if not has_own_control(directory):
        control = control_folder(directory)
        raise CacheError(
            f"{control} is a link, is not a folder, belongs to another user, or holds files that penstock did not"
            " put there: remove it, or choose another `local`",
            path=str(control),
        )


def has_own_control(directory: Path) -> bool:
    """Return whether a folder is a cache directory of this user; raises FileNotFoundError if it is none at all.

    Folders are copied and unpacked from anywhere, with whatever lies in them. So nothing that we write to, delete from
    or wait for may be a link, a pipe or another user's.
    """
    control, editions = control_folder(directory), editions_folder(directory)
    if not _is_own(control.lstat()):
        return False
    return _holds_own(control) and _holds_own(editions) and all(map(_holds_own, _entries(editions)))


def _holds_own(folder: Path) -> bool:
    """Return whether all that lies in a folder, if there is one, is a plain file or a folder of this user."""
    for path in _entries(folder):
        with suppress(FileNotFoundError):  # it was being brought
            if not _is_own(path.lstat(), can_be_file=True):
                return False
    return True


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_own(status: os.stat_result, *, can_be_file: bool = False) -> bool:
    is_right_kind = stat.S_ISDIR(status.st_mode) or (can_be_file and stat.S_ISREG(status.st_mode))
    return is_right_kind and status.st_uid == os.getuid()


def describe_risks(directory: Path, status: os.stat_result, user: int) -> list[str]:
    """Describe who else could change what lies in a folder."""
    if status.st_uid not in (0, user):
        return [
            (
                f"{directory} belongs to another user (id {status.st_uid}), who can change what you read from it: use"
                " a folder of your own as `local`, or set validate_hash"
            )
        ]
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return [
            (
                f"everybody on this machine can change the files in {directory}: run `chmod o-w` on it, or set"
                " validate_hash"
            )
        ]
    return []


def uncounted_bytes(directory: Path) -> int:
    """Return the bytes of editions and the ledger of a directory, which no limit counts."""
    total = 0
    for path in (*control_folder(directory).glob("*"), *editions_folder(directory).glob("*/*")):
        with suppress(OSError):  # it was removed at this moment
            total += path.stat().st_size if path.is_file() else 0
    return total


class Folder:
    """What is ours in a directory. Its ledger is safe for threads; evictions are done by one thread at a time."""

    def __init__(self, directory: Path, stripes: Stripes) -> None:
        self.directory = directory
        self.ledger = Ledger(directory)
        self._stripes = stripes

    def scan(self) -> list[tuple[Record, float]]:
        """Return what was brought here, by this fetcher or an earlier one, and still is as it was left; and its use.

        What others put here, or changed, is theirs: it is neither counted nor evicted.
        """
        found = []
        for record in self.ledger.all():
            if record.is_index:
                continue  # it is small, and always wanted
            used_s = self._last_use(record)
            if used_s is None:
                self._forget(record)
            else:
                found.append((record, used_s))
        return found

    def last_use(self, name: str) -> float | None:
        """Return when a copy was last leased, or None if it is gone, or is no longer ours."""
        record = self.ledger.get(name)
        return None if record is None else self._last_use(record)

    def _last_use(self, record: Record) -> float | None:
        status = status_if_unchanged(self.directory, record.files[0])
        return None if status is None else status.st_atime

    def _forget(self, record: Record) -> None:
        """Drop a record whose files are gone or changed, unless they are just being brought."""
        held = self._stripes.try_take(self.directory, plain_name(record.name))
        if held is not None:
            with held:
                if self.ledger.get(record.name) == record and self._last_use(record) is None:
                    self.ledger.drop(record.name)

    def evict(self, name: str) -> bool:
        """Delete a copy, unless it is being read, pinned or written."""
        plain = plain_name(name)
        if pin_path(self.directory, plain).exists():
            return False
        held = self._stripes.try_take(self.directory, plain)
        if held is None:
            return False
        with held:
            return self.evict_held(name)

    def evict_held(self, name: str) -> bool:
        """Delete a copy that is not read, its stripe being held. Return True if the name is free of it."""
        record = self.ledger.get(name)
        if record is not None:
            if not delete_as_left(self.directory, record):
                return False
            self.ledger.drop(name)
        return True

    def sweep(self) -> None:
        """Remove files that killed fetchers left half fetched, where no living one holds the lock."""
        for path in control_folder(self.directory).glob(f"*{PART_SUFFIX}"):
            stripe = stripe_of_part(path)
            held = None if stripe is None else self._stripes.try_stripe(self.directory, stripe)
            if held is not None:
                path.unlink(missing_ok=True)
                self._stripes.leave_stripe(held)


def delete_as_left(directory: Path, record: Record) -> bool:
    """Delete the files of a record that are as they were left; tell whether none of them is in use.

    The first one is locked, and goes first: its name stands for all. Files that were changed meanwhile are not ours.
    """
    with ExitStack() as held:
        with suppress(FileNotFoundError):
            lock = open_locked(directory / record.name)
            if lock is None:
                return False
            held.enter_context(lock)
        failpoint("evict.before")
        for number, file in enumerate(record.files):
            if number == 1:
                failpoint("evict.between_parts")
            if status_if_unchanged(directory, file) is not None:
                with suppress(FileNotFoundError):
                    (directory / file.name).unlink()
        failpoint("evict.after")
    return True
