"""`cache_source`: a source whose samples are computed once, and read from where they are kept."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.pipeline.caching.background import BackgroundBuild
from penstock.pipeline.caching.build import PLAN_LOCK, CacheFormat, prepare_build
from penstock.pipeline.caching.engines import ProcessPool, RayEngine
from penstock.pipeline.caching.identity import cache_name, describe, order_fingerprint_by
from penstock.pipeline.caching.place import CachePlace
from penstock.pipeline.caching.source import CachedShardedSource
from penstock.pipeline.stages import BaseStage, hold_in_memory, storage_options
from penstock.publish.materialise import ThisProcess, materialise
from penstock.publish.settings import MANIFEST_NAME
from penstock.sources.code_digest import why_none, with_code
from penstock.storage.base import url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.pipeline.caching.build import CacheBuild, PartDone
    from penstock.pipeline.config import CacheStageConfig, RayConfig
    from penstock.pipeline.observing import Observer
    from penstock.pipeline.stages import Data, PipelineContext
    from penstock.publish.materialise import Engine
    from penstock.sources.base import ShardedSource

CODECS = {"none": None, "gzip": "gz", "zstd": "zstd"}


def cache_source(
    source: ShardedSource,
    config: CacheStageConfig,
    *,
    name: str,
    observer: Observer,
    root: str | None = None,
    ray: RayConfig | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ShardedSource:
    """Return a source of the same samples that are kept, in memory or in files; what is there already is used.

    Args:
        source: The source.
        config: How and where its samples are kept.
        name: What it is called in progress and counts.
        observer: Hears of the progress.
        root: Where caches are, instead of `config.cache_dir`.
        ray: Who builds it, if Ray is to.
        storage_options: Credentials and settings of the store that caches are in.
    """
    if not config.enabled:
        return source
    if source.is_endless:
        raise ConfigError("a source that never ends cannot be cached: cache before you mix")
    if config.cache_type == "memory":
        return hold_in_memory(source, name, observer)
    order_fingerprint = order_fingerprint_by(source, config.hash_fn)
    fingerprint = with_code(order_fingerprint, source.code_digests)
    if fingerprint is None or order_fingerprint is None:
        raise ConfigError(
            "the source has no fingerprint, so cached samples might be out of date:"
            f" {why_none(source.code_digests)}cache in memory, cache_type='memory', or write the samples with"
            " save_dataset"
        )
    form = CacheFormat(
        compression=CODECS[config.compression], max_shard_size=config.max_shard_size, part_size=config.part_size
    )
    place = _place(root or config.cache_dir, cache_name(fingerprint, form.key), storage_options)
    held = config.memory_cache_size << 20 if config.cache_type == "hierarchical" else 0
    manifest = _fresh_manifest(place, config.disk_cache_expiry)
    if manifest is not None:
        parts = len(manifest["rows_of_parts"])
        return CachedShardedSource(place, parts, order_fingerprint, source.code_digests, memory_bytes=held)
    job = prepare_build(source, place, form, describe(source, fingerprint))
    builder = _build(job, _engine(config, ray), name, observer, waits=config.wait)
    return CachedShardedSource(
        place, len(job.plan.parts), order_fingerprint, source.code_digests, builder=builder, memory_bytes=held
    )


class CacheStage(BaseStage):
    """Keeps what each dataset gives up to here, under its fingerprint."""

    name = "cache"

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Build or find the caches."""
        config, made = context.config, dict(data)
        for name, dataset in zip(config.names, config.datasets, strict=True):
            if dataset.cache_enabled and name in made:
                made[name] = cache_source(
                    made[name],
                    self.config,
                    name=name,
                    observer=context.observer,
                    root=dataset.cache_path,
                    ray=config.ray,
                    storage_options=storage_options(config),
                )
        return made


def _build(job: CacheBuild, engine: Engine, name: str, observer: Observer, *, waits: bool) -> BackgroundBuild | None:
    """Build a cache now, or begin to."""

    def run(on_part: Callable[[PartDone], None], is_stopped: Callable[[], bool]) -> None:
        with observer.watch("cache", name) as work:

            def note(part: PartDone) -> None:
                work.add(part.num_rows, part.num_bytes)
                on_part(part)

            materialise(job, engine, note, is_stopped)

    if not waits:
        return BackgroundBuild(run, job.place.shown, job.num_parts)
    run(lambda _: None, lambda: False)
    return None


def _engine(config: CacheStageConfig, ray: RayConfig | None) -> Engine:
    if ray is not None and ray.enabled:
        return RayEngine(ray)
    return ProcessPool(config.num_workers) if config.num_workers else ThisProcess()


def _place(root: str, name: str, storage_options: Mapping[str, Any] | None) -> CachePlace:
    if url_scheme(root) in (None, "file"):
        return CachePlace(str(LocalStore.from_url(root).root.expanduser().absolute() / name))
    return CachePlace(join_url(root, name), storage_options)


def _fresh_manifest(place: CachePlace, expiry_s: float | None) -> dict[str, Any] | None:
    """Read the manifest of a cache that is whole; one that is too old is removed."""
    manifest = place.read(MANIFEST_NAME)
    if manifest is None or expiry_s is None or manifest["finished_at"] + expiry_s > time.time():
        return manifest
    with place.hold(PLAN_LOCK, waits=True):
        again = place.read(MANIFEST_NAME)
        if again is not None and again["finished_at"] == manifest["finished_at"]:
            place.remove()
    return None
