"""`StreamingDataset`: shards in a store, samples in the training loop."""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from penstock.codecs.digest import check_hashes
from penstock.data.collate import keep_small_tensors_inside
from penstock.data.getitem import resolve_ids
from penstock.data.orphans import end_with_parent
from penstock.data.passes import NO_WORKER
from penstock.data.resharding import refuse_resharding
from penstock.data.run import Runs
from penstock.data.run_state import Job
from penstock.data.seat import is_worker, pass_key, worker_of
from penstock.data.state import WorkerState, is_worker_state
from penstock.data.stream import Stream, name_streams
from penstock.data.stream import streams as stream_classes
from penstock.data.torch_base import IterableDataset
from penstock.errors import ConfigError, ResumeError, SampleIndexError, SampleKeyError
from penstock.formats.base import ReadOptions
from penstock.interrupts import cut_short
from penstock.order.make_plan import RunSettings, count_epoch
from penstock.order.options import StreamShards
from penstock.reading.pass_reader import Here, Tour
from penstock.reading.prefetch import Course, Outlook, batches_ahead, max_open_shards
from penstock.reading.shard_table import open_streams
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from penstock.data.passes import Pass
    from penstock.formats.encodings.base import ImageDecoder
    from penstock.order.batching import BatchingMethod
    from penstock.order.mosaic.rules import MosaicVersion, SamplingMethod
    from penstock.order.plan import EpochEnd
    from penstock.order.schedule import MixSchedule
    from penstock.types import Columns, Int64Array

    Numbers = slice | Sequence[int] | Int64Array


class StreamingDataset(IterableDataset[Any]):
    """Iterates over the samples of one or more streams, and gives any of them by number.

    Give it to a `StreamingDataLoader`, to a torch `DataLoader` with any number of workers, or iterate it. Each pass is
    the next epoch. The order is the same on any number of ranks and workers, and a state taken anywhere is resumed
    anywhere. Nothing is fetched before it is asked for but the indexes.

    Args:
        streams: The streams to mix. Or, for one stream, its `remote`, `local` and `split`.
        remote: Where the dataset is kept: a URL or a path.
        local: The folder to keep fetched shards in; without a remote, where the dataset is.
        split: A folder below both.
        download_retry: How often in a row to try again what failed for a passing reason; 0 for a single try.
        download_timeout: Seconds without a single byte. A store is given up only when the tries are used up as well.
        validate_hash: Name of the digest to check on each file that is fetched, and on those that lie there already.
            Left out: what is fetched is checked by the quickest digest in the index, if it has any.
        keep_zip: Keep the compressed form of shards beside the raw one.
        epoch_size: How many samples an epoch draws, such as 1_000_000 or "1m"; by default all of them.
        predownload: How many samples ahead of the training step each rank has shards fetched; by default, by bytes.
        cache_limit: How much disk the folders of this dataset may take on each node, such as "100gb".
        sampling_method: For `order="mosaic"`: `balanced` or `fixed`.
        sampling_granularity: For `order="mosaic"`: how many samples are chosen in a row.
        partition_algo: For `order="mosaic"`: `orig` or `relaxed`.
        num_canonical_nodes: The lanes of the order; a number of nodes that divides it shares no shards.
        batch_size: Samples of each rank in a batch. A `StreamingDataLoader` says it for you.
        shuffle: Shuffle over all shards, anew in each epoch.
        shuffle_algo: An algorithm of MosaicML Streaming's (`py1e`, `py1br`, `py1s`, `py2s`, `naive`), for its order.
        shuffle_seed: Seed of the order.
        shuffle_block_size: How many samples each lane shuffles among.
        batching_method: `random`, `stratified`, `per_stream` or `device_per_stream`.
        allow_unsafe_types: Read `pkl` columns, which can run code of whoever wrote them.
        replication: So many consecutive ranks get the same samples (tensor or sequence parallel).
        stream_name: Name of the class of streams to make from `stream_config`.
        stream_config: Arguments of that class, besides `remote`, `local` and `split`.
        rank: This process's rank, where the launcher does not say; belongs with `world_size` and maybe `num_nodes`.
        world_size: The number of ranks.
        num_nodes: The number of nodes, equally many ranks on each.
        on_error: What to do with a sample that cannot be read: `raise`, or `skip`: another one of its batch stands in.
        image_decoder: Give images as `"pil"` images, RGB `"array"`s, or `"raw"` stored bytes.
        columns: Read these columns only.
        columnar: Iterate over batches, each a dict of arrays, instead of samples.
        order: `native` (the default), `mosaic`, or one that a plug-in registered.
        epoch_end: What to do where samples do not divide by ranks: `pad`, `drop` or `uneven`.
        schedule: How proportions change over the run.
        mosaic_version: Which release's order `order="mosaic"` means: `0.13` or `0.5`.
        allow_mix_change: Let a loaded state go on with other weights or streams than it was made with.
        storage_options: Credentials and settings of the stores, as fsspec calls them.
    """

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | float | str | None = None,
        predownload: int | None = None,
        cache_limit: int | float | str | None = None,
        sampling_method: SamplingMethod = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str | None = None,
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str | None = None,
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: BatchingMethod = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_nodes: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        image_decoder: ImageDecoder = "pil",
        columns: Sequence[str] | None = None,
        columnar: bool = False,
        order: str | None = None,
        epoch_end: EpochEnd = "pad",
        schedule: MixSchedule | None = None,
        mosaic_version: MosaicVersion = "0.13",
        allow_mix_change: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_arguments(columns, on_error, batch_size, predownload)
        self.streams = _gather_streams(streams, remote, local, split, stream_name, stream_config)
        for stream in self.streams:
            stream.apply_default(
                {
                    "split": split,
                    "download_retry": download_retry,
                    "download_timeout": download_timeout,
                    "validate_hash": None if validate_hash is None else check_hashes(validate_hash)[0],
                    "keep_zip": keep_zip,
                    "storage_options": storage_options,
                }
            )
        self.predownload = predownload
        self.cache_limit = None if cache_limit is None else parse_bytes(cache_limit)
        self.replication = replication
        self.on_error = on_error
        self.columnar = columnar
        settings = RunSettings(
            order=order,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            epoch_size=epoch_size,
            epoch_end=epoch_end,
            batching_method=batching_method,
            schedule=schedule,
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
            partition_algo=partition_algo,
            mosaic_version=mosaic_version,
        )
        options = ReadOptions(
            image_decoder=image_decoder,
            allow_unsafe_types=allow_unsafe_types,
            columns=None if columns is None else tuple(columns),
        )
        try:
            self.table = open_streams(self.streams, options, self.cache_limit)
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None
        shards = [
            StreamShards(name=name, lengths=place.index.lengths, weight=stream.weight)
            for name, place, stream in zip(name_streams(self.streams), self.table.places, self.streams, strict=True)
        ]
        self.epoch_size = _fill_weights(self.streams, shards, settings)
        self._job = Job(
            Runs(shards, settings, self.table, limit_bytes=self.cache_limit, allow_mix_change=allow_mix_change),
            settings,
            rank=rank,
            world_size=world_size,
            num_nodes=num_nodes,
            replication=replication,
            batch_size=batch_size,
        )
        num_bytes = float(self.table.raw_bytes().sum())
        self.mean_sample_bytes = num_bytes / max(1, self.num_samples)
        self.mean_shard_bytes = num_bytes / max(1, self.num_shards)
        self._worker_state: WorkerState | None = None
        self._meant_for: int | None = None
        self._in_process = Here(self.table)

    @property
    def batch_size(self) -> int | None:
        """Samples of each rank in a batch."""
        return self._job.batch_size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        self._job.batch_size = value

    # --- How large it is --------------------------------------------------------------------------------------

    @property
    def num_samples(self) -> int:
        """The number of samples that there are; `epoch_size` is what an epoch draws of them."""
        return self.table.spans.num_samples

    @property
    def size(self) -> int:
        """The number of samples that there are."""
        return self.table.spans.num_samples

    @property
    def samples_per_stream(self) -> Int64Array:
        """The number of samples that there are in each stream."""
        return np.diff(self.table.first_ids)

    @property
    def num_shards(self) -> int:
        """The number of shards of all streams."""
        return len(self.table.spans)

    def __len__(self) -> int:
        """Count the samples that this rank gets in an epoch."""
        return self._job.num_samples(self.epoch_size)

    # --- Samples by number ------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, key: Numbers) -> list[Any]: ...
    def __getitem__(self, key: int | np.integer[Any] | Numbers) -> Any:
        try:
            ids = resolve_ids(key, self.num_samples)
            if isinstance(ids, int):
                return self.get_item(ids)
            if type(self).get_item is not StreamingDataset.get_item:
                return [self.get_item(int(number)) for number in ids]
            return self._here().feed.read_some(ids)
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None

    def get_item(self, sample_id: int) -> Any:
        """Give one sample by its number. Override it to change samples: iterating calls it, too.

        Of a shard that is not on this machine and not compressed, only the sample's own bytes are fetched.
        """
        here = self._here()
        at_hand = here.at_hand.pop(sample_id, None)
        if at_hand is not None:
            return at_hand
        if not 0 <= sample_id < self.num_samples:
            raise SampleIndexError(
                f"sample {sample_id} is out of range: the dataset has {self.num_samples}", sample=sample_id
            )
        return here.feed.read_one(sample_id)

    def read_columns(self, key: Numbers) -> Columns:
        """Give samples by column, in the order asked for: an array a column where the values allow it, else a list."""
        ids = resolve_ids(key, self.num_samples)
        if isinstance(ids, int):
            raise SampleKeyError("read_columns takes a slice, a list or an array of numbers, not a single one")
        try:
            return self._here().feed.read_columns(ids)
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None

    # --- Iterating --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Begin the next pass: the samples of this rank, or of this worker's share of them."""
        refuse_resharding(self._job.seat().world.num_ranks)
        if is_worker() and self.batch_size is None and worker_of()[0] == 0:
            warnings.warn(
                "a loader with workers cannot tell this dataset its batch size: pass batch_size= to the dataset, or use"
                " penstock's StreamingDataLoader; until then no state can be taken",
                stacklevel=2,
            )
        number, self._meant_for = self._meant_for, None
        if is_worker():
            end_with_parent()
            keep_small_tensors_inside()
            return chain.from_iterable(self._set_out(number).pieces())
        return chain.from_iterable(self._set_out_later(number))

    def _set_out_later(self, number: int | None) -> Iterator[Iterator[Any]]:
        """Begin a pass when its first item is taken: loaders make iterators that they never use."""
        try:
            yield from self._set_out(number).pieces()
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None

    def _set_out(self, number: int | None) -> Tour:
        worker, num_workers = worker_of()
        begun = self._job.book.join(worker if is_worker() else NO_WORKER, pass_key(), self._job.start_of, number)
        here = self._here()
        here.tour = self._tour(begun, worker, num_workers, here)
        return here.tour

    @contextmanager
    def beginning_pass(self, num_workers: int) -> Iterator[Pass]:
        """Begin a pass for a loader with so many workers, or none; who is started within the block takes part in it."""
        begun = self._job.book.announce(num_workers, self._job.start_of)
        self._meant_for = begun.number
        try:
            yield begun
        finally:
            self._meant_for = None

    def tours(self, begun: Pass, num_threads: int) -> list[Tour]:
        """Give the ways of several threads, or of this one, through a pass that was begun for none of the workers."""
        self._job.book.join(NO_WORKER, None, self._job.start_of, begun.number)
        here = self._here()
        if num_threads == 0:
            here.tour = self._tour(begun, 0, 1, here)
            return [here.tour]
        here.tour = None  # threads read ahead of what is taken, which only their loader counts
        parts = here.of_threads(num_threads)
        return [self._tour(begun, thread, num_threads, part) for thread, part in enumerate(parts)]

    def abandon_threads(self) -> None:
        """Leave the threads of `tours` alone, which may still wait for a store."""
        self._here().abandon_threads()

    def _tour(self, begun: Pass, worker: int, num_workers: int, here: Here) -> Tour:
        seat = self._job.seat()
        seat = replace(seat, world=replace(seat.world, workers_per_rank=num_workers), worker=worker)
        course = Course(
            plan=self._job.plan(seat),
            at=begun.at,
            seat=seat,
            global_batch_size=self._job.global_batch_size(seat),
        )
        yielded = 0
        if self._worker_state is not None:
            yielded, self._worker_state = self._worker_state.yielded, None
        outlook = None
        if self.table.needs_cache and worker == 0:
            outlook = Outlook(course, self.table, self._batches_ahead(course))
        return Tour(self, course, here, yielded=yielded, outlook=outlook)

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass gives samples of its own making."""
        own = type(self)
        return own.get_item is not StreamingDataset.get_item or own.__getitem__ is not StreamingDataset.__getitem__

    # --- Where it stands --------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the one that the next pass goes through."""
        refuse_resharding(self._job.seat().world.num_ranks)
        self._job.book.set_epoch(epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass goes through, unless a state says otherwise."""
        return self._job.book.read().next_epoch

    @property
    def is_between_passes(self) -> bool:
        """Whether the next pass is what counts: a state was loaded or an epoch set, and no pass has begun since."""
        return self._job.book.read().is_between_passes

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Describe where the whole job stands, as plain JSON values: one state, valid on any number of ranks.

        The dataset counts what it yields in its own process. With a loader that has workers it cannot see what was
        delivered: pass `num_samples`, counted over all ranks, from the beginning of the epoch or of this pass; or take
        the state of a `StreamingDataLoader`, which counts.
        """
        if is_worker():
            return self._worker_state_dict()
        tour = self._here().tour
        yielded = None if tour is None else tour.yielded
        return self._job.state(num_samples, yielded, from_beginning=from_beginning)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass: of this class, of a `StreamingDataLoader`, or of MosaicML's."""
        if isinstance(state, dict) and is_worker_state(state):
            worker, num_workers = worker_of()
            self._worker_state = WorkerState.from_dict(state, worker=worker, num_workers=num_workers)
            state = self._worker_state.begun
            if self._job.book.read().state == state:
                return  # another worker of this loader was here first
        if not isinstance(state, dict) or "epoch" not in state:
            raise ResumeError(f"a state is a dict with an epoch, not {type(state).__name__}: load one as it was saved")
        self._job.book.load(dict(state))

    def _worker_state_dict(self) -> dict[str, Any]:
        tour = self._here().tour
        if tour is None:
            raise ResumeError("this worker has not begun a pass: there is no state to take")
        worker, num_workers = worker_of()
        begun = tour.course.plan.state_dict(tour.course.at)
        return WorkerState(worker=worker, num_workers=num_workers, yielded=tour.yielded, begun=begun).to_dict()

    def state_after(self, begun: Pass, num_steps: int, *, is_over: bool = False) -> dict[str, Any]:
        """Describe where the job stands after so many global batches of a pass, or at its end."""
        return self._job.state_after(begun, num_steps, is_over=is_over)

    def num_batches(self, epoch: int = 0, *, drop_last: bool = False) -> int:
        """Count the batches that this rank gets in an epoch."""
        return self._job.num_batches(epoch, drop_last=drop_last)

    # --- The cache --------------------------------------------------------------------------------------------

    def warm(self, key: Numbers | None = None) -> None:
        """Fetch the shards of some samples, or all shards, before they are needed."""
        try:
            for stream, shards in self._cached_shards(key):
                self.table.cache.warm(stream, shards)
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None

    def pin(self, key: Numbers | None = None) -> None:
        """Keep the shards of some samples, or all shards, in the cache until they are unpinned, by whatever job."""
        for stream, shards in self._cached_shards(key):
            self.table.cache.pin(stream, shards)

    def unpin(self, key: Numbers | None = None) -> None:
        """Let the cache remove these shards again when it needs the room."""
        for stream, shards in self._cached_shards(key):
            self.table.cache.unpin(stream, shards)

    def fetch(self, url: str, local: str | None = None, *, ahead: bool = False) -> Path:
        """Bring an object that lies beside the shards, such as a video, into the cache, and say where it is.

        With `ahead` it is fetched in the background: call again without when it is needed.

        `url` is a URL below the remote of one of the streams, or a key below the first one's. `local` is its name below
        the stream's folder. It counts against the cache limit and is evicted as shards are.
        """
        try:
            return self.table.fetch(url, local, [stream.url for stream in self.streams], ahead=ahead)
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None

    def stats(self) -> dict[str, Any]:
        """Count what this process read, fetched and waited for, and what the fetcher of this node did."""
        return {
            "process": {**self._here().describe(), **self.table.describe_cache()},
            "node": self.table.cache.node_stats(),
        }

    def close(self) -> None:
        """Close open shards and the connection to the fetcher; using the dataset again opens them anew."""
        self._here().close()
        self.table.cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cached_shards(self, key: Numbers | None) -> Iterator[tuple[int, list[int]]]:
        if key is None:
            return self.table.cached_shards(None)
        ids = resolve_ids(key, self.num_samples)
        ids = range(ids, ids + 1) if isinstance(ids, int) else ids
        return self.table.cached_shards(np.unique(self.table.spans.locate(np.asarray(ids, np.int64))[0]))

    # --- This process -----------------------------------------------------------------------------------------

    def _here(self) -> Here:
        """Give what belongs to this process alone; a forked one begins with nothing."""
        if self._in_process.pid != os.getpid():
            self._in_process = Here(self.table)
        return self._in_process

    def max_open_shards(self, course: Course) -> int | None:
        """Say how many shards this worker may hold open, so that the cache can still make room."""
        world = course.seat.world
        return max_open_shards(
            limit_bytes=self.cache_limit if self.table.needs_cache else None,
            shard_bytes=self.mean_shard_bytes,
            num_readers=world.ranks_per_node * world.workers_per_rank,
        )

    def _batches_ahead(self, course: Course) -> int:
        return batches_ahead(
            predownload=self.predownload,
            batch_size=course.batch_size,
            sample_bytes=self.mean_sample_bytes,
            limit_bytes=self.cache_limit,
            ranks_per_node=course.seat.world.ranks_per_node,
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_in_process"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._in_process = Here(self.table)


def _check_arguments(
    columns: Sequence[str] | None, on_error: str, batch_size: int | None, predownload: int | None
) -> None:
    if isinstance(columns, str):
        raise ConfigError(f"columns={columns!r} is a string: give a list of column names")
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error={on_error!r} is neither 'raise' nor 'skip'")
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} is no batch: give 1 or more")
    if predownload is not None and predownload < 0:
        raise ConfigError(f"predownload={predownload} is negative: give a number of samples, or leave it out")


def _fill_weights(streams: Sequence[Stream], shards: Sequence[StreamShards], settings: RunSettings) -> int:
    """Tell each stream what it gives to an epoch, and say how many samples that is altogether."""
    counts = count_epoch(shards, settings)
    for stream, part, count in zip(streams, shards, counts, strict=True):
        stream.fill_weight(count, part.num_samples, sum(counts))
    return sum(counts)


def _gather_streams(
    streams: Sequence[Stream] | None,
    remote: str | os.PathLike[str] | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    stream_name: str,
    stream_config: Mapping[str, Any] | None,
) -> list[Stream]:
    if streams is None:
        if remote is None and local is None:
            raise ConfigError("a StreamingDataset needs streams, or a remote, a local folder, or both")
        make = stream_classes.get(stream_name)
        return [make(remote=remote, local=local, split=split, **(stream_config or {}))]
    if remote is not None or local is not None:
        raise ConfigError("streams name their own remote and local: give either streams, or remote and local")
    if not streams:
        raise ConfigError("streams is empty: give at least one")
    return list(streams)
