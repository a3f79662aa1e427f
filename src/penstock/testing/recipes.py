"""What every recipe must do, as a test class that authors of recipes inherit; and tiny raw files of the usual kinds."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.compress import reading_codec
from penstock.data.dataset import StreamingDataset
from penstock.errors import PenstockError
from penstock.index.paths import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from penstock.recipes.base import Recipe
    from penstock.types import Sample


def write_lines(path: Path, rows: Iterable[Mapping[str, Any] | str]) -> Path:
    """Write texts, or values as JSON, a line each; `.gz` and `.zst` are compressed."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    data = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    codec = {".gz": "gz", ".zst": "zstd"}.get(path.suffix)
    path.write_bytes(data if codec is None else reading_codec(codec).compress(data))
    return path


class RecipeContract:
    """A subclass says how to make a tiny raw layout of at least three rows a split, and what becomes of its rows.

    Attributes:
        recipe: The recipe.
        flags: Flags beside `in_root` and `out_root`.
        broken: Bytes that are no row: a file of the layout with these is refused.
    """

    recipe: Recipe
    flags: Mapping[str, Any] = {}
    broken = b"\xff\x00 no row"

    def make_raw(self, folder: Path) -> Mapping[str, Sequence[Sample]]:
        """Make the raw files, and return the rows of each split in the order in which they are to be written."""
        raise NotImplementedError

    def convert(self, folder: Path, out: Path, **flags: Any) -> dict[str, list[Sample]]:
        """Convert, and return the rows of each split."""
        given = {
            "size_limit": 300,
            "in_root": folder,
            "out_root": out,
            "progress_bar": 0,
            "workers": 1,
            **self.flags,
            **flags,
        }
        reports = self.recipe.convert(**given)
        return {split: read_rows(out / split) for split in reports}

    def test_rows_are_those_of_the_raw_files(self, tmp_path: Path) -> None:
        """Each split has the rows that it should have, in order."""
        expected = self.make_raw(tmp_path / "raw")
        found = self.convert(tmp_path / "raw", tmp_path / "out")
        assert found.keys() == expected.keys()
        for split, rows in expected.items():
            assert are_equal(found[split], list(rows)), f"the rows of {split} are others"

    def test_tasks_may_be_run_anywhere_and_in_any_order(self, tmp_path: Path) -> None:
        """Pickled, and the last one first: the bytes are the same."""
        self.make_raw(tmp_path / "raw")
        self.convert(tmp_path / "raw", tmp_path / "one")
        self.convert(tmp_path / "raw", tmp_path / "other", engine=_Elsewhere())
        assert bytes_of(tmp_path / "other") == bytes_of(tmp_path / "one")

    def test_a_conversion_that_was_stopped_goes_on(self, tmp_path: Path) -> None:
        """There is no index before, and the same bytes in the end."""
        self.make_raw(tmp_path / "raw")
        self.convert(tmp_path / "raw", tmp_path / "one")
        out = tmp_path / "stopped"
        for engine in (_Stopping(1), _Stopping(1), "local"):
            try:
                self.convert(tmp_path / "raw", out, engine=engine)
            except InterruptedError:
                assert not all((out / split / INDEX_NAME).exists() for split in self.recipe.splits)
        assert bytes_of(out) == bytes_of(tmp_path / "one")

    def test_what_is_broken_or_missing_is_named_and_leaves_no_index(self, tmp_path: Path) -> None:
        """Each file of the layout in turn."""
        self.make_raw(tmp_path / "raw")
        for path in sorted(path for path in (tmp_path / "raw").rglob("*") if path.is_file()):
            data = path.read_bytes()
            path.write_bytes(self.broken)
            self._is_refused(tmp_path, path)
            path.unlink()
            if not self.may_lack(path):
                self._is_refused(tmp_path, path)
            path.write_bytes(data)

    def may_lack(self, path: Path) -> bool:  # noqa: ARG002
        """Return True for a file without which the layout is smaller, but not broken."""
        return False

    def _is_refused(self, folder: Path, path: Path) -> None:
        out, refused = folder / "refused", ""
        try:
            self.convert(folder / "raw", out)
        except PenstockError as error:
            refused = str(error)
        assert refused, f"{path.name} is broken or missing, and all seems well"
        assert path.name.partition(".")[0] in refused, f"the error does not name {path.name}: {refused}"
        assert not all((out / split / INDEX_NAME).exists() for split in self.recipe.splits)
        shutil.rmtree(out, ignore_errors=True)

    def test_the_flags_are_explained(self) -> None:
        """Each has a line of help, and the docstring says what the raw layout is."""
        text = self.recipe.parser().format_help()
        assert type(self.recipe).__doc__
        assert all(f"--{name}" in text for name in self.flags)


class _Elsewhere:
    """Runs each task from a pickled copy, in reverse order, as other processes may."""

    def run(self, task: Callable[[int], Any], numbers: Sequence[int], _shown: str, /) -> Generator[tuple[int, Any]]:
        for number in reversed(numbers):
            copy = pickle.loads(pickle.dumps(task))  # noqa: S301
            yield number, copy(number)


class _Stopping:
    """Runs some tasks, and stops as if it were killed."""

    def __init__(self, num_tasks: int) -> None:
        self._left = num_tasks

    def run(self, task: Callable[[int], Any], numbers: Sequence[int], _shown: str, /) -> Generator[tuple[int, Any]]:
        for number in numbers:
            if not self._left:
                raise InterruptedError
            self._left -= 1
            yield number, task(number)


def read_rows(folder: Path) -> list[Sample]:
    """Return all rows of a dataset, in order."""
    with StreamingDataset(local=str(folder), batch_size=1, shuffle=False, allow_unsafe_types=True) as dataset:
        return [dataset[number] for number in range(dataset.num_samples)]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder."""
    return {os.fspath(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def are_equal(one: Any, other: Any) -> bool:
    """Compare samples, whose values may be arrays or images."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if hasattr(one, "getdata"):
        return one.mode == other.mode and np.array_equal(np.asarray(one), np.asarray(other))
    return bool(np.array_equal(one, other))
