"""Sources one after the other, and the first samples of a source."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.blocks.block import Block
from penstock.blocks.stage import check_row, open_at_row, resume, skip_rows
from penstock.errors import ConfigError
from penstock.order.state_fields import COUNT, check_fields, refuse
from penstock.sources.base import ShardedSource, as_source
from penstock.sources.shard_info import ShardInfo
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import OpenStage, State
    from penstock.sources.base import GivesSource
    from penstock.types import Sample


class CompositeShardedSource(ShardedSource):
    """The shards of several sources, one source after the other.

    Names that an earlier source has taken get a number: `train:0` and `train:0#2`.
    """

    def __init__(self, sources: Sequence[ShardedSource | GivesSource]) -> None:
        if not sources or isinstance(sources, ShardedSource):
            raise ConfigError("CompositeShardedSource needs a list of at least one source")
        self._sources = self._input_sources = [as_source(source) for source in sources]
        # The name here, the source, and the name there.
        self._homes: dict[str, tuple[ShardedSource, str]] = {}
        for source in self._sources:
            for name in source.shard_names:
                self._homes[self._free_name(name)] = source, name
        self._names = list(self._homes)

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of all shards, each only once."""
        return self._names

    @property
    def order_fingerprint(self) -> str | None:
        """The fingerprints of all sources, if they all have one."""
        each = [source.order_fingerprint for source in self._sources]
        return None if None in each else "+".join(map(str, each))

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return what is known of a shard."""
        source, name = self._find(shard_name)
        info = source.get_shard_info(name)
        if info is None:
            return None
        number = self.shard_number(shard_name)
        return ShardInfo(number, shard_name, info.num_rows, info.byte_size, info.url, info.checksum)

    @property
    def has_random_rows(self) -> bool:
        """Whether all sources read any rows."""
        return all(source.has_random_rows for source in self._sources)

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows of a shard."""
        source, name = self._find(shard_name)
        return source.read_rows(name, rows)

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open a shard of the source that it belongs to."""
        source, name = self._find(shard_name)
        return source.open_stage(name, row)

    def _find(self, shard_name: str) -> tuple[ShardedSource, str]:
        return self._homes[self._names[self.shard_number(shard_name)]]

    def _free_name(self, name: str) -> str:
        free, number = name, 1
        while free in self._homes:
            number += 1
            free = f"{name}#{number}"
        return free


class LimitedShardedSource(ShardedSource):
    """The first samples of a source, over all its shards in order.

    Where shards do not say how many samples they have, those before the one that is opened are counted by reading
    them, once, and rows are counted in the samples that the source gives.

    Args:
        source: The source.
        max_rows: The number of samples.
    """

    def __init__(self, source: ShardedSource | GivesSource, max_rows: int) -> None:
        check_whole("max_rows", max_rows, 0)
        self._source, self._max_rows = as_source(source), max_rows
        self._input_sources = (self._source,)
        self._counted: list[int] = []  # samples of the first shards, where they had to be counted

    @property
    def source(self) -> ShardedSource:
        """The source that samples come from."""
        return self._source

    @property
    def max_rows(self) -> int:
        """The number of samples at most."""
        return self._max_rows

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, also of those that are cut to nothing."""
        return self._source.shard_names

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of the source and the limit."""
        inner = self._source.order_fingerprint
        return None if inner is None else f"{inner}-first-{self._max_rows}"

    @property
    def is_endless(self) -> bool:
        """It ends, also where its source does not."""
        return False

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return what is known of a shard; its rows are those within the limit, if they are known."""
        info = self._source.get_shard_info(shard_name)
        if info is None:
            return None
        lengths = self._source.shard_lengths()
        rows = None if lengths is None else min(self._left_before(info.shard_id, lengths), lengths[info.shard_id])
        return ShardInfo(info.shard_id, info.shard_name, rows, info.byte_size, info.url, info.checksum)

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open a shard at a row within the limit."""
        number = self._source.shard_number(shard_name)
        lengths = self._source.shard_lengths()
        if lengths is None:
            whole = _LimitedStage(self._source.open_stage(shard_name), self._left_unknown(number))
            return open_at_row(whole, shard_name, row)
        left = min(self._left_before(number, lengths), lengths[number])
        row = check_row(shard_name, row, left)
        return _LimitedStage(self._source.open_stage(shard_name, row), left - row)

    def _left_before(self, number: int, lengths: Sequence[int]) -> int:
        return max(0, self._max_rows - sum(lengths[:number]))

    def _left_unknown(self, number: int) -> int:
        for name in self._source.shard_names[len(self._counted) : number]:
            if sum(self._counted) >= self._max_rows:
                break
            rows = self._source.open_stage(name)
            self._counted.append(skip_rows(rows, self._max_rows)[0])
            rows.close()
        return max(0, self._max_rows - sum(self._counted[:number]))


class _LimitedStage:
    """At most so many rows of a stage."""

    def __init__(self, rows: OpenStage, limit: int) -> None:
        self._input, self._left, self._limit = rows, limit, limit
        self._rest = Block()  # of the input

    def close(self) -> None:
        self._input.close()

    def next(self) -> Block:
        if not self._left:
            return Block()
        left = self._left
        rows, self._rest = (self._rest if len(self._rest) else self._input.next()).split(left)
        self._left -= len(rows)
        return rows.at(None if rows.after is None else partial(_after_limited, rows.after, left))

    def get_state(self) -> State:
        after = self._rest.after
        return {"left": self._left, "input": self._input.get_state() if after is None else after(0)}

    def set_state(self, state: State) -> None:
        check_fields(state, {"left": COUNT, "input": dict}, "an iterator over the first samples")
        self._left = state["left"]
        if self._left > self._limit:
            raise refuse("left", self._left, f"at most {self._limit}")
        self._rest = resume(self._input, state["input"])


def _after_limited(after: PositionAfter, left: int, given: int) -> State:
    return {"left": left - given, "input": after(given)}
