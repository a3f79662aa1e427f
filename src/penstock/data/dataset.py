"""`StreamingDataset`: shards in a store, samples in the training loop."""

from __future__ import annotations

import warnings
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.data.collate import keep_small_tensors_inside
from penstock.data.getitem import nest, resolve_flat, resolve_ids
from penstock.data.mosaic_names import MosaicNames
from penstock.data.open_streams import open_streams
from penstock.data.orphans import end_with_parent
from penstock.data.pass_readers import PassReaders, is_worker_state
from penstock.data.resharding import refuse_resharding
from penstock.data.run_state import Planner, RunState, advise
from penstock.data.seat import is_worker, worker_of
from penstock.data.settings import DatasetSettings
from penstock.data.stream import fill_weights, gather_streams, name_streams
from penstock.data.torch_base import IterableDataset
from penstock.errors import ConfigError, ResumeError, SampleIndexError
from penstock.interrupts import cut_short, cuts_interrupts_short
from penstock.order.options import StreamShards
from penstock.reading.skip import Gap, make_each
from penstock.reading.transforms import SampleTransforms, check_transform, make_columns
from penstock.units import check_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from typing_extensions import Self

    from penstock.data.stream import Stream
    from penstock.formats.encodings.base import ImageDecoder
    from penstock.order.batching import BatchingMethod
    from penstock.order.mosaic.rules import MosaicVersion, SamplingMethod
    from penstock.order.plan import EpochEnd
    from penstock.order.schedule import MixSchedule
    from penstock.reading.pass_reader import MakeSamples
    from penstock.reading.transforms import BatchTransform, SampleTransform
    from penstock.types import Columns, Int64Array

    Numbers = slice | Sequence[int] | Int64Array

_STREAMS_SHOWN = 3


class StreamingDataset(MosaicNames, IterableDataset[Any]):
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
        sampling_method: `balanced`, or `fixed` for MosaicML Streaming's order that chooses the same samples each epoch.
        sampling_granularity: How many samples are chosen in a row; more than 1 means MosaicML Streaming's order.
        partition_algo: `orig` or `relaxed`, which mean MosaicML Streaming's order.
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
        schedule: How proportions change over the run: a `MixSchedule`, or plain values, as in
            `schedule=[(0, [0.9, 0.1]), (1_000_000, [0.5, 0.5])]`.
        mosaic_version: Which release's order `order="mosaic"` means: `0.13` or `0.5`.
        allow_mix_change: Let a loaded state go on with other weights or streams than it was made with.
        storage_options: Credentials and settings of the stores, as fsspec calls them.
        sample_transform: A function of yours that is called on each sample as it is read, after the stream's own, and
            gives what takes its place. It runs in the loader's workers; what it raises says which sample it was.
        batch_transform: The same for whole batches by column, with `columnar=True`.
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
        schedule: MixSchedule | Mapping[str, Any] | Sequence[tuple[int, Sequence[float]]] | None = None,
        mosaic_version: MosaicVersion = "0.13",
        allow_mix_change: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        sample_transform: SampleTransform | None = None,
        batch_transform: BatchTransform | None = None,
    ) -> None:
        settings = self._settings = DatasetSettings.of(locals())
        self.streams = gather_streams(streams, remote, local, split, stream_name, stream_config)
        for stream in self.streams:
            stream.apply_default(settings.stream_defaults)
        self.columnar = columnar
        check_transform(batch_transform, "batch_transform")
        self.make_columns = None if batch_transform is None else partial(make_columns, batch_transform)
        self._open(settings, batch_size, sample_transform, allow_mix_change=allow_mix_change)
        if columnar:
            self.check_columnar()

    @cuts_interrupts_short
    def _open(
        self,
        settings: DatasetSettings,
        batch_size: int | None,
        sample_transform: SampleTransform | None,
        *,
        allow_mix_change: bool,
    ) -> None:
        """Read the indexes of all streams, and make of them what this class answers from."""
        reading = settings.reading
        self.predownload, self.cache_limit, self.on_error = reading.predownload, reading.cache_limit, reading.on_error
        self.replication = settings.seat.replication
        self._opened = open_streams(self.streams, settings.decoding, reading.cache_limit)
        source, first_ids = self._opened.source, self._opened.first_ids
        named = zip(name_streams(self.streams), self._opened.lengths, self.streams, strict=True)
        shards = [StreamShards(name=name, lengths=lengths, weight=stream.weight) for name, lengths, stream in named]
        self.epoch_size = fill_weights(self.streams, shards, settings.order)
        advise_on = partial(advise, source, reading.cache_limit)
        planner = Planner(shards, settings.order, allow_mix_change=allow_mix_change, advise=advise_on)
        of_streams = [stream.sample_transform for stream in self.streams]
        transforms = SampleTransforms(source, first_ids, of_streams, sample_transform)
        self._transforms = transforms if transforms.are_any else None
        self.run = RunState(planner, settings.seat, batch_size)
        self.readers = PassReaders(self.run, source, first_ids, reading)

    def __repr__(self) -> str:
        streams = ", ".join(map(repr, self.streams[:_STREAMS_SHOWN]))
        more = f", … {len(self.streams) - _STREAMS_SHOWN} more" if len(self.streams) > _STREAMS_SHOWN else ""
        return (
            f"<{type(self).__name__} of {self.num_samples:,} samples in {self.num_shards:,} shards, "
            f"epoch_size={self.epoch_size}, batch_size={self.batch_size}, streams=[{streams}{more}]>"
        )

    @property
    def batch_size(self) -> int | None:
        """Samples of each rank in a batch."""
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
    @cuts_interrupts_short
    def __getitem__(self, key: int | np.integer[Any] | Numbers) -> Any:
        ids = resolve_ids(key, self.num_samples)
        if isinstance(ids, int):
            return self.get_item(ids)
        if type(self).get_item is not StreamingDataset.get_item:
            return nest([self.get_item(int(number)) for number in ids], key)
        samples = self.readers.here.main.batches.read_some(ids)
        if self._transforms is not None:
            samples = make_each(self._transforms.apply, [int(number) for number in ids], samples, skips=False)
        return nest(samples, key)

    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:  # noqa: ARG002
        """Give one sample by its number. Override it to change samples: iterating calls it, too.

        Of a shard that is not on this machine and not compressed, only the sample's own bytes are fetched. A number of
        retries may be passed, as to MosaicML Streaming, and counts for nothing: `download_retry` does.
        """
        readers = self.readers.here
        sample = readers.at_hand.pop(sample_id, None)
        if sample is None:
            if not 0 <= sample_id < self.num_samples:
                raise SampleIndexError(
                    f"sample {sample_id} is out of range: the dataset has {self.num_samples}", sample=sample_id
                )
            sample = readers.main.batches.read_one(sample_id)
        return sample if self._transforms is None else self._transforms.apply(sample_id, sample)

    @cuts_interrupts_short
    def read_columns(self, key: Numbers) -> Columns:
        """Give samples by column, in the order asked for: an array a column where the values allow it, else a list.

        Of the transforms, only `batch_transform` is applied.
        """
        ids = resolve_flat(key, self.num_samples)
        columns = self.readers.here.main.batches.read_columns(ids)
        return columns if self.make_columns is None else self.make_columns(ids, columns)

    # --- Iterating --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Begin the next pass: the samples of this rank, or of this worker's share of them."""
        refuse_resharding(self.run.seat().world.num_ranks)
        if is_worker() and self.batch_size is None and worker_of()[0] == 0:
            warnings.warn(
                "a loader with workers cannot tell this dataset its batch size: pass batch_size= to the dataset, or use"
                " penstock's StreamingDataLoader; until then no state can be taken",
                stacklevel=2,
            )
        number = self.readers.take_announced()
        if is_worker():
            end_with_parent()
            keep_small_tensors_inside()
            return chain.from_iterable(self._begin_pass(number))
        return chain.from_iterable(self._begin_later(number))

    def _begin_later(self, number: int | None) -> Iterator[Iterator[Any]]:
        """Begin a pass when its first item is taken: loaders make iterators that they never use."""
        try:
            yield from self._begin_pass(number)
        except KeyboardInterrupt as interrupt:
            raise cut_short(interrupt) from None

    def _begin_pass(self, number: int | None) -> Iterator[Iterator[Any]]:
        """Give what this process yields in a pass, samples or batches by column, in pieces to be laid end to end."""
        if self.columnar:
            return iter([self.readers.columns(number, self.make_columns)])
        if self.make_columns is not None:
            raise ConfigError("batch_transform= takes columns: set columnar=True, or give sample_transform= instead")
        return self.readers.samples(number, self._make_samples())

    def check_columnar(self) -> None:
        """Raise if samples are made by functions of the user's, which whole columns would pass by."""
        if self._is_overridden:
            raise ConfigError(
                "columnar=True reads whole columns and would not call your get_item: leave one of the two out"
            )
        if self._transforms is not None:
            raise ConfigError(
                "columnar=True reads whole columns and would not call your sample_transform: give batch_transform="
            )

    # --- Samples of the user's making -------------------------------------------------------------------------

    @property
    def _is_overridden(self) -> bool:
        """Whether a subclass gives samples of its own making."""
        own = type(self)
        return own.get_item is not StreamingDataset.get_item or own.__getitem__ is not StreamingDataset.__getitem__

    def _make_samples(self) -> MakeSamples | None:
        """Give what makes the samples that a pass yields from those that were read together."""
        skips = self.on_error == "skip"
        if self._is_overridden:
            return partial(self._call_overrides, skips=skips)
        return None if self._transforms is None else partial(make_each, self._transforms.apply, skips=skips)

    def _call_overrides(self, ids: list[int], samples: list[Any], *, skips: bool) -> list[Any]:
        """Have the subclass make its samples by number; what it asks this class for was read already."""
        self.readers.here.at_hand = {
            number: sample for number, sample in zip(ids, samples, strict=True) if not isinstance(sample, Gap)
        }
        is_asked_by_key = type(self).__getitem__ is not StreamingDataset.__getitem__
        one: Callable[[int], Any] = self.__getitem__ if is_asked_by_key else self.get_item
        return make_each(lambda number, _: one(number), ids, samples, skips=True) if skips else [*map(one, ids)]

    # --- Where it stands --------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the one that the next pass goes through."""
        refuse_resharding(self.run.seat().world.num_ranks)
        self.run.passes.set_epoch(epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass goes through, unless a state says otherwise."""
        return self.run.passes.read().next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Describe where the whole job stands, as plain JSON values: one state, valid on any number of ranks.

        The dataset counts what it yields in its own process. With a loader that has workers it cannot see what was
        delivered: pass `num_samples`, counted over all ranks, from the beginning of the epoch or of this pass; or take
        the state of a `StreamingDataLoader`, which counts.
        """
        if is_worker():
            return self.readers.worker_state()
        return self.run.state(num_samples, self.readers.num_yielded(), from_beginning=from_beginning)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass: of this class, of a `StreamingDataLoader`, or of MosaicML's."""
        if isinstance(state, dict) and is_worker_state(state):
            state = self.readers.load_worker_state(state)
            if self.run.passes.read().state == state:
                return  # another worker of this loader was here first
        if not isinstance(state, dict) or "epoch" not in state:
            raise ResumeError(f"a state is a dict with an epoch, not {type(state).__name__}: load one as it was saved")
        self.run.passes.load(dict(state))

    # --- Looking in, and leaving ------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Count what this process read, fetched and waited for, and what the fetcher of this node did."""
        return {
            "process": {**self.readers.here.describe(), **self._opened.cache_counts()},
            "node": self._opened.node_counts(),
        }

    def close(self) -> None:
        """Close open shards and the connection to the fetcher; using the dataset again opens them anew."""
        self._close_shards()
        self._opened.source.close()

    def _close_shards(self) -> None:
        self.readers.here.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
