"""`AsyncDataLoader`: batches of any source, read and collated ahead by threads, in an order that no timing changes."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.blocks.block import Block
from penstock.data.ranks import find_seat
from penstock.errors import ConfigError
from penstock.loaders.collate import collate_batch, takes_rows
from penstock.loaders.counting import DeliveredBatches, LoopClock, warn_of_no_batch
from penstock.loaders.placement import find_placement
from penstock.loaders.streamed_passes import StreamedPasses, StreamSettings, Uneven
from penstock.loaders.threads import batches_of
from penstock.sources.base import IndexedSource, ShardedSource, as_source
from penstock.threads import WorkerThreads
from penstock.units import check_whole, checks_making, parse_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
    from concurrent.futures import Executor

    from penstock.counters import LoopStats
    from penstock.data.dataset import StreamingDataset
    from penstock.data.passes import Pass
    from penstock.types import Sample

Output = Literal["numpy", "torch", "jax"]

_END = object()
_DEFAULT_SEED = 0


@checks_making
class AsyncDataLoader:
    """Batches of a source, as NumPy arrays, torch tensors or JAX arrays. Iterate with `for` or `async for`.

    Each pass is the next epoch. The order of batches depends on the source, the seed and the epoch, and not on the
    number of threads or on how fast they are. `state_dict` describes the position after the batch that you took last,
    whatever was read ahead.

    Args:
        source: A `ShardedSource` or a `StreamingDataset`.
        batch_size: Samples per batch on each rank.
        prefetch_enabled: Read and collate ahead, in threads.
        prefetch_workers: How many threads read shards and collate batches.
        prefetch_buffer_size: How many batches are kept ready.
        shuffle_buffer_size: Shuffle with a buffer of this many samples: shards come in random order, some at a time
            side by side, and the buffer mixes what comes.
        drop_last: Leave out a last batch that is not full.
        sharding_map: JAX shardings, one for all fields or a dict by field; implies `output="jax"`.
        seed: Seeds the shuffling, together with the epoch. Global random state is neither used nor changed.
        shuffle: Shuffle all samples globally. Sources that cannot read their rows in any order are streamed as
            `Stream(source=...)` does: files in place, others written to files first, once on each node.
        shuffle_buffer_bytes: Also limit the buffer by bytes, such as `"1gb"`.
        interleave: How many shards are read side by side when a buffer shuffles.
        rank, world_size: The place of this process among those that divide the samples; by default it is found as for
            a `StreamingDataset`, or asked of JAX.
        uneven: What to do with samples that cannot be divided among the ranks: `"drop"` leaves them out, `"pad"`
            repeats some. Either way all ranks get equally many batches. With `"allow"` every sample comes once, and
            some ranks end before others: then ranks have shards of their own also where lengths are not known.
        collate_fn: Makes a batch of a list of samples, instead of `collate_batch`.
        output: `"numpy"`, `"torch"` or `"jax"`.
        pin_memory: Put torch tensors into pinned memory, for fast copies to a GPU.
    """

    def __init__(
        self,
        source: ShardedSource | StreamingDataset,
        batch_size: int = 8,
        prefetch_enabled: bool = True,
        prefetch_workers: int = 2,
        prefetch_buffer_size: int = 4,
        shuffle_buffer_size: int | None = None,
        drop_last: bool = True,
        sharding_map: Any = None,
        seed: int | None = None,
        *,
        shuffle: bool = False,
        shuffle_buffer_bytes: int | str | None = None,
        interleave: int = 4,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "drop",
        collate_fn: Callable[[list[Sample]], Any] | None = None,
        output: Output = "numpy",
        pin_memory: bool = False,
    ) -> None:
        _check(batch_size, prefetch_workers, prefetch_buffer_size, shuffle_buffer_size, interleave, uneven, output)
        place = find_placement("jax" if sharding_map is not None else output, sharding_map, pin_memory=pin_memory)
        make = takes_rows(collate_fn or collate_batch)
        self._make: Callable[[Block], Any] = make if place is None else lambda rows: place.put(make(rows))
        found = None if place is None else place.rank
        if rank is None and world_size is None and found is not None and found[1] > 1:
            rank, world_size = found
        seed = _DEFAULT_SEED if seed is None else seed
        self._passes: IndexedPasses | StreamedPasses
        if shuffle or not isinstance(source, ShardedSource):
            if shuffle_buffer_size is not None or shuffle_buffer_bytes is not None:
                raise ConfigError("shuffle=True shuffles globally and needs no buffer: leave out shuffle_buffer_size=")
            dataset = _as_dataset(source, seed, shuffle=shuffle, rank=rank, world_size=world_size, pads=uneven == "pad")
            self._passes = IndexedPasses(dataset, batch_size, drop_last=drop_last)
        else:
            seat = find_seat(rank=rank, world_size=world_size)
            settings = StreamSettings(
                batch_size=batch_size,
                drop_last=drop_last,
                buffer_rows=shuffle_buffer_size,
                buffer_bytes=None if shuffle_buffer_bytes is None else parse_bytes(shuffle_buffer_bytes),
                interleave=interleave,
                seed=seed,
                rank=seat.rank,
                num_ranks=seat.world.num_ranks,
                uneven=uneven,
            )
            self._passes = StreamedPasses(source, settings)
        self._num_threads = prefetch_workers if prefetch_enabled else 0
        self._num_ahead = prefetch_buffer_size
        self._is_exhausted = False
        self._batch_size, self._is_resumed = batch_size, False
        self._clock = LoopClock()

    def __iter__(self) -> Generator[Any]:
        """Begin the next pass, or go on where a loaded state says."""
        self._is_exhausted = False
        batches = batches_of(self._passes, self._make, num_threads=self._num_threads, num_ahead=self._num_ahead)
        try:
            yield from self._clock.time(batches)
            if not (self._clock.stats().batches or self._is_resumed) and (left_out := self._passes.num_left_out):
                warn_of_no_batch(self._batch_size, left_out)
            self._is_exhausted = True
        finally:
            batches.close()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Begin the next pass, without keeping the event loop waiting."""
        loop, batches = asyncio.get_running_loop(), iter(self)
        # Not one of the event loop's own threads: a loop waits for these when it ends, however long a batch takes.
        thread = WorkerThreads(1, "penstock-async")
        is_taking = False
        try:
            while True:
                is_taking = True
                batch = await loop.run_in_executor(thread, next, batches, _END)
                is_taking = False
                if batch is _END:
                    return
                yield batch
        finally:
            if not is_taking:  # else the thread has the iterator, and drops it when it has a batch
                await loop.run_in_executor(thread, batches.close)
            thread.shutdown()

    def __len__(self) -> int:
        """Count the batches of this rank in a pass: in that under way, or the next, which may go on from a state.

        It is an error if the source does not know its length.
        """
        return self._passes.num_batches()

    def __bool__(self) -> bool:
        return True

    @property
    def is_exhausted(self) -> bool:
        """Whether the last pass has ended."""
        return self._is_exhausted

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. It begins at its first batch, or where a loaded state of this epoch says."""
        check_whole("epoch", epoch, 0)
        self._passes.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the whole job stands after the batch that you took last, as plain JSON values."""
        return self._passes.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of any rank with the next pass, on as many ranks as there are now."""
        self._is_resumed = True  # maybe at the end
        self._passes.load_state_dict(state)

    def stats(self) -> LoopStats:
        """Return the number of batches, and the seconds that your training loop waited for them."""
        return self._clock.stats()


def _check(
    batch_size: int,
    prefetch_workers: int,
    prefetch_buffer_size: int,
    shuffle_buffer_size: int | None,
    interleave: int,
    uneven: str,
    output: str,
) -> None:
    check_whole("batch_size", batch_size, 1)
    check_whole("prefetch_workers", prefetch_workers, 1)
    check_whole("prefetch_buffer_size", prefetch_buffer_size, 1)
    check_whole("shuffle_buffer_size", shuffle_buffer_size, 1)
    check_whole("interleave", interleave, 1)
    for name, value, known in (("uneven", uneven, get_args(Uneven)), ("output", output, get_args(Output))):
        if value not in known:
            raise ConfigError(f"{name}={value!r} is unknown: use one of {', '.join(known)}")


# --- Passes over a dataset with an index: the order engine says what comes -------------------------------------------


class IndexedPasses(DeliveredBatches):
    """Reads a dataset with an index pass after pass, each the next epoch; its state is that of the whole job."""

    def __init__(self, dataset: StreamingDataset, batch_size: int, *, drop_last: bool) -> None:
        super().__init__(dataset, drops_last=drop_last)
        dataset.batch_size = batch_size
        self._samples = dataset
        self.num_left_out = 0  # samples of a last batch that is not full

    def begin(self) -> tuple[Pass, Callable[[Executor | None], Iterator[tuple[Block, None]]]]:
        """Begin the next pass."""
        with self._samples.readers.announced(0) as begun:
            samples = iter(self._samples)
        self.follow(begun)
        return begun, lambda _: self._rows(samples)

    def deliver(self, begun: Pass, _: None) -> None:
        """Count a batch as delivered."""
        self.add(begun)

    def finish(self, begun: Pass, *, is_empty: bool) -> bool:  # noqa: ARG002
        """End a pass."""
        self.end(begun)
        return True

    def _rows(self, samples: Iterator[Sample]) -> Iterator[tuple[Block, None]]:
        batch_size = self._samples.batch_size or 1
        while rows := list(islice(samples, batch_size)):
            if len(rows) == batch_size or not self._drops_last:
                yield Block(rows), None
            else:
                self.num_left_out = len(rows)


def _as_dataset(
    source: Any, seed: int, *, shuffle: bool, rank: int | None, world_size: int | None, pads: bool
) -> StreamingDataset:
    """Make a dataset of a source, shuffled globally; a dataset stays as it is, unless it has yet to be shuffled."""
    from penstock.data.dataset import StreamingDataset  # it loads torch, if that is installed
    from penstock.data.stream import Stream

    if isinstance(source, StreamingDataset) and (source.shuffle or not shuffle):
        if rank is not None and world_size is not None:
            source.run.set_seat(rank, world_size)
        return source
    samples = as_source(source)
    # What is in memory may have no fingerprint: its order then fits any data of the same lengths. So does, as in the
    # first release, what functions made of data in memory.
    is_named = samples.fingerprint is not None and all(each.has_settings for each in samples.code_digests)
    is_nameless = not is_named and samples.has_random_rows
    return StreamingDataset(
        streams=[Stream(source=IndexedSource(samples, is_nameless=True) if is_nameless else samples)],
        shuffle=True,
        shuffle_seed=seed,
        rank=rank,
        world_size=world_size,
        epoch_end="pad" if pads else "trim",
    )
