"""The cache stage: what sources give, written once as MDS shards under a fingerprint, and read from there."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import threading
import time
import weakref
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.blocks.stage import check_row
from penstock.data.local import LocalDataset
from penstock.errors import BadSampleError, CacheError, ConfigError, EmptyDatasetError
from penstock.interrupts import WaitingFor
from penstock.order.lru import LRU
from penstock.pipeline.stages import BaseStage, hold_in_memory, storage_options
from penstock.publish.dataset_writer import MANIFEST_NAME, SaveSettings
from penstock.publish.engines import ENGINES, ProcessPool, RayEngine, ThisProcess
from penstock.publish.materialise import PARTS_VERSION, PLAN_LOCK, PLAN_NAME, PartsTarget, materialise, part_name
from penstock.publish.mds_files import infer_columns
from penstock.publish.sizes import PROBE_ROWS
from penstock.sources.base import ShardedSource, TransformedShardedSource
from penstock.sources.code_digest import why_none, with_code
from penstock.sources.composite import LimitedShardedSource
from penstock.sources.cutting import CutSource, find_cuts, plan_cuts
from penstock.sources.files.base import FileShardedSource
from penstock.sources.files.hub import HuggingFaceShardedSource
from penstock.sources.iterators import RowStage
from penstock.sources.shard_info import Cut, ShardInfo
from penstock.sources.shuffling import size_of
from penstock.sources.tokens.source import TokenizeTransform
from penstock.sources.transforms import ChainedTransform
from penstock.storage.base import url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.data.dataset import StreamingDataset
    from penstock.pipeline.config import HashFunction
    from penstock.pipeline.observing import Observer
    from penstock.pipeline.stages import Data, PipelineContext
    from penstock.publish.engines import Engine
    from penstock.publish.materialise import PartDone
    from penstock.reading.source import CodeDigest
    from penstock.sources.transforms import AnyTransform
    from penstock.types import Sample

    # Builds a cache: tells of each part, and asks whether to stop.
    Run = Callable[[Callable[[PartDone], None], Callable[[], bool]], None]

_CODECS = {"none": None, "gzip": "gz", "zstd": "zstd"}
_ROWS_AT_ONCE = 256
_OPEN_PARTS = 4


class CacheStage(BaseStage):
    """Keeps what each dataset gives up to here, under its fingerprint."""

    name = "cache"

    def process(self, data: Data, context: PipelineContext) -> Data:
        """Build or find the caches."""
        config, made = context.config, dict(data)
        for name, dataset in config.named.items():
            if self.config.enabled and dataset.cache_enabled and name in made:
                made[name] = self._cache(made[name], name, dataset.cache_path or self.config.cache_dir, context)
        return made

    def _cache(self, source: ShardedSource, name: str, root: str, context: PipelineContext) -> ShardedSource:
        """Return a source of the same samples that are kept; what is there already is used."""
        config, observer, ray = self.config, context.observer, context.config.ray
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
        settings = SaveSettings(
            "mds",
            max_shard_size=config.max_shard_size,
            compression=_CODECS[config.compression],
            storage_options=storage_options(context.config),
        )
        stored_as = {
            "compression": settings.compression,
            "max_shard_size": settings.max_bytes,
            "part_size": parse_bytes(config.part_size),
        }
        if url_scheme(root) in (None, "file"):
            root = str(LocalStore.from_url(root).root.expanduser().absolute())
        place = join_url(root, _digest([fingerprint, stored_as])[:32])
        target = PartsTarget(place, settings, {"key": stored_as, **describe(source, fingerprint)})
        manifest, builder = _fresh_manifest(target, config.disk_cache_expiry), None
        if manifest is None:
            tasks, target = follow_plan(source, target, config.part_size)
            num_parts = len(tasks.cuts)
            engine: Engine = ProcessPool(config.num_workers) if config.num_workers else ThisProcess()
            if config.engine != "local":
                engine = ENGINES[config.engine](config.num_workers or os.cpu_count() or 1)
            if ray.enabled:
                engine = RayEngine(**ray.arguments("enabled"))
            build = partial(_build, tasks, target, engine, name, observer)
            if config.wait:
                build(lambda _: None, lambda: False)
            else:
                builder = BackgroundBuild(build, target.shown, num_parts)
        else:
            num_parts = len(manifest["rows_of_parts"])
        held = config.memory_cache_size << 20 if config.cache_type == "hierarchical" else 0
        return CachedShardedSource(
            target, num_parts, order_fingerprint, source.code_digests, builder=builder, memory_bytes=held
        )


def follow_plan(source: ShardedSource, target: PartsTarget, part_size: int | str) -> tuple[CutSource, PartsTarget]:
    """Agree on what is written: the first who comes makes a plan, and others follow it."""
    with target.hold(PLAN_LOCK, waits=True):
        plan = target.read(PLAN_NAME)
        if plan is not None and plan.get("version") != PARTS_VERSION:
            target.remove()
            plan = None
        if plan is None:
            with closing(iter(source)) as samples:
                first = samples.take(PROBE_ROWS)
            if not first:
                raise EmptyDatasetError(f"there is no sample to cache at {target.shown}")
            infos = [source.get_shard_info(name) for name in source.shard_names]
            cuts = plan_cuts(infos, max(1, parse_bytes(part_size)), partial(find_cuts, source))
            plan = {"columns": infer_columns(first), "parts": [cut.to_list() for cut in cuts]}
            target.write(PLAN_NAME, plan)
    settings = replace(target.settings, columns=plan["columns"], drops_extra=False)
    return CutSource(source, [Cut(*part) for part in plan["parts"]]), replace(target, settings=settings)


def _build(
    tasks: CutSource,
    target: PartsTarget,
    engine: Engine,
    name: str,
    observer: Observer,
    on_part: Callable[[PartDone], None],
    is_stopped: Callable[[], bool],
) -> None:
    with observer.watch("cache", name) as work:

        def note(part: PartDone) -> None:
            work.add(part.num_rows, part.num_bytes)
            on_part(part)

        try:
            materialise(tasks, target, engine, note, is_stopped)
        except BadSampleError as error:
            raise type(error)(
                f"{error.message}. Cached samples have the fields and types of the first ones: choose fields, or give"
                " them one type, in a transform before cache()",
                **error.facts,
            ) from error


def _fresh_manifest(target: PartsTarget, expiry_s: float | None) -> dict[str, Any] | None:
    """Read the manifest of a cache that is whole; one that is too old, or of another version, is removed."""
    manifest = target.read(MANIFEST_NAME)
    if manifest is None:
        return None
    is_fresh = expiry_s is None or manifest["finished_at"] + expiry_s > time.time()
    if is_fresh and manifest.get("version") == PARTS_VERSION:
        return manifest
    with target.hold(PLAN_LOCK, waits=True):
        if target.read(MANIFEST_NAME) == manifest:
            target.remove()
    return None


# --- Reading -------------------------------------------------------------------------------------------------


class CachedShardedSource(ShardedSource):
    """What a cache holds, in order or by row. A part that is not built yet is waited for, where it is asked for.

    Args:
        target: The cache.
        num_parts: How many parts it has or will have.
        fingerprint: That of the source whose samples these are, without its code.
        code_digests: Of the functions that made the samples.
        builder: Who builds it, if it is not whole.
        memory_bytes: Up to how many bytes of samples that were read are held in memory.
    """

    def __init__(
        self,
        target: PartsTarget,
        num_parts: int,
        fingerprint: str,
        code_digests: Sequence[CodeDigest] = (),
        *,
        builder: BackgroundBuild | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self._target, self._fingerprint, self._builder = target, fingerprint, builder
        self.code_digests = code_digests
        self._names = [part_name(number) for number in range(num_parts)]
        self._memory_bytes = memory_bytes
        self._rows: dict[int, int] = {}  # of parts that are known to be whole
        self._starts: list[int] | None = None  # of all parts, once the cache is whole
        self._start()

    def _start(self) -> None:
        self._own = threading.local()  # a dataset is for one thread
        self._held = _HeldBlocks(self._memory_bytes)

    @property
    def place(self) -> str:
        """The folder or URL of the cache: a dataset for a `StreamingDataset`, once it is whole."""
        return self._target.url

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the parts."""
        return self._names

    @property
    def order_fingerprint(self) -> str:
        """That of the source, and how it is cut."""
        return f"{self._fingerprint}-cached-{len(self._names)}"

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the number of rows of a part; waits for it."""
        number = self.shard_number(shard_name)
        return ShardInfo(number, shard_name, self._num_rows(number))

    def shard_lengths(self) -> list[int]:
        """Return the number of rows of all parts; waits for them."""
        starts = self._whole()
        return [end - begin for begin, end in itertools.pairwise(starts)]

    @property
    def has_random_rows(self) -> bool:
        """Rows can be read by number."""
        return True

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows of a part."""
        number = self.shard_number(shard_name)
        dataset, first = self._dataset(number)
        samples: list[Sample] = dataset[[first + int(row) for row in rows]] if len(rows) else []
        return samples

    def open_stage(self, shard_name: str, row: int = 0) -> RowStage:
        """Open a part at a row; it is waited for when its first sample is."""
        if row:
            check_row(shard_name, row, self.get_shard_info(shard_name).num_rows)
        return RowStage(partial(self._read_chunks, shard_name), row)

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        number = self.shard_number(shard_name)
        length = self._num_rows(number)
        for begin in range(row - row % _ROWS_AT_ONCE, length, _ROWS_AT_ONCE):
            rows = range(begin, min(begin + _ROWS_AT_ONCE, length))
            block = self._held.get((number, begin))
            if block is None:
                block = self.read_rows(shard_name, rows)
                self._held.put((number, begin), block)
            yield block[max(0, row - begin) :]

    def close(self) -> None:
        """Have the building stop after the parts that are under way; what is built is kept."""
        if self._builder is not None:
            self._builder.stop()

    # --- Parts ----------------------------------------------------------------------------------------------

    def _num_rows(self, number: int) -> int:
        if number not in self._rows:
            if self._starts is None and self._builder is not None:
                self._rows[number] = self._builder.wait_for(number).num_rows
            else:
                self._rows[number] = self.shard_lengths()[number]
        return self._rows[number]

    def _whole(self) -> list[int]:
        """Return where each part begins, of a cache that is whole; waits for that."""
        if self._starts is None:
            if self._builder is not None:
                self._builder.wait_for()
            manifest = self._target.read(MANIFEST_NAME)
            if manifest is None or len(manifest["rows_of_parts"]) != len(self._names):
                raise CacheError(f"the cache at {self._target.shown} was removed or replaced: build it again")
            self._starts = [0, *np.cumsum(manifest["rows_of_parts"], dtype=np.int64).tolist()]
        return self._starts

    def _dataset(self, number: int) -> tuple[LocalDataset | StreamingDataset, int]:
        """Return a dataset that holds a part, and where in it the part begins."""
        if self._starts is None and self._builder is not None and not self._builder.is_whole:
            self._builder.wait_for(number)
            return self._open(part_name(number)), 0
        return self._open(""), self._whole()[number]

    def _open(self, name: str) -> LocalDataset | StreamingDataset:
        opened: LRU[LocalDataset | StreamingDataset] = self._own.__dict__.setdefault("opened", LRU(_OPEN_PARTS))
        return opened(name, partial(self._open_anew, name))

    def _open_anew(self, name: str) -> LocalDataset | StreamingDataset:
        folder = self._target.folder
        if folder is not None:
            return LocalDataset(folder / name)
        from penstock.data.dataset import StreamingDataset  # it loads torch, if that is installed

        url = join_url(self._target.url, name).rstrip("/")
        return StreamingDataset(remote=url, shuffle=False, storage_options=self._target.settings.storage_options)

    def __getstate__(self) -> dict[str, Any]:
        if self._builder is not None:
            self._whole()  # who builds it stays here
        left = {"_own": None, "_held": None, "_builder": None}
        return {**self.__dict__, **left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


class _HeldBlocks:
    """The first blocks of samples that were read, up to so many bytes.

    Each pass reads them in much the same order: to make room for later ones would mean that none is there in time.
    """

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._blocks: dict[tuple[int, int], list[Sample]] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int]) -> list[Sample] | None:
        held = self._blocks.get(key)
        return None if held is None else [_copy(sample) for sample in held]

    def put(self, key: tuple[int, int], block: list[Sample]) -> None:
        if self._room <= 0:
            return
        num_bytes = sum(map(size_of, block))
        with self._lock:
            if num_bytes <= self._room and key not in self._blocks:
                self._room -= num_bytes
                self._blocks[key] = [_copy(sample) for sample in block]


def _copy(sample: Sample) -> Sample:
    """Copy a sample, because its receiver may change it."""
    return {
        name: value.copy()
        if isinstance(value, np.ndarray)
        else value
        if isinstance(value, str | bytes | int | float | None)
        else copy.deepcopy(value)
        for name, value in sample.items()
    }


# --- While it is built ---------------------------------------------------------------------------------------


class BackgroundBuild:
    """Builds a cache in a thread, until it is whole, stopped, or this object is not held any more.

    Readers wait for a part, and hear if it cannot come.
    """

    def __init__(self, run: Run, where: str, num_parts: int) -> None:
        self._where = where
        self._parts: list[Future[PartDone]] = [Future() for _ in range(num_parts)]
        self._whole: Future[Any] = Future()
        stopped, every = threading.Event(), [*self._parts, self._whole]
        self.stop = weakref.finalize(self, _stop, stopped, every, where)  # after the parts that are under way
        arguments = (run, self._parts, self._whole, stopped)
        threading.Thread(target=_run, args=arguments, name="penstock-cache", daemon=True).start()

    @property
    def is_whole(self) -> bool:
        """Whether all is built."""
        return self._whole.done() and self._whole.exception() is None

    def wait_for(self, number: int | None = None) -> Any:
        """Wait for a part, or for all of them; if it cannot come, the reason is raised."""
        what = "" if number is None else f"part {number} of "
        with WaitingFor(f"{what}the cache at {self._where}"):
            return (self._whole if number is None else self._parts[number]).result()


def _run(run: Run, parts: list[Future[PartDone]], whole: Future[Any], stopped: threading.Event) -> None:
    """Build all parts. This function knows nothing of the object that readers ask, so that it can go."""

    def note(part: PartDone) -> None:
        with suppress(InvalidStateError):  # it was stopped
            parts[part.number].set_result(part)

    try:
        run(note, stopped.is_set)
        whole.set_result(None)
    except BaseException as error:  # noqa: BLE001  raised again where it is waited for
        _fail([*parts, whole], error)


def _stop(stopped: threading.Event, futures: list[Future[Any]], where: str) -> None:
    stopped.set()
    _fail(futures, CacheError(f"the building of the cache at {where} was stopped: build it again to go on"))


def _fail(futures: list[Future[Any]], error: BaseException) -> None:
    """Have those that are not done raise an error."""
    for future in futures:
        with suppress(InvalidStateError):
            future.set_exception(error)


# --- What it is keyed by -------------------------------------------------------------------------------------


def order_fingerprint_by(source: ShardedSource, how: HashFunction) -> str | None:
    """Return the fingerprint of a source, without code, in which files are told apart as `hash_fn` asks for.

    `"combined"` is the one that it has: names, sizes, versions and times of files. `"path"` takes names alone: a cache
    stays right for you whatever happens to the files. `"content"` reads all bytes of local files, and takes what stores
    tell of others, but no names or times: moved and copied files find their cache again.
    """
    if how == "combined":
        return source.order_fingerprint
    if isinstance(source, TransformedShardedSource):
        inner = order_fingerprint_by(source.source, how)
        transform = ChainedTransform(list(source.transforms)).order_fingerprint()
        return None if inner is None or transform is None else f"{inner}-{transform}"
    if isinstance(source, LimitedShardedSource):
        inner = order_fingerprint_by(source.source, how)
        return None if inner is None else f"{inner}-first-{source.max_rows}"
    if isinstance(source, HuggingFaceShardedSource) and source.file_source is not None:
        return order_fingerprint_by(source.file_source, how)
    if how == "path":
        return f"path-{_digest([_kind(source), list(source.shard_names)])}"
    if not isinstance(source, FileShardedSource):
        raise ConfigError(f"hash_fn='content' is for files, and this is a {type(source).__name__}: use 'combined'")
    return f"content-{_digest([_kind(source), [file.content_digest() for file in source.files]])}"


def _kind(source: ShardedSource) -> str:
    """Return how files are read."""
    return f"{type(source).__name__} {source.reading}" if isinstance(source, FileShardedSource) else ""


def describe(source: ShardedSource, fingerprint: str) -> dict[str, Any]:
    """Return the fingerprints of a source one by one: of the data, of all transforms, and of their tokenizers."""
    transforms: list[AnyTransform] = []
    inner = source
    while isinstance(inner, TransformedShardedSource | LimitedShardedSource):
        if isinstance(inner, TransformedShardedSource):
            transforms = [*inner.transforms, *transforms]
        inner = inner.source
    return {
        "fingerprint": fingerprint,
        "source": inner.fingerprint,
        "transforms": ChainedTransform(transforms).order_fingerprint() if transforms else None,
        "code": [each[:2] for each in source.code_digests],
        "tokenizers": [each.tokenizer_hash for each in transforms if isinstance(each, TokenizeTransform)],
    }


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
