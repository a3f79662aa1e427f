"""A source cut into tasks: some of its shards, or some rows of a big one, each of which any process can read alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.blocks.block import Block
from penstock.blocks.stage import open_at_row
from penstock.sources.base import ShardedSource, TransformedShardedSource
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.sources.shard_info import Cut
from penstock.sources.tokens.source import TokenizedShardedSource, TokenizeTransform
from penstock.sources.transforms import ChainedTransform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.blocks.stage import OpenStage, State
    from penstock.sources.iterators import SampleIterator
    from penstock.sources.shard_info import ShardInfo

    # Finds where a shard, by its number, can be cut into pieces of about so many bytes.
    FindCuts = Callable[[int, int], list[State]]

_BYTES_OF_ROW = 1024  # where only rows are known
# Pieces of shards are for several processes to share the work. Where there are so many parts anyway, none is cut.
_ENOUGH_PARTS = 64


def plan_cuts(
    shards: Sequence[ShardInfo | None],
    max_bytes: int,
    find_cuts: FindCuts = lambda _number, _bytes: [],
    most_parts: int | None = _ENOUGH_PARTS,
) -> list[Cut]:
    """Cut a source into tasks of about so many stored bytes: the same for the same shards.

    Small shards are taken together. One of unknown size is a part of its own. One that is so large that there would be
    fewer than `most_parts` is cut into pieces, if it can be; without that number, cuts do not change with later shards.
    """
    total = sum(shard.byte_size or 0 for shard in shards if shard is not None)
    piece = max_bytes if most_parts is None else max(max_bytes, total // most_parts)
    parts: list[Cut] = []
    first, filled = 0, 0.0
    for number, shard in enumerate(shards):
        share = share_of(shard, max_bytes)
        cuts = find_cuts(number, piece) if shard is not None and (shard.byte_size or 0) > 2 * piece else []
        if number > first and (filled + share > 1 or len(cuts) > 1):
            parts.append(Cut(first, number))
            first, filled = number, 0.0
        if len(cuts) > 1:
            ends = [*(cut["row"] for cut in cuts[1:]), None]
            parts += [Cut(number, number + 1, cut, end) for cut, end in zip(cuts, ends, strict=True)]
            first, filled = number + 1, 0.0
        else:
            filled += share
    return [*parts, Cut(first, len(shards))] if first < len(shards) else parts


def share_of(shard: ShardInfo | None, max_bytes: int) -> float:
    """Return which part of so many stored bytes a shard takes."""
    if shard is None:
        return 1.0
    if shard.byte_size is not None:
        return shard.byte_size / max_bytes
    return 1.0 if shard.num_rows is None else shard.num_rows * _BYTES_OF_ROW / max_bytes


@dataclass(frozen=True, slots=True)
class CutSource:
    """The tasks of a source. It pickles without a single row: who runs a task reads these."""

    source: ShardedSource
    cuts: Sequence[Cut]

    @property
    def task_names(self) -> Sequence[str]:
        """Which samples each task makes."""
        return [cut.name for cut in self.cuts]

    @property
    def fingerprint(self) -> str | None:
        """That of the source."""
        return self.source.fingerprint

    def open_task(self, number: int) -> SampleIterator:
        """Open the samples of a task."""
        cut, files = self.cuts[number], _files_of(self.source)
        if cut.begin is None or files is None:
            return self.source.iter_shards(range(cut.first, cut.end))
        name = self.source.shard_names[cut.first]
        return iter(_over(self.source, _ShardPart(files, name, cut.begin, cut.end_row)))


def find_cuts(source: ShardedSource, shard: int, num_bytes: int) -> list[State]:
    """Find where a shard can be cut so that the pieces give the same samples as the whole."""
    files = _files_of(source)
    return [] if files is None else files.shard_cuts(source.shard_names[shard], num_bytes)


def _files_of(source: ShardedSource) -> FileShardedSource | None:
    """Return the files that a source reads, if each of their rows is transformed by itself.

    What others make of a batch may depend on which rows are in it.
    """
    while type(source) in (TransformedShardedSource, TokenizedShardedSource):
        assert isinstance(source, TransformedShardedSource)  # noqa: S101
        if any(each.is_batched and not isinstance(each, TokenizeTransform) for each in source.transforms):
            return None
        source = source.source
    if isinstance(source, HuggingFaceShardedSource):
        return source.file_source
    return source if isinstance(source, FileShardedSource) else None


def _over(source: ShardedSource, files: ShardedSource) -> ShardedSource:
    """Put other files below the transforms of a source."""
    if not isinstance(source, TransformedShardedSource):
        return files
    return TransformedShardedSource(
        _over(source.source, files),
        ChainedTransform(source.transforms),
        num_workers=source.num_workers,
        worker_kind=source.worker_kind,
    )


class _ShardPart(ShardedSource):
    """The rows of a file between two positions, with the numbers that they have there."""

    def __init__(self, files: FileShardedSource, name: str, begin: State, end_row: int | None) -> None:
        self._files, self._name, self._begin, self._end_row = files, name, begin, end_row

    @property
    def shard_names(self) -> Sequence[str]:
        return (self._name,)

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        rows = self._files.open_stage(shard_name)
        rows.set_state(self._begin)
        return open_at_row(_RowsBefore(rows, self._end_row), shard_name, row)


class _RowsBefore:
    """The rows of a stage whose position is a row, up to before one."""

    def __init__(self, rows: OpenStage, end_row: int | None) -> None:
        self._rows, self._end_row = rows, end_row

    def close(self) -> None:
        self._rows.close()

    def next(self) -> Block:
        left = sys.maxsize if self._end_row is None else self._end_row - int(self._rows.get_state()["row"])
        return self._rows.next().cut(0, left) if left > 0 else Block()

    def get_state(self) -> State:
        return self._rows.get_state()

    def set_state(self, state: State) -> None:
        self._rows.set_state(state)
