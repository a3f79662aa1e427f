"""Pieces of work, each of which becomes a folder of MDS shards: some shards of a source, or some rows of a big one."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.blocks.stage import State
    from penstock.sources.shard_info import ShardInfo

    # Finds where a shard, by its number, can be cut into pieces of about so many bytes.
    FindCuts = Callable[[int, int], list[State]]

_BYTES_OF_ROW = 1024  # where only rows are known
# Pieces of shards are for several processes to share the work. Where there are so many parts anyway, none is cut.
_ENOUGH_PARTS = 64


@dataclass(frozen=True, slots=True)
class Part:
    """Some shards of a source, from one number to before another; or the rows of a single one between two positions."""

    first: int
    end: int
    begin: State | None = None  # of a piece: where it begins, as an iterator over the stored shard says it
    end_row: int | None = None  # and before which row it ends; None: where the shard does

    def to_list(self) -> list[Any]:
        """Return it as plain values, from which `Part(*values)` makes it again."""
        return list(astuple(self)) if self.begin is not None else [self.first, self.end]

    @property
    def name(self) -> str:
        """Return which samples these are, in a word."""
        if self.begin is None:
            return f"shards-{self.first}-{self.end - self.first}"
        return f"shard-{self.first}-rows-{self.begin['row']}-{self.end_row}"


def plan_parts(
    shards: Sequence[ShardInfo | None], max_bytes: int, find_cuts: FindCuts = lambda _number, _bytes: []
) -> list[Part]:
    """Cut a source into parts of about so many stored bytes: the same for the same shards.

    Small shards are taken together. One of unknown size is a part of its own. One that is so large that there would be
    few parts is cut into pieces, if it can be.
    """
    piece = max(max_bytes, sum(shard.byte_size or 0 for shard in shards if shard is not None) // _ENOUGH_PARTS)
    parts: list[Part] = []
    first, filled = 0, 0.0
    for number, shard in enumerate(shards):
        share = _share(shard, max_bytes)
        cuts = find_cuts(number, piece) if shard is not None and (shard.byte_size or 0) > 2 * piece else []
        if number > first and (filled + share > 1 or len(cuts) > 1):
            parts.append(Part(first, number))
            first, filled = number, 0.0
        if len(cuts) > 1:
            ends = [*(cut["row"] for cut in cuts[1:]), None]
            parts += [Part(number, number + 1, cut, end) for cut, end in zip(cuts, ends, strict=True)]
            first, filled = number + 1, 0.0
        else:
            filled += share
    return [*parts, Part(first, len(shards))] if first < len(shards) else parts


def _share(shard: ShardInfo | None, max_bytes: int) -> float:
    if shard is None:
        return 1.0
    if shard.byte_size is not None:
        return shard.byte_size / max_bytes
    return 1.0 if shard.num_rows is None else shard.num_rows * _BYTES_OF_ROW / max_bytes


def part_name(number: int) -> str:
    """Name the folder of a part, so that names sort like numbers."""
    return f"{number:06}"
