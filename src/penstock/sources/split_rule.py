"""In which split a row is, by a keyed hash: data that are added move no row to another one."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import ConfigError, MissingColumnError
from penstock.order.keys import draw, hash_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.types import Int64Array, Sample


class SplitRule(NamedTuple):
    """Divides rows among splits, by the value of a column or by where they are."""

    names: tuple[str, ...]
    ends: tuple[float, ...]  # where the part of all hashes ends that each split gets
    column: str | None = None  # whose value decides; None: the address of the row
    seed: int = 0

    def place(self, row: Sample, address: tuple[str, int]) -> int:
        """Return the number of the split."""
        if self.column is None:
            value: object = address
        elif self.column in row:
            value = row[self.column]
        else:
            raise MissingColumnError(
                f"there is no column {self.column!r} to split by: the row has {', '.join(row)}", column=self.column
            )
        if getattr(value, "ndim", None) == 0:  # a number of NumPy, which is the same as Python's
            value = value.item()  # type: ignore[attr-defined]
        return bisect_right(self.ends[:-1], hash_key("split", self.seed, repr(value)) / 2**64)

    def place_rows(self, shard_name: str, rows: Int64Array) -> Int64Array:
        """Return the numbers of the splits of rows of one shard, by where they are alone."""
        drawn = draw(hash_key("split rows", self.seed, shard_name), rows.astype(np.uint64)) / 2.0**64
        return np.searchsorted(self.ends[:-1], drawn, side="right")


def split_rule(splits: Mapping[str, float], column: str | None, seed: int) -> SplitRule:
    """Return which part of all hashes each split gets; shares add up to 1."""
    if not splits or any(not share > 0 for share in splits.values()):
        raise ConfigError(f"splits={dict(splits)} must give each split a share above 0: {{'train': 0.9, 'val': 0.1}}")
    total = sum(splits.values())
    if abs(total - 1) > 1e-6:
        raise ConfigError(f"the shares of splits={dict(splits)} add up to {total:g}, not to 1")
    return SplitRule(tuple(splits), tuple(accumulate(splits.values())), column, seed)
