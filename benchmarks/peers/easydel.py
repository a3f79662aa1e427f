"""The data package of EasyDeL, in .peers/easydel: sources, loader, mixing and packing.

Its package root imports models for JAX. The data package alone needs little of that, and none of it where time is
taken, so stand-ins do.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import pathlib
import sys
import types
from typing import Any

import numpy as np
from benchmarks.peers.common import Result, main
from benchmarks.peers.source_runs import BATCH, count_batches, count_rows, fields_of, make_documents, timed_passes


def _module(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(names)
    sys.modules[name] = module


def _field(**options: Any) -> Any:
    return dataclasses.field(**{key: options[key] for key in ("default", "default_factory") if key in options})


def put_stand_ins() -> None:
    found = importlib.util.find_spec("easydel")
    if found is None or not found.submodule_search_locations:
        sys.exit("EasyDeL is not installed here")
    _module("easydel")
    sys.modules["easydel"].__path__ = list(found.submodule_search_locations)
    _module("jax")
    sys.modules["jax.numpy"] = np
    _module("ray", remote=lambda *given, **_: given[0] if given else (lambda each: each), is_initialized=lambda: False)
    _module("eformer")
    _module("eformer.paths", ePath=pathlib.Path, ePathLike=object)
    _module("eformer.pytree", auto_pytree=dataclasses.dataclass, field=_field)
    _module("ejkernel")
    _module("ejkernel.loggings", get_logger=logging.getLogger)
    _module("easydel.utils")
    _module("easydel.utils.helpers", get_cache_dir=pathlib.Path.cwd)


put_stand_ins()

from easydel.data import (  # type: ignore[import-not-found]  # noqa: E402
    ArrowShardedSource,
    AsyncDataLoader,
    CsvShardedSource,
    JsonShardedSource,
    MixedShardedSource,
    ParquetShardedSource,
    TextShardedSource,
)

SOURCES = {
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "jsonl": JsonShardedSource,
    "csv": CsvShardedSource,
    "txt": TextShardedSource,
}


def open_source(path: str) -> Any:
    return SOURCES[path.rsplit(".", 1)[1]](path)


def rows(path: str, seconds: float) -> Result:
    def read() -> int:
        source = open_source(path)
        return sum(count_rows(source.open_shard(name)) for name in source.shard_names)

    return timed_passes(read, seconds)


def loader(path: str, seconds: float, buffer: int | None = None) -> Result:
    def read() -> int:
        made = AsyncDataLoader(open_source(path), batch_size=BATCH, shuffle_buffer_size=buffer, seed=1)
        return count_batches(made, fields_of(path)[0])

    return timed_passes(read, seconds)


def mix(path: str, weights: dict[str, float], count: int, seconds: float) -> Result:
    def read() -> int:
        sources = {name: open_source(path) for name in weights}
        mixed = MixedShardedSource(sources, weights, seed=1)
        return count_rows(mixed.open_shard(mixed.shard_names[0]), count)

    return timed_passes(read, seconds)


def pack(strategy: str, documents: int, seconds: float) -> Result:
    from easydel.data import PackedShardedSource

    lengths, samples = make_documents(documents)

    class Documents:
        shard_names = ("documents",)

        def iter_shards(self) -> Any:
            return iter(samples)

        def open_shard(self, _: str) -> Any:
            return iter(samples)

    # Its packers take lists.
    for sample in samples:
        sample["input_ids"] = sample["input_ids"].tolist()

    def read() -> int:
        packed = PackedShardedSource(Documents(), 2048, 1, strategy=strategy, shuffle=False)
        count_rows(packed.open_shard(packed.shard_names[0]))
        return int(lengths.sum())

    return timed_passes(read, seconds)


if __name__ == "__main__":
    main({"rows": rows, "loader": loader, "mix": mix, "pack": pack})
