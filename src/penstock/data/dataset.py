"""`StreamingDataset`: shards in a store, samples in the training loop."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.counters import open_counters
from penstock.data.getitem import nest, resolve_flat, resolve_ids
from penstock.data.identity import adopt_revisions
from penstock.data.mosaic_names import MosaicNames
from penstock.data.open_streams import open_streams
from penstock.data.pass_readers import PassReaders, is_worker_state
from penstock.data.ranks import is_worker, worker_number, worker_of
from penstock.data.run_state import Planner, RunState
from penstock.data.stream import DatasetSettings, apply_defaults, fill_weights, gather_streams
from penstock.data.summary import SamplesAsTables
from penstock.data.torch_loaders import (
    IterableDataset,
    is_counted_by_accelerate,
    keep_small_tensors_inside,
    refuse_resharding,
    warn_of_other_batches,
)
from penstock.errors import ConfigError, FetcherError, SampleIndexError
from penstock.interrupts import cut_short, trims_traceback
from penstock.order.state_fields import MOST, check_fields
from penstock.processes import end_with_parent
from penstock.reading.collected_rows import SOON
from penstock.reading.sample_rng import keys_of_ids, takes_rng
from penstock.reading.transforms import SampleTransforms, UnreadableSample, columns_maker, make_each
from penstock.sources.fluent_verbs import FluentVerbs
from penstock.units import check_whole, checks_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from typing_extensions import Self

    from penstock.data.sources.dataset_source import DatasetShardedSource, ShardNames
    from penstock.data.stream import Stream
    from penstock.formats.encodings.base import ImageDecoder
    from penstock.order.keys import UInt64Array
    from penstock.order.mosaic.rules import MosaicVersion, SamplingMethod
    from penstock.order.plan import BatchingMethod, EpochEnd
    from penstock.order.schedule import MixSchedule
    from penstock.reading.pass_reader import MakeSamples
    from penstock.reading.sample_rng import SampleRng
    from penstock.reading.source import Source
    from penstock.reading.transforms import BatchTransform, SampleTransform
    from penstock.scan.patterns import Given
    from penstock.sources.base import TransformedShardedSource, ViewShardedSource
    from penstock.sources.iterators import SampleIterator
    from penstock.sources.shard_info import ShardCount, ShardInfo
    from penstock.sources.transforming import WorkerKind
    from penstock.sources.transforms import AnySourceTransform
    from penstock.types import Columns, Int64Array

    Numbers = slice | Sequence[int] | Int64Array

_STREAMS_SHOWN = 3


class StreamingDataset(
    FluentVerbs["TransformedShardedSource", "ViewShardedSource"], MosaicNames, SamplesAsTables, IterableDataset[Any]
):
    """A dataset in a store or on disk: iterate over it, or read any sample by its number.

        dataset = StreamingDataset(remote="s3://bucket/train", local="/tmp/train", shuffle=True)
        loader = StreamingDataLoader(dataset, batch_size=32, num_workers=8)

    Pass it to a `StreamingDataLoader`, or to a torch `DataLoader` with any number of workers, or iterate over it. Each
    pass is the next epoch. The order is the same on any number of ranks and workers, and you can load a state on any
    number of them. Opening a dataset fetches only the indexes.

    Args:
        streams: The streams to mix. For a single stream you can pass its `remote`, `local` and `split` instead.
        remote: Where the dataset is: a URL or a path of a folder, of a file, with `*` for several, or a list of these.
        local: The folder in which fetched shards are kept; without a remote, where the dataset is.
        split: A folder below both; of a dataset of the Hugging Face Hub, one of its splits.
        format: What kind of files these are: `parquet`, `jsonl`, `csv`, `tsv`, `arrow`, `webdataset`, `text`, or `mds`
            for a dataset with an index; by default, names and first bytes tell.
        types: What the columns of csv files hold, such as `{"price": "float", "count": "int"}`; others are text.
        subset: Of a dataset of the Hugging Face Hub, one of its subsets (also called configurations).
        download_retry: How often in a row a request is tried again after a temporary failure; 0 means a single try.
        download_timeout: Seconds without a single byte. penstock gives up when these and all tries are used up.
        validate_hash: Name of the digest to check on each fetched file, and on files that are already there. Without
            it, each fetched file is checked with the quickest digest in the index, if there is any.
        keep_zip: Keep the compressed files of shards, too.
        epoch_size: How many samples an epoch has, such as 1_000_000 or "1m"; by default all of them.
        predownload: How many samples ahead of the training step shards are fetched for each rank; by default, penstock
            decides by the size of samples.
        cache_limit: How much disk the folders of this dataset may use on each node, such as "100gb".
        sampling_method: `balanced`, or `fixed` for the order of MosaicML Streaming with the same samples in each epoch.
        sampling_granularity: How many samples are chosen in a row; more than 1 means the order of MosaicML Streaming.
        partition_algo: `orig` or `relaxed`, which mean the order of MosaicML Streaming.
        num_canonical_nodes: The number of lanes of the order. If your number of nodes divides it, no two nodes read the
            same lanes.
        batch_size: Samples per batch on each rank. A `StreamingDataLoader` sets it for you.
        shuffle: Shuffle across all shards, differently in each epoch.
        shuffle_algo: To use the order of MosaicML Streaming: one of its algorithms (`py1e`, `py1br`, `py1b`, `py1s`,
            `py2s`, `naive`).
        shuffle_seed: Seed of the order.
        shuffle_block_size: How many samples each lane shuffles among.
        batching_method: `random`, `stratified`, `per_stream` or `device_per_stream`.
        allow_unsafe_types: Read `pkl` columns, which can run code of their writer.
        replication: How many consecutive ranks get the same samples, for tensor or sequence parallelism.
        stream_name: Name of the class of streams to make from `stream_config`.
        stream_config: Arguments of that class, besides `remote`, `local` and `split`.
        rank: The rank of this process, if the launcher does not set it; pass `world_size` and `num_nodes`, too.
        world_size: The number of ranks.
        num_nodes: The number of nodes; all have the same number of ranks.
        on_error: What happens if a sample cannot be read: `raise` an error, or `skip`: another sample of the same batch
            takes its place.
        image_decoder: Give images as `"pil"` images, as `"array"`s (RGB or deep gray), or the stored bytes (`"raw"`).
        columns: Read only these columns.
        columnar: Iterate over batches, each a dict of arrays, instead of samples.
        order: `native` (the default), `mosaic`, or an order that a plug-in registered.
        epoch_end: What happens if the ranks cannot share the samples equally: `pad`, `drop`, `trim` or `uneven`.
        schedule: Proportions of the streams that change during the run: a `MixSchedule`, or plain values such as
            `[(0, [0.9, 0.1]), (1_000_000, [0.5, 0.5])]`.
        mosaic_version: The release of MosaicML Streaming whose order `order="mosaic"` follows: `0.13` or `0.5`.
        allow_mix_change: Allow loading a state that was made with other weights or other streams.
        grow: `"epoch"`: allow loading a state from before rows were appended. The epoch that was under way goes on over
            the rows that it began with, and the next one has all.
        storage_options: Credentials and settings of the stores, under the names that fsspec uses.
        sample_transform: Your function, called on each sample as it is read; it returns what takes its place. It is
            called after that of the stream, in the workers of the loader. If it raises, the error names the sample. A
            function with an argument `rng` gets a generator that draws the same after a resume, on any world.
        batch_transform: The same for whole batches of columns, with `columnar=True`.
        seed_globals: Seed the generators of Python, NumPy and torch before each sample, as `rng` is, for functions that
            draw from these. It takes about 10 µs a sample.
    """

    _shard_names: ShardNames | None = None

    @checks_call
    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: Given | None = None,
        local: Given | None = None,
        split: str | None = None,
        format: str | None = None,  # noqa: A002  what users call it
        types: Mapping[str, str] | None = None,
        subset: str | None = None,
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
        schedule: MixSchedule | Mapping[str, Any] | Sequence[tuple[int, Sequence[float]]] | None = None,
        mosaic_version: MosaicVersion = "0.13",
        allow_mix_change: bool = False,
        grow: Literal["epoch"] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        sample_transform: SampleTransform | None = None,
        batch_transform: BatchTransform | None = None,
        seed_globals: bool = False,
    ) -> None:
        given = dict(locals())
        settings = self._settings = DatasetSettings.of(given)
        self.streams = gather_streams(given)
        apply_defaults(self.streams, settings.stream_defaults)
        self.columnar = columnar
        self.make_columns = columns_maker(batch_transform)
        self._sample_transform, self._batch_transform = sample_transform, batch_transform
        self._allow_mix_change, self._seeds_globals = allow_mix_change, seed_globals
        self._open(settings, batch_size)
        if columnar:
            self.check_columnar()

    @trims_traceback
    def _open(self, settings: DatasetSettings, batch_size: int | None) -> None:
        """Read the indexes of all streams, and make of them what this class answers from."""
        reading = settings.reading
        self.predownload, self.cache_limit, self.on_error = reading.predownload, reading.cache_limit, reading.on_error
        self.replication = settings.seat.replication
        self.counters = open_counters(len(self.streams), worker_number)
        self._opened = open_streams(self.streams, settings.decoding, reading.cache_limit, self.counters)
        source, first_ids = self._opened.source, self._opened.first_ids
        shards = [stream.describe() for stream in self._opened.streams]
        self.epoch_size = fill_weights(self.streams, shards, settings.order)
        planner = Planner(
            shards,
            settings.order,
            allow_mix_change=self._allow_mix_change,
            source=source,
            cache_limit=reading.cache_limit,
            index_bytes=0 if self._opened.cache is None else self._opened.cache.index_bytes,
        )
        of_streams = [stream.sample_transform for stream in self.streams]
        transforms = SampleTransforms(source, first_ids, of_streams, self._sample_transform)
        self._transforms = transforms if any(transforms.chains) else None
        self.run = RunState(planner, settings.seat, batch_size, self._opened.identity())
        draws = self._draws_columns or self._draws_samples
        self.readers = PassReaders(self.run, source, first_ids, reading, self.counters, draws=draws)

    def __repr__(self) -> str:
        streams = ", ".join(map(repr, self.streams[:_STREAMS_SHOWN]))
        more = f", … {len(self.streams) - _STREAMS_SHOWN} more" if len(self.streams) > _STREAMS_SHOWN else ""
        return (
            f"<{type(self).__name__} of {self.num_samples:,} samples in {self.num_shards:,} shards, "
            f"epoch_size={self.epoch_size}, batch_size={self.batch_size}, streams=[{streams}{more}]>"
        )

    @property
    def batch_size(self) -> int | None:
        """Samples per batch on each rank."""
        return self.run.batch_size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        check_whole("batch_size", value, 1)
        self.run.batch_size = value

    def __len__(self) -> int:
        """Count the samples that this rank gets in an epoch."""
        return self.run.num_samples(self.epoch_size)

    # --- Samples by number ------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, key: Numbers) -> list[Any]: ...
    @trims_traceback
    def __getitem__(self, key: int | np.integer[Any] | Numbers) -> Any:
        ids = resolve_ids(key, self.num_samples)
        if isinstance(ids, int):
            return self.get_item(ids)
        if type(self).get_item is not StreamingDataset.get_item:
            return nest([self.get_item(int(number)) for number in ids], key)
        samples = self.readers.here.main.read(ids, SOON).samples()
        return nest(self.apply_transforms(ids, samples), key)

    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:  # noqa: ARG002
        """Return one sample by its number. Override this method to change samples; iterating calls it, too.

        If the shard of the sample is not on this machine and not compressed, only the bytes of the sample are fetched.
        You may pass a number of retries, as in MosaicML Streaming; it has no effect, because `download_retry` counts.
        """
        readers = self.readers.here
        sample, rng = readers.at_hand.pop(sample_id, None), readers.rng
        if sample is None:
            if not 0 <= sample_id < self.num_samples:
                raise SampleIndexError(
                    f"sample {sample_id} is out of range: the dataset has {self.num_samples} samples", sample=sample_id
                )
            sample, rng = readers.main.read_one(sample_id), None
        if self._transforms is None:
            return sample
        if rng is None and self._draws_samples:
            return self.apply_transforms([sample_id], [sample])[0]
        return self._transforms.apply(sample_id, sample, rng)

    def apply_transforms(self, ids: Sequence[int] | Int64Array, samples: list[Any]) -> list[Any]:
        """Return what the transforms make of samples that were read by number."""
        if self._transforms is None:
            return samples
        keys = keys_of_ids(self.run.seed(), ids) if self._draws_samples else None
        make, numbers = self._transforms.apply, [int(number) for number in ids]
        return make_each(make, numbers, samples, keys, skips=False, seeds_globals=self._seeds_globals)

    @trims_traceback
    def read_columns(self, key: Numbers) -> Columns:
        """Return samples as columns, in the order you asked for: each an array if the values allow it, else a list.

        Of the transforms, only `batch_transform` is applied.
        """
        ids = resolve_flat(key, self.num_samples)
        columns = self.readers.here.main.read(ids, by_column=True).columns()
        if self.make_columns is None:
            return columns
        return self.make_columns(ids, columns, keys_of_ids(self.run.seed(), ids) if self._draws_columns else None)

    # --- Iterating --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Begin the next pass: the samples of this rank, or of this worker's share of them."""
        refuse_resharding(self.run.seat().world.num_ranks)
        if is_worker() and self.batch_size is None and worker_of()[0] == 0:
            warnings.warn(
                "this dataset has no batch_size, so it cannot save its state when a loader with workers reads it:"
                " pass batch_size= to the dataset, or use penstock's StreamingDataLoader",
                stacklevel=2,
            )
        number = self.readers.take_announced()
        if is_worker():
            end_with_parent()
            keep_small_tensors_inside(self.counters)
            if worker_of()[0] != 0:
                from penstock.cache.progress import leave_lines_to_others

                leave_lines_to_others()
            begun = self._begin_pass(number)  # now, and not when the first item is taken
            return chain.from_iterable(self._pieces(lambda: begun))
        return chain.from_iterable(self._pieces(partial(self._begin_pass, number)))

    def _pieces(self, begin: Callable[[], Iterator[Iterator[Any]]]) -> Iterator[Iterator[Any]]:
        """Begin a pass when its first item is taken, for loaders make iterators that they never use; yield its pieces.

        A worker may end with its pass, so it hears then of all it has caused.
        """
        warn_of_other_batches(self.batch_size)
        try:
            yield from begin()
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None
        if is_worker() and self._opened.cache is not None:
            with suppress(FetcherError):  # no pass shall fail for the sake of its counts
                self._opened.cache.refresh_counts()

    def _begin_pass(self, number: int | None) -> Iterator[Iterator[Any]]:
        """Return what this process yields in a pass, samples or batches by column, in pieces to be laid end to end."""
        if self.columnar:
            return iter([self.readers.columns(number, self.make_columns)])
        if self.make_columns is not None:
            raise ConfigError("batch_transform= works on columns: set columnar=True, or pass sample_transform= instead")
        return self.readers.samples(number, self._make_samples())

    def check_columnar(self) -> None:
        """Raise if you make samples with functions of your own, because whole columns would not be passed to them."""
        if self._is_overridden:
            raise ConfigError(
                "columnar=True reads whole columns and would not call your get_item: leave out one of the two"
            )
        if self._transforms is not None:
            raise ConfigError(
                "columnar=True reads whole columns and would not call your sample_transform: pass batch_transform="
            )
        if self._seeds_globals:
            raise ConfigError(
                "seed_globals=True works on samples, and threads that read by column share these generators: take"
                " rng in batch_transform= instead"
            )

    # --- Samples of the user's making -------------------------------------------------------------------------

    @property
    def _is_overridden(self) -> bool:
        """Whether a subclass gives samples of its own making."""
        own = type(self)
        return own.get_item is not StreamingDataset.get_item or own.__getitem__ is not StreamingDataset.__getitem__

    def _make_samples(self) -> MakeSamples | None:
        """Return what makes the samples that a pass yields from those that were read together."""
        options: dict[str, Any] = {"skips": self.on_error == "skip", "seeds_globals": self._seeds_globals}
        if self._is_overridden:
            return partial(self._call_overrides, **options)
        return None if self._transforms is None else partial(make_each, self._transforms.apply, **options)

    @property
    def _draws_columns(self) -> bool:
        """Whether batches are made with draws for their rows."""
        return self._batch_transform is not None and takes_rng(self._batch_transform)

    @property
    def _draws_samples(self) -> bool:
        """Whether samples are made with a generator each."""
        return self._seeds_globals or (self._transforms is not None and self._transforms.draws)

    def _call_overrides(
        self, ids: list[int], samples: list[Any], keys: UInt64Array | None, *, skips: bool, seeds_globals: bool
    ) -> list[Any]:
        """Have the subclass make its samples by number; what it asks this class for was read already."""
        here = self.readers.here
        here.at_hand = {
            number: sample
            for number, sample in zip(ids, samples, strict=True)
            if not isinstance(sample, UnreadableSample)
        }
        is_asked_by_key = type(self).__getitem__ is not StreamingDataset.__getitem__
        one: Callable[[int], Any] = self.__getitem__ if is_asked_by_key else self.get_item
        if keys is None and not skips:
            return [*map(one, ids)]

        def make(number: int, _: Any, rng: SampleRng | None = None) -> Any:
            here.rng = rng
            return one(number)

        return make_each(make, ids, samples, keys, skips=skips, seeds_globals=seeds_globals)

    # --- Where it stands --------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        refuse_resharding(self.run.seat().world.num_ranks)
        if not is_counted_by_accelerate():
            self.run.passes.set_epoch(epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass, unless a loaded state sets another."""
        return self.run.passes.read().next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Return where the whole job stands, as plain JSON values: one state, valid on any number of ranks.

        The dataset counts the samples that it yields in its own process. If a loader has workers, the dataset cannot
        know what was delivered: pass `num_samples`, counted over all ranks, from the beginning of the epoch or, with
        `from_beginning=False`, of this pass. Or use the state of a `StreamingDataLoader`, which counts for you.
        """
        if is_worker():
            return self.readers.worker_state()
        read = self.readers.here.under_way
        return self.run.state(num_samples, None if read is None else read.count, from_beginning=from_beginning)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Continue from a state with the next pass: of this class, of a `StreamingDataLoader`, or of MosaicML's."""
        if isinstance(obj, dict) and is_worker_state(obj):
            obj = self.readers.load_worker_state(obj)
            if self.run.passes.read().state == obj:
                return  # another worker of this loader was here first
        check_fields(obj, {"epoch": range(-1, MOST)}, "a StreamingDataset or its loader")
        if adopt_revisions(self.streams, self.run.identity, obj):
            self._opened.source.close()
            self._open(self._settings, self.batch_size)
        self.run.load(obj)

    # --- In another library ------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the samples as an `IterableDataset` of the `datasets` library, for trainers that want one.

        It has the samples of all ranks, with transforms applied, in the order of `set_epoch`, and a `state_dict` from
        which it goes on without reading again what came before.
        """
        from penstock.data.hf_dataset import make_hf_dataset

        return make_hf_dataset(self)

    def read_all_ranks(self, state: Mapping[str, Any] | None, epoch: int) -> tuple[dict[str, Any], Iterator[Any]]:
        """Return what all ranks get together, from a state or the beginning of an epoch on, and the state there."""
        begun, pieces = self.readers.all_ranks(state, epoch, self._make_samples())
        return begun, chain.from_iterable(pieces)

    # --- As a source: shards by name, and transforms that give sources ----------------------------------------

    def as_source(self) -> DatasetShardedSource:
        """Return the samples as a `ShardedSource`: all of them once, as they are stored, with transforms applied.

        Weights, shuffling and ranks do not count there. Whatever takes a source takes the dataset itself, too.
        """
        from penstock.data.sources.dataset_source import DatasetShardedSource, ShardNames  # seldom needed

        if self._shard_names is None or self._shard_names.opened is not self._opened:
            self._shard_names = ShardNames(self._opened, self.streams)
        return DatasetShardedSource(self, self._shard_names)

    def numbered(self) -> ViewShardedSource:
        """Return a view of all samples, as they are stored: `select`, `take`, `split` and others make smaller ones."""
        return self.as_source().numbered()

    def as_stream_source(self, columns: tuple[str, ...] | None = None, limit_bytes: int | None = None) -> Source:
        """Return this dataset as a stream of another one: `Stream(source=...)` calls it."""
        return self.as_source().as_stream_source(columns, limit_bytes)

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, which `open_shard` takes."""
        return self.as_source().shard_names

    @property
    def num_shards(self) -> ShardCount:
        """The number of shards of all streams; may also be called."""
        from penstock.sources.shard_info import ShardCount

        return ShardCount(len(self._opened.source.spans))

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return what is known of a shard."""
        return self.as_source().get_shard_info(shard_name)

    def open_shard(self, shard_name: str) -> SampleIterator:
        """Open a shard at its beginning."""
        return self.as_source().open_shard(shard_name)

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        """Open a shard at a row."""
        return self.as_source().open_shard_at_row(shard_name, row)

    def iter_shards(
        self, shard_indices: Sequence[int] | None = None, start_shard: int = 0, start_row: int = 0
    ) -> SampleIterator:
        """Read shards one after the other, as they are stored."""
        return self.as_source().iter_shards(shard_indices, start_shard, start_row)

    def transform(
        self, transform: AnySourceTransform, *, num_workers: int = 0, worker_kind: WorkerKind = "thread"
    ) -> TransformedShardedSource:
        """Apply a transform, or several joined with `>>`, to each sample as it is read."""
        return self.as_source().transform(transform, num_workers=num_workers, worker_kind=worker_kind)

    # --- Looking in, and leaving ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close open shards and the connection to the fetcher; they are opened again when you use the dataset again."""
        self._close_shards()
        self._opened.source.close()

    def _close_shards(self) -> None:
        self.readers.here.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
