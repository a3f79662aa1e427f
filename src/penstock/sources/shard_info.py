"""What a source says of its shards and files without reading them: rows, sizes, versions, which positions carry."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.blocks.stage import OpenStage, counted
from penstock.errors import ResumeError
from penstock.order.keys import hash_key
from penstock.order.state_fields import COUNT, check_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.blocks.block import Block, PositionAfter
    from penstock.blocks.stage import State
    from penstock.order.state_fields import Fields


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What a source knows of a shard without reading its samples; None where it does not know."""

    shard_id: int
    shard_name: str
    num_rows: int | None = None
    byte_size: int | None = None
    url: str | None = None
    checksum: str | None = None


class ShardCount(int):
    """A number of shards that may also be called, as some libraries have it."""

    def __call__(self) -> int:
        """Return the number."""
        return int(self)


_FIELDS = {"bytes": COUNT, "version?": str}


class FileVersion(NamedTuple):
    """Which file a position is in, as its store tells: a state does not go on in another one."""

    name: str
    num_bytes: int
    tag: str | None  # None: the store tells no version

    def check(self, saved: Any) -> None:
        """Refuse a position in another file; those of earlier releases do not say in which they are."""
        if saved is None:
            return
        check_fields(saved, _FIELDS, f"the state in {self.name}")
        size, tag = saved["bytes"], saved.get("version")
        if size != self.num_bytes or (None not in (tag, self.tag) and tag != self.tag):
            raise ResumeError(
                f"{self.name} has changed since the state was saved: it had {size} bytes and version {tag}, and now has"
                f" {self.num_bytes} and {self.tag}. Restore the file, or begin the epoch without the state; if it is a"
                " copy with the same content, take the fields `file` out of the state",
                path=self.name,
            )


class FilesVersion(NamedTuple):
    """Which files a source reads: what is read ahead, or mixed, may come from any of them."""

    digest: str
    newest: tuple[int, str]  # when the one that was written last was written, and its name

    def check(self, saved: str | None) -> None:
        """Refuse a state of other files; those of earlier releases do not say which they were."""
        if saved not in (None, self.digest):
            raise ResumeError(
                f"files have changed since the state was saved, and {self.newest[1]} was written last. Restore them, or"
                " begin the epoch without the state; if they are copies, take the fields `files` and `file` out of it"
            )


def join_versions(versions: Iterable[FilesVersion | None]) -> FilesVersion | None:
    """Join what is known of the files of several sources; None if none of them reads files."""
    known = [each for each in versions if each is not None]
    if len(known) < 2:
        return known[0] if known else None
    return FilesVersion(f"{hash_key(*(each.digest for each in known)):016x}", max(each.newest for each in known))


class FileBlocks(OpenStage, Protocol):
    """A file that a format reads in order; its blocks may lack positions."""

    @property
    def state_fields(self) -> Fields:
        """The fields of its positions, which are checked before it is given one."""


class FileStage:
    """A file whose positions say which version of it they are in."""

    def __init__(self, blocks: FileBlocks, version: FileVersion) -> None:
        self._blocks, self._version = blocks, version
        self._mark = {"file": {"bytes": version.num_bytes, "version": version.tag}}
        self._here: State | None = None  # None: not asked for yet

    def next(self) -> Block:
        """Read the next rows."""
        start = self._blocks.get_state() if self._here is None else self._here
        block = self._blocks.next()
        self._here = self._blocks.get_state()
        if block.after is None:
            block = counted(block, partial(dict, start), partial(dict, self._here))
        assert block.after is not None  # noqa: S101
        return block.at(partial(_in_file, block.after, self._here, len(block), self._mark))

    def get_state(self) -> State:
        """Return which row is next, where it begins, and in which file."""
        return {**(self._blocks.get_state() if self._here is None else self._here), **self._mark}

    def set_state(self, state: State) -> None:
        """Go to a row of the same file."""
        what = f"the state in {self._version.name}"
        check_fields(state, self._blocks.state_fields, what)
        self._version.check(state.get("file"))
        self._here = None
        self._blocks.set_state(state)

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()


def _in_file(after: PositionAfter, end: State, num_rows: int, mark: State, given: int) -> State:
    return {**(end if given == num_rows else after(given)), **mark}


@dataclass(frozen=True, slots=True)
class Cut:
    """Some shards of a source, from one number to before another; or the rows of a single one between two positions."""

    first: int
    end: int
    begin: State | None = None  # of a piece: where it begins, as an iterator over the stored shard says it
    end_row: int | None = None  # and before which row it ends; None: where the shard does

    def to_list(self) -> list[Any]:
        """Return it as plain values, from which `Cut(*values)` makes it again."""
        return list(astuple(self)) if self.begin is not None else [self.first, self.end]

    @property
    def name(self) -> str:
        """Return which samples these are, in a word."""
        if self.begin is None:
            return f"shards-{self.first}-{self.end - self.first}"
        return f"shard-{self.first}-rows-{self.begin['row']}-{self.end_row}"
