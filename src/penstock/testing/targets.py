"""What every kind of dataset must do where it is written, also when its writer is killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import OutputExistsError, PenstockError
from penstock.failpoints import TARGET_POINTS, VARIABLE
from penstock.storage.base import url_scheme

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OLD, NEW = range(20), range(100, 150)


class TargetContract:
    """A dataset appears as a whole or not at all. A subclass, which pickles, says how one is written and read."""

    can_replace = True  # whether a dataset may be written where there is one
    keeps_replaced = True  # whether that one stays until the new one is whole

    def make_place(self, folder: Path) -> str:
        """Return a path or URL where nothing is yet; `folder` is an empty one of the test's own."""
        return str(folder / "set")

    def write(self, place: str, numbers: Iterable[int], *, replaces: bool) -> None:
        """Write a dataset of several files that holds these numbers; `replaces` says that one may be there."""
        raise NotImplementedError

    def read(self, place: str) -> list[int]:
        """Return the numbers of a dataset in order; it is an error of penstock's if there is none."""
        raise NotImplementedError

    def test_a_dataset_is_there_when_it_is_written(self, tmp_path: Path) -> None:
        """All of it is there, and nothing beside it; another one needs to be told that it replaces this one."""
        place = self.make_place(tmp_path)
        self.write(place, OLD, replaces=False)
        assert self.read(place) == list(OLD)
        _check_nothing_else(place)
        refused: list[OutputExistsError] = []
        try:
            self.write(place, NEW, replaces=False)
        except OutputExistsError as error:
            refused.append(error)
        assert refused
        assert self.read(place) == list(OLD)

    def test_a_writer_that_fails_changes_nothing(self, tmp_path: Path) -> None:
        """Neither where nothing was, nor where a dataset was."""
        place = self.make_place(tmp_path)
        for before in (None, list(OLD)):
            if before is not None:
                self.write(place, before, replaces=True)
            if before is None or (self.can_replace and self.keeps_replaced):
                with suppress(ZeroDivisionError):
                    self.write(place, _broken(), replaces=before is not None)
            assert self._find(place) == before

    def test_a_writer_that_is_killed_leaves_all_or_nothing(self, tmp_path: Path) -> None:
        """The next one needs no cleaning by hand, and leaves what one that is alone leaves."""
        for number, point in enumerate(TARGET_POINTS):
            (folder := tmp_path / str(number)).mkdir()
            place = self.make_place(folder)
            done = self._write_and_die(place, point, replaces=False)
            assert self._find(place) == (list(NEW) if done else None), point
            with suppress(*([] if self.can_replace or not done else [OutputExistsError])):
                self.write(place, OLD, replaces=True)
            assert self.read(place) == list(OLD if not done or self.can_replace else NEW)
            _check_nothing_else(place)

    def test_a_writer_that_is_killed_while_it_replaces_leaves_one_of_both(self, tmp_path: Path) -> None:
        """Readers find the old dataset or the new one; none only where the old one has to go first."""
        for number, point in enumerate(TARGET_POINTS if self.can_replace else ()):
            (folder := tmp_path / str(number)).mkdir()
            place = self.make_place(folder)
            self.write(place, OLD, replaces=False)
            done = self._write_and_die(place, point, replaces=True)
            is_gone = not self.keeps_replaced and not done
            assert self._find(place) == (list(NEW) if done else None if is_gone else list(OLD)), point
            self.write(place, NEW, replaces=True)
            assert self.read(place) == list(NEW)
            _check_nothing_else(place)

    def _find(self, place: str) -> list[int] | None:
        try:
            return self.read(place)
        except PenstockError:
            return None

    def _write_and_die(self, place: str, point: str, *, replaces: bool) -> bool:
        """Write in a process that is killed at a point, if it comes there; return whether all was written by then."""
        context = get_context("forkserver")
        context.set_forkserver_preload([type(self).__module__])
        process = context.Process(target=_write, args=(self, place, point, replaces))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode == 0 or point == "target.published"


def _write(contract: TargetContract, place: str, point: str, replaces: bool) -> None:
    os.environ[VARIABLE] = point
    contract.write(place, NEW, replaces=replaces)


def _broken() -> Iterator[int]:
    yield from NEW
    raise ZeroDivisionError


def _check_nothing_else(place: str) -> None:
    if url_scheme(place) is None:
        folder = Path(place)
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]
        assert not list(folder.rglob(".*"))
