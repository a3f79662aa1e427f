"""Datasets of Ray as inputs, and `MDSDatasink`, to which Ray writes them."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.conversion.inputs import HandedRows, digest_of, hand_over
from penstock.conversion.plan import plan_conversion
from penstock.extras import require
from penstock.publish.engines import RayEngine
from penstock.sources.base import ShardedSource

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Self

    from penstock.conversion.plan import Conversion
    from penstock.publish.materialise import PartDone
    from penstock.types import Sample


class RayRows(ShardedSource):
    """The blocks of a dataset of Ray, which tasks of Ray read: each is a shard."""

    makes_new_samples = True

    def __init__(self, dataset: Any) -> None:
        ray = RayEngine().start()
        self._blocks = dataset.to_arrow_refs()
        digests = ray.get([ray.remote(digest_of).remote(block) for block in self._blocks])
        self._fingerprint = hashlib.sha256(" ".join(digests).encode()).hexdigest()

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the blocks, by their numbers."""
        return [f"block:{number}" for number in range(len(self._blocks))]

    @property
    def fingerprint(self) -> str:
        """A hash of all blocks, which Ray computes where they lie."""
        return f"ray-{self._fingerprint}"

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:
        """Fetch a block, and read its rows."""
        block = RayEngine().start().get(self._blocks[self.shard_number(shard_name)])
        yield from _rows_of(block.slice(row))

    def own_engine(self) -> RayEngine:
        """Return what runs the tasks."""
        return RayEngine()


class MDSDatasink:
    """Where Ray writes a dataset to: `dataset.write_datasink(penstock.ray.MDSDatasink("s3://bucket/train"))`.

    A task that Ray runs again leaves one copy, and the index comes last.

    Args:
        out: The folder or URL.
        **options: Those of `convert`.
    """

    supports_distributed_writes = True
    min_rows_per_write = None
    min_bytes_per_write = 256 << 20

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make an object that is also one of Ray's `Datasink`, which is only there once Ray is loaded."""
        base = require("ray.data", extra="ray", purpose="writing datasets of Ray").Datasink
        made = cls if issubclass(cls, base) else type(f"Ray{cls.__name__}", (cls, base), {})
        return object.__new__(made)

    def __init__(self, out: str | os.PathLike[str], **options: Any) -> None:
        self._overwrites = bool(options.pop("overwrite", False))
        self._out, self._options = str(out), options

    def get_name(self) -> str:
        """Return what Ray calls it."""
        return "MDS"

    def on_write_start(self, schema: Any = None) -> None:
        """Plan the dataset: columns follow from the schema."""
        self._plan(1, schema, overwrite=self._overwrites).begin(resume=False, overwrite=self._overwrites)

    def write(self, blocks: Iterable[Any], ctx: Any) -> PartDone | None:
        """Write the blocks of one task of Ray."""
        accessor = require("ray.data.block", extra="ray", purpose="writing datasets of Ray").BlockAccessor
        tables = (accessor.for_block(block).to_arrow() for block in blocks)
        first = next(tables, None)
        rows = (row for table in chain([first], tables) if table is not None for row in _rows_of(table))
        work = self._plan(ctx.task_idx + 1, None if first is None else first.schema)
        return hand_over(work.make_task, ctx.task_idx, rows)

    def on_write_complete(self, write_result: Any) -> None:
        """Join what all tasks have written."""
        done = {part.number for part in write_result.write_returns}
        work = self._plan(max(done, default=0) + 1, None)
        for number in set(range(work.num_tasks)) - done:
            hand_over(work.make_task, number, ())
        work.target.finish(work.num_tasks)

    def on_write_failed(self, error: Exception) -> None:
        """Leave what was written: without an index it is no dataset."""

    def _plan(self, num_tasks: int, schema: Any, *, overwrite: bool = False) -> Conversion:
        """Plan a dataset of so many tasks; how many there are in the end, Ray does not tell before."""
        example = {"": 0} if schema is None else {field.name: _example_of(field.type) for field in schema}
        source = HandedRows(num_tasks, "ray", lambda: [example])
        return plan_conversion(source, self._out, overwrite=overwrite, **self._options)


def _rows_of(table: Any) -> Iterator[Sample]:
    accessor = require("ray.data.block", extra="ray", purpose="reading datasets of Ray").BlockAccessor
    for row in accessor.for_block(table).iter_rows(public_row_format=True):
        yield dict(row)


def _example_of(kind: Any) -> Any:
    """Return a value of a type of Arrow, which tells the encoding of its column."""
    types = require("pyarrow", extra="ray", purpose="writing datasets of Ray").types
    for holds, value in (
        (types.is_integer, 0),
        (types.is_floating, 0.0),
        (types.is_boolean, False),
        (types.is_string, ""),
        (types.is_large_string, ""),
        (types.is_binary, b""),
        (types.is_large_binary, b""),
    ):
        if holds(kind):
            return value
    inner = getattr(kind, "scalar_type", None) or getattr(kind, "value_type", None)  # of tensors, and of lists
    if inner is None or not (types.is_integer(inner) or types.is_floating(inner)):
        return None
    return np.zeros(1, inner.to_pandas_dtype())
