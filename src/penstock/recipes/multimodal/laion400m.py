"""LAION-400M: convert what a crawl with img2dataset makes, and upload it, while the crawl goes on."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.cache.proxied import open_proxied
from penstock.conversion.converting import convert
from penstock.errors import BadSampleError, ObjectNotFoundError, StoreError
from penstock.failpoints import failpoint
from penstock.index.catalog import parse_index
from penstock.index.paths import INDEX_NAME
from penstock.outside_text import Bounded
from penstock.publish.engines import ProcessPool, ThisProcess
from penstock.publish.merge_index import merge_index
from penstock.recipes.base import Recipe, add_flag, add_writing_flags, run_module
from penstock.sources.files.columnar_sources import ParquetShardedSource
from penstock.sources.transforms import ChainedTransform, FilterTransform, MapTransform

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from penstock.conversion.converting import ConvertOptions
    from penstock.types import Sample

_STATS = Bounded(r"(\d{1,9})_stats\.json", 64)
_DONE = "done"  # the name of a file that is made when the crawl is over
_TEXTS = {"nsfw": "NSFW", "license": "LICENSE", **{name: name for name in ("caption", "url", "key", "status")}}
_TEXTS |= {"error_message": "error_message", "exif": "exif"}
_SIZES = ("width", "height", "original_width", "original_height")
_JOIN_S = 86400.0


def from_crawl(row: Sample) -> Sample:
    """Rename columns, and put empty values in the place of nulls."""
    return {
        **{ours: row[theirs] or "" for ours, theirs in _TEXTS.items()},
        **{name: int(row[name] or 0) for name in _SIZES},
        "similarity": float("nan") if row["similarity"] is None else row["similarity"],
        "jpg": row["jpg"] or b"",
    }


def has_image(row: Sample) -> bool:
    """Return whether the image of a row was fetched."""
    return bool(row["jpg"])


@dataclass(frozen=True, slots=True)
class Crawl:
    """A folder that a crawl fills, and the place where what it brings is kept. It pickles."""

    local: Path
    remote: str
    options: ConvertOptions
    keeps_parquet: bool
    keeps_mds: bool

    def complete(self) -> list[str]:
        """List the files that are complete, by their numbers as they are written, in whichever order they came."""
        matches = (_STATS.fullmatch(name) for name in os.listdir(self.local))  # noqa: PTH208  names alone
        return sorted(match[1] for match in matches if match)

    def store(self, name: str) -> str:
        """Convert a file, upload it, and remove what is to be removed once it is safe; does only what is missing."""
        parquet, mds = self.local / f"{name}.parquet", self.local / f"{name}.mds"
        if not self.is_stored(name):
            if not parquet.exists():
                raise BadSampleError(f"{name}_stats.json is there, but neither {parquet} nor its dataset in the store")
            rows = ParquetShardedSource(str(parquet), columns=[*_TEXTS.values(), *_SIZES, "similarity", "jpg"])
            convert(rows, mds, workers=1, progress=False, **self.options)
            self._upload(mds, name)
            if not self.is_stored(name):
                raise StoreError(f"{self.remote} does not have all of {name} after it was uploaded")
        failpoint("laion.stored")
        if not self.keeps_parquet:
            parquet.unlink(missing_ok=True)
        if not self.keeps_mds:
            shutil.rmtree(mds, ignore_errors=True)
        return name

    def _upload(self, mds: Path, name: str) -> None:
        """Upload all shards, and then their index, which says that they are there."""
        store = open_proxied(self.remote)
        for path in sorted(mds.rglob("shard.*")):
            store.upload(path, f"{name}/{path.relative_to(mds).as_posix()}")
            failpoint("laion.between")
        store.upload(mds / INDEX_NAME, f"{name}/{INDEX_NAME}")

    def is_stored(self, name: str) -> bool:
        """Return whether the store has the index of a file, and all shards that this names, in their sizes."""
        store = open_proxied(self.remote)
        try:
            index = parse_index(store.read(f"{name}/{INDEX_NAME}"), f"{name}/{INDEX_NAME}")
            parts = [part.stored for shard in index.shards for part in shard.parts]
            return all(store.stat(f"{name}/{part.basename}").num_bytes == part.num_bytes for part in parts)
        except ObjectNotFoundError:
            return False


class LAION400MRecipe(Recipe):
    """LAION-400M, from <local>/N.parquet of img2dataset, each complete once there is N_stats.json.

    Watches the folder until there is a file `done`. Each file becomes a dataset below <remote>/N/; at the end there is
    one index of all. Stopped at any time, it goes on where it was.
    """

    name = "laion400m"
    columns: ClassVar[dict[str, str]] = {
        **dict.fromkeys(_TEXTS, "str"),
        **dict.fromkeys(_SIZES, "int32"),
        "similarity": "float64",
        "jpg": "bytes",
    }
    defaults: ClassVar[ConvertOptions] = {"hashes": ("sha1", "xxh64"), "size_limit": "256mb"}

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add flags of its own in place of those of raw files."""
        add_flag(parser, "--local", required=True, help="the folder of the crawl")
        add_flag(parser, "--remote", required=True, help="the folder or URL of the dataset")
        add_flag(parser, "--keep_parquet", type=int, default=1, help="0: remove a file once its rows are in the store")
        add_flag(parser, "--keep_mds", type=int, default=1, help="0: remove shards once they are in the store")
        add_flag(parser, "--keep_failed", type=int, default=1, help="0: leave out rows whose image was not fetched")
        add_flag(parser, "--poll_interval", type=float, default=30.0, help="seconds between looks at the folder")
        add_writing_flags(parser, self.defaults)

    def open_split(self, args: argparse.Namespace, split: str) -> Any:  # noqa: ARG002  there is but one
        """Return the crawl, whose files are converted one by one."""
        keeps_row = [] if args.keep_failed else [FilterTransform(has_image)]
        chain = ChainedTransform([*keeps_row, MapTransform(from_crawl)])
        options: ConvertOptions = {
            "columns": self.columns,
            "task_size": "1gb",
            "transform": chain,
            "compression": args.compression or None,
            "hashes": tuple(args.hashes),
            "size_limit": args.size_limit,
            "on_error": args.on_error,
        }
        keeps = bool(args.keep_parquet), bool(args.keep_mds)
        return Crawl(Path(args.local), os.fspath(args.remote), options, *keeps)

    def run(self, args: argparse.Namespace) -> dict[str, Any]:
        """Convert what is complete until the crawl is over, and join it."""
        crawl: Crawl = self.open_split(args, "")
        stored: set[str] = set()
        is_over = False
        while not is_over:
            begun = time.monotonic()
            is_over = (crawl.local / _DONE).exists()  # before the list, which then has all
            ready = [name for name in crawl.complete() if name not in stored]
            stored.update(_store_all(crawl, ready, args.workers or os.cpu_count() or 1))
            if not is_over:
                time.sleep(max(0.0, args.poll_interval - (time.monotonic() - begun)))
        if lost := sorted(path.name for path in crawl.local.glob("*.parquet") if path.stem not in stored):
            raise BadSampleError(f"the crawl is over, but {lost[0]} has no {lost[0][:-8]}_stats.json: fetch it again")
        urls = [f"{crawl.remote.rstrip('/')}/{name}/{INDEX_NAME}" for name in sorted(stored)]
        merge_index(urls, crawl.remote, download_timeout=_JOIN_S)
        return {"": f"{len(stored)} files in {crawl.remote}"}


def _store_all(crawl: Crawl, names: Sequence[str], workers: int) -> list[str]:
    engine = ThisProcess() if min(workers, len(names)) < 2 else ProcessPool(workers)
    task = partial(_store_one, crawl, names)
    return [name for _, name in engine.run(task, range(len(names)), crawl.remote)]


def _store_one(crawl: Crawl, names: Sequence[str], number: int) -> str:
    return crawl.store(names[number])


recipe = LAION400MRecipe()
parse_args, main = recipe.parse_args, recipe.main

if __name__ == "__main__":
    run_module(recipe.name)
