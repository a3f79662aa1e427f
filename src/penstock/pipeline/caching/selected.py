"""The samples of one part of a source: of some of its shards, or of some rows of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.blocks.block import Block
from penstock.sources.base import ShardedSource, TransformedShardedSource
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.sources.iterators import SampleIterator
from penstock.sources.tokens.source import TokenizedShardedSource, TokenizeTransform
from penstock.sources.transforms import ChainedTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.blocks.stage import State
    from penstock.pipeline.caching.parts import Part
    from penstock.sources.shard_info import ShardInfo


def select_part(source: ShardedSource, part: Part) -> ShardedSource:
    """Return the samples of a part."""
    names = list(source.shard_names[part.first : part.end])
    files = _files_of(source)
    if part.begin is None or files is None:
        return _SelectedShards(source, names)
    return _over(source, _ShardPart(files, names[0], part.begin, part.end_row))


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


class _SelectedShards(ShardedSource):
    """Some shards of a source, in order."""

    def __init__(self, source: ShardedSource, names: Sequence[str]) -> None:
        self._source, self._names = source, names

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        return self._source.get_shard_info(shard_name)

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        return self._source.open_shard_at_row(shard_name, row)


class _ShardPart(ShardedSource):
    """The rows of a file between two positions, with the numbers that they have there."""

    def __init__(self, files: FileShardedSource, name: str, begin: State, end_row: int | None) -> None:
        self._files, self._name, self._begin, self._end_row = files, name, begin, end_row

    @property
    def shard_names(self) -> Sequence[str]:
        return (self._name,)

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        rows = self._files.open_shard(shard_name)
        rows.load_state_dict(self._begin)
        rows.skip(row)
        return _PartIterator(rows, self._end_row)


class _PartIterator(SampleIterator):
    """The samples of an iterator whose position is a row, up to before one."""

    def __init__(self, rows: SampleIterator, end_row: int | None) -> None:
        super().__init__()
        self._rows, self._end_row = rows, end_row

    def close(self) -> None:
        self._rows.close()

    def next(self) -> Block:
        if self._end_row is None:
            return self._rows.read_block()
        left = self._end_row - int(self._rows.state_dict()["row"])
        return self._rows.read_block(at_most=left) if left > 0 else Block()

    def get_state(self) -> State:
        return self._rows.state_dict()

    def set_state(self, state: State) -> None:
        self._rows.load_state_dict(state)
