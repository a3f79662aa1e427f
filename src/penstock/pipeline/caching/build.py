"""Building a cache, part by part, by any number of processes at once; what is whole is never made again."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import BadSampleError, EmptyDatasetError, OutputBusyError, ResumeError
from penstock.index.mosaic_json import dump_index
from penstock.index.paths import INDEX_NAME
from penstock.pipeline.caching.parts import Part, part_name, plan_parts
from penstock.pipeline.caching.place import PLAN_NAME
from penstock.pipeline.caching.selected import find_cuts, select_part
from penstock.pipeline.save import save_source
from penstock.publish.mds_files import infer_columns
from penstock.publish.merge_index import merge_indexes
from penstock.publish.settings import MANIFEST_NAME, SaveSettings
from penstock.publish.sizes import PROBE_ROWS
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.index.model import Index
    from penstock.pipeline.caching.place import CachePlace
    from penstock.sources.base import ShardedSource

VERSION = 2
PLAN_LOCK = "plan"
_SAME_FIELDS = (
    "Cached samples have the fields and types of the first ones: choose fields, or give them one type, in a transform"
    " before cache()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormat:
    """How samples are stored in a cache."""

    compression: str | None = None
    max_shard_size: int | str = "64MB"
    part_size: int | str = "16MB"

    @property
    def key(self) -> dict[str, Any]:
        """All that the files depend on."""
        return {
            "compression": self.compression,
            "max_shard_size": parse_bytes(self.max_shard_size),
            "part_size": parse_bytes(self.part_size),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What all who build a cache agree on: its columns, and which shards or rows of the source make which part."""

    columns: Mapping[str, str]
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class PartDone:
    """A part that is whole."""

    number: int
    num_rows: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBuild:
    """All that a process needs to build any part. It pickles without a single row: processes read these themselves."""

    source: ShardedSource
    place: CachePlace
    format: CacheFormat
    about: Mapping[str, Any]  # the fingerprints, for the manifest
    plan: CachePlan

    @property
    def shown(self) -> str:
        """What is made, and where."""
        return f"the cache at {self.place.shown}"

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.plan.parts)

    def find_part(self, number: int) -> PartDone | None:
        """Return a part that is whole already."""
        found = self.place.read(f"{part_name(number)}/{MANIFEST_NAME}")
        return None if found is None else _part_done(number, found)

    def make_part(self, number: int, *, waits: bool) -> PartDone | None:
        """Make a part, or finish one that was begun; None if another process is at it and is not waited for."""
        try:
            with self.place.hold(part_name(number), waits=waits):
                return self.find_part(number) or self._save_part(number)
        except OutputBusyError:
            if waits:
                raise
            return None

    def _save_part(self, number: int) -> PartDone:
        part, whole = self.plan.parts[number], self.source.fingerprint
        settings = SaveSettings(
            format="mds",
            max_shard_size=self.format.max_shard_size,
            compression=self.format.compression,
            columns=self.plan.columns,
            drops_extra=False,
            resume=True,
            fingerprint=None if whole is None else f"{whole}-{part.name}",
            storage_options=self.place.storage_options,
            waits_for_others=True,
            allows_empty=True,
        )
        try:
            stats = save_source(select_part(self.source, part), self.place.part_url(number), settings)
        except BadSampleError as error:
            raise type(error)(f"{error.message}. {_SAME_FIELDS}", **error.facts) from error
        return PartDone(number, stats.num_examples, stats.total_bytes)

    def finish(self) -> None:
        """Join all parts to one dataset, once they are whole. It is the same whichever process does it."""
        indexes: dict[str, Index] = {}
        rows: list[int] = []
        for number in range(self.num_parts):
            found = self.place.read_part(number)
            if found is None:
                raise ResumeError(
                    f"part {number} of the cache at {self.place.shown} was removed: build the cache again"
                )
            rows.append(found[0]["num_rows"])
            indexes[part_name(number)] = found[1]
        if not sum(rows):
            raise EmptyDatasetError(f"there is no sample to cache at {self.place.shown}")
        manifest = {
            "version": VERSION,
            "key": self.format.key,
            **self.about,
            "num_rows": sum(rows),
            "rows_of_parts": rows,
            "finished_at": time.time(),
        }
        with self.place.hold(PLAN_LOCK, waits=True):
            self.place.write(INDEX_NAME, dump_index(merge_indexes(indexes), is_merged=True))
            self.place.write(MANIFEST_NAME, json.dumps(manifest, indent=1).encode())
        self.place.forget_locks(indexes)


def prepare_build(source: ShardedSource, place: CachePlace, form: CacheFormat, about: Mapping[str, Any]) -> CacheBuild:
    """Agree on a plan: the first who comes makes it, and others follow it."""
    with place.hold(PLAN_LOCK, waits=True):
        written = place.read(PLAN_NAME)
        if written is None:
            written = _make_plan(source, place, form)
            place.write(PLAN_NAME, json.dumps(written).encode())
    if written.get("version") != VERSION:
        raise ResumeError(f"the cache at {place.shown} was begun by another version: delete it")
    plan = CachePlan(columns=written["columns"], parts=[Part(*part) for part in written["parts"]])
    return CacheBuild(source=source, place=place, format=form, about=about, plan=plan)


def _make_plan(source: ShardedSource, place: CachePlace, form: CacheFormat) -> dict[str, Any]:
    samples = iter(source)
    first = samples.take(PROBE_ROWS)
    samples.close()
    if not first:
        raise EmptyDatasetError(f"there is no sample to cache at {place.shown}")
    infos = [source.get_shard_info(name) for name in source.shard_names]
    columns = infer_columns(first)
    parts = plan_parts(infos, max(1, parse_bytes(form.part_size)), partial(find_cuts, source))
    return {"version": VERSION, "columns": columns, "parts": [part.to_list() for part in parts]}


def _part_done(number: int, manifest: Mapping[str, Any]) -> PartDone:
    return PartDone(number, manifest["num_rows"], sum(file["bytes"] for file in manifest["files"]))
