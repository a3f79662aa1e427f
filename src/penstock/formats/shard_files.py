"""Rows → the file of one shard, a block at a time: the seam of formats that are written for other programs, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from penstock.blocks.block import Block

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.types import Sample


class ShardBlocks(ABC):
    """One shard in the making, to which rows are added a block at a time."""

    names: list[str]  # of its files, once it is finished
    num_bytes = 0  # stored so far
    num_rows = 0

    @abstractmethod
    def add(self, rows: Block | Sequence[Sample], first: int) -> None:
        """Write rows, of which the first has this number in the dataset."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Write the end of the shard, and return what is to be remembered of it."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open, also of a shard that will not be finished."""


class OneFileShard(ShardBlocks):
    """A shard that is one file, written from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self.names = [path.name]
        self._file = path.open("wb")

    def add(self, rows: Block | Sequence[Sample], first: int) -> None:
        """Write rows."""
        self._write(rows.samples() if isinstance(rows, Block) else rows, first)
        self.num_bytes = self._file.tell()

    @abstractmethod
    def _write(self, rows: Sequence[Sample], first: int) -> None: ...

    def finish(self) -> dict[str, Any]:
        """Write the end of the file."""
        self.close()
        return {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ShardFileFormat(ABC):
    """One format: begins shards, and keeps what all of them have in common, such as columns."""

    @abstractmethod
    def begin(self, rows: Sequence[Sample]) -> None:
        """Learn the columns from first rows."""

    @abstractmethod
    def open(self, folder: Path, number: int) -> ShardBlocks:
        """Begin a shard."""

    def state(self) -> dict[str, Any]:
        """Return the columns as plain values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on with the columns that `state` returned."""

    def finish(self, folder: Path, shards: Sequence[dict[str, Any]]) -> list[str]:  # noqa: ARG002
        """Write what the dataset needs beside its shards, and return the names of these files."""
        return []
