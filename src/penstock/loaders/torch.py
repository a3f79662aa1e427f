"""`StreamingDataLoader`: torch's loader, which also counts what it delivered, so that its state is exact."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.counters import Stats
from penstock.data.dataset import StreamingDataset
from penstock.data.torch_loaders import TimedCollate, collate_alone
from penstock.errors import CallError, ConfigError, meant
from penstock.extras import require
from penstock.loaders.counting import DeliveredBatches, LoopClock, warn_of_no_batch
from penstock.loaders.threads import prefetch_adaptively
from penstock.loaders.waiting import WaitingWatch, explain_waiting
from penstock.order.cursor import Cursor
from penstock.processes import num_processors
from penstock.sources.base import ShardedSource
from penstock.units import checks_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from torch.utils.data import DataLoader

    from penstock.data.passes import Pass
    from penstock.types import Columns
else:
    torch = require("torch", extra="torch", purpose="StreamingDataLoader")
    from torch.utils.data import DataLoader


def _whole_for_lightning(length: Callable[[StreamingDataLoader], int]) -> Callable[[StreamingDataLoader], int]:
    """Count the batches of the whole epoch if Lightning asks: it counts those before a resume, too."""

    @wraps(length)
    def count(loader: StreamingDataLoader) -> int:
        asker = sys._getframe(1).f_globals.get("__name__", "")
        is_lightning = loader._is_streaming and asker.startswith(("lightning", "pytorch_lightning"))
        return loader._batches_of_epoch() if is_lightning else length(loader)

    return count


class StreamingDataLoader(DataLoader[Any]):
    """A `DataLoader` for a `StreamingDataset`: the same arguments, and a state that loads on any number of ranks.

        loader = StreamingDataLoader(dataset, batch_size=32, num_workers=8)
        loader.load_state_dict(state)  # if you have saved loader.state_dict()

    With any other dataset it works as torch's loader does, and has no state.

    It sets the batch size of the dataset. It counts the batches that your training loop has taken, not those that
    workers have read ahead. Hugging Face Accelerate uses it unchanged, because each rank already gets its own samples.

    Args:
        dataset: The dataset.
        batch_size: Samples per batch on each rank; by default that of the dataset, which it replaces if both are given.
        columnar: Return batches as dicts of tensors, made from whole columns without making samples first; columns that
            are not arrays come as lists. Any `num_workers` but 0 then means that one thread of this process reads ahead
            of your loop if that turns out to be faster, `num_workers` × `prefetch_factor` batches or 128 MB of them.
        warn_when_waiting: Warn once if the training loop waits much for data, with the reason that the counts show.
        **options: All other arguments of torch's loader.
    """

    # What Accelerate looks at before it divides the batches of a loader among the ranks.
    _is_accelerate_prepared = True
    # With this, its `save_state` and `load_state` keep the state of a loader, too.
    use_stateful_dataloader = True

    @checks_call
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *positional: Any,
        columnar: bool | None = None,
        warn_when_waiting: bool = True,
        **options: Any,
    ) -> None:
        _check_dataset(dataset)
        options = {**dict(zip(_POSITIONAL, positional, strict=False)), **options}
        unknown = next((name for name in options if name not in _POSITIONAL), None)
        if unknown is not None:
            raise CallError(f"StreamingDataLoader has no argument {unknown!r}{meant(unknown, _POSITIONAL)}")
        self._is_streaming = isinstance(dataset, StreamingDataset)
        self._drops_last = bool(options.get("drop_last"))
        self._delivered = DeliveredBatches(dataset, drops_last=self._drops_last)
        self._clock = LoopClock()
        if not self._is_streaming:
            if columnar:
                raise ConfigError(f"columnar=True needs a StreamingDataset, not a {type(dataset).__name__}")
            self.use_stateful_dataloader = self._is_accelerate_prepared = False  # no rank has samples of its own yet
            super().__init__(dataset, 1 if batch_size is None else batch_size, **options)
            return
        for name in ("shuffle", "sampler", "batch_sampler"):
            if options.get(name):
                raise ConfigError(
                    f"StreamingDataLoader does not accept {name}=: the dataset decides the order, so pass shuffle=True"
                    " to the dataset"
                )
        _agree_on_batch_size(dataset, batch_size)
        self._columnar = dataset.columnar if columnar is None else columnar
        self._batches_ahead = 0
        explain = partial(
            explain_waiting,
            num_workers=int(options.get("num_workers") or 0),
            num_processors=num_processors(),
            limit=dataset.cache_limit,
        )
        self._clock.watch = WaitingWatch(dataset.count, explain, is_on=warn_when_waiting)
        if self._columnar:
            dataset.check_columnar()
            if options.get("collate_fn") is not None:
                raise ConfigError(
                    "columnar batches are read as whole columns, so collate_fn= is never called: leave out"
                    " collate_fn= or columnar="
                )
            prefetch_factor = int(options.pop("prefetch_factor", None) or _BATCHES_AHEAD)
            self._batches_ahead = int(options.pop("num_workers", 0)) * prefetch_factor
            options = {name: value for name, value in options.items() if name not in _FOR_PROCESSES}
            options["batch_size"] = None
        else:
            options["batch_size"] = dataset.batch_size
            collate = options.get("collate_fn") or partial(collate_alone, streams_without=dataset.streams_without)
            is_timed = isinstance(collate, TimedCollate)  # as it comes from a loader that another one is made of
            options["collate_fn"] = collate if is_timed else TimedCollate(collate, dataset.counters)
        super().__init__(dataset, **options)

    def __repr__(self) -> str:
        is_columnar = self._is_streaming and self._columnar
        readers = f"{self._batches_ahead} batches ahead" if is_columnar else f"{self.num_workers} workers"
        batch_size = self._streaming.batch_size if self._is_streaming else self.batch_size
        return f"<{type(self).__name__} of batches of {batch_size}, {readers}, of {self.dataset!r}>"

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Begin the next pass."""
        if not self._is_streaming:
            return super().__iter__()
        if self._drops_last and not len(self):
            warn_of_no_batch(self._streaming.batch_size, len(self._streaming))
        with self._streaming.readers.announced(0 if self._columnar else self.num_workers) as begun:
            batches = self._columns(begun) if self._columnar else super().__iter__()
        return self._clock.time(self._delivered.count(begun, batches))

    @_whole_for_lightning
    def __len__(self) -> int:
        """Count the batches of a pass: of that under way, or of the next, which may go on from a state."""
        return self._delivered.num_batches() if self._is_streaming else super().__len__()

    def _batches_of_epoch(self) -> int:
        """Count the batches of the epoch of the next pass, also those that came before a state that it goes on from."""
        run = self._streaming.run
        passes = run.passes.read()
        now = run.now(passes)
        at = Cursor(now.start(passes).epoch)
        count = now.num_batches(at)
        return count - (self._drops_last and now.num_samples(at, count) < count * now.batch_size)

    @property
    def num_samples_yielded(self) -> int:
        """Count the samples that this rank got in this pass."""
        return self._delivered.num_samples() if self._is_streaming else 0

    def state_dict(self) -> dict[str, Any]:
        """Return where the whole job stands after the batch that you took last, as plain JSON values.

        It is empty if the dataset is not a `StreamingDataset`.
        """
        return self._delivered.state_dict() if self._is_streaming else {}

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Continue from a state with the next pass, on as many ranks and workers as there are now."""
        if self._is_streaming:
            self._delivered.load_state_dict(obj)

    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[False] = ...) -> Stats: ...
    @overload
    def stats(self, *, by_worker: bool = ..., flat: Literal[True]) -> dict[str, float]: ...
    def stats(self, *, by_worker: bool = False, flat: bool = False) -> Stats | dict[str, float]:
        """Return the counts of the dataset, and how long your training loop waited for the batches of this loader.

        It counts nothing if the dataset is not a `StreamingDataset`.

        Args:
            by_worker: Also return the counts of each worker.
            flat: Return a dict of numbers by dotted name, for loggers, instead of an object with named fields.
        """
        loop = self._clock.stats()
        stats = self._streaming.count(loop=loop, by_worker=by_worker) if self._is_streaming else Stats()
        return stats.flat() if flat else stats

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._streaming.set_epoch(epoch)

    @property
    def _streaming(self) -> StreamingDataset:
        if not isinstance(self.dataset, StreamingDataset):
            raise ConfigError(
                f"this loader reads a {type(self.dataset).__name__}: this only works with a StreamingDataset"
            )
        return self.dataset

    def _columns(self, begun: Pass) -> Iterator[dict[str, Any]]:
        dataset = self._streaming
        # One thread, whatever number was asked for: reading is copying, which takes all that memory can give, or it is
        # decoding, which takes all processors. Several threads would only take the interpreter from each other.
        in_thread = self._batches_ahead > 0
        batches: Iterator[Columns]
        if not in_thread:
            batches = dataset.readers.columns(begun.number, dataset.make_columns)
        else:
            reader = dataset.readers.columns_ahead(begun, dataset.make_columns)
            batches = prefetch_adaptively(
                reader.columns,
                ahead=self._batches_ahead,
                max_bytes=_MAX_BYTES_AHEAD,
                weigh=_num_bytes,
                on_abandon=dataset.readers.here.abandon_thread,
            )
        for columns in batches:
            if self._drops_last and len(next(iter(columns.values()))) < (dataset.batch_size or 1):
                continue
            yield {name: self._to_tensor(values) for name, values in columns.items()}

    def _to_tensor(self, values: Any) -> Any:
        if getattr(values, "dtype", None) is None or values.dtype.kind not in "biufc":
            return values
        tensor = torch.from_numpy(values)
        return tensor.pin_memory() if self.pin_memory else tensor


# What torch's loader takes in this order, after the dataset and the batch size.
_POSITIONAL = tuple(inspect.signature(DataLoader.__init__).parameters)[3:]
# What only concerns worker processes.
_FOR_PROCESSES = {
    "collate_fn",
    "worker_init_fn",
    "multiprocessing_context",
    "persistent_workers",
    "timeout",
    "drop_last",
}
_BATCHES_AHEAD = 4
_MAX_BYTES_AHEAD = 128 << 20  # batches of images would fill the memory


def _num_bytes(columns: Columns) -> int:
    """Count the bytes of a batch that arrays hold."""
    num_bytes = 0
    for values in columns.values():
        first = values[0] if isinstance(values, list) and values else None
        num_bytes += int(getattr(values, "nbytes", 0)) or len(values) * int(getattr(first, "nbytes", 0))
    return num_bytes


def _check_dataset(dataset: Any) -> None:
    """Refuse what torch's loader would take now, and fail on later."""
    if isinstance(dataset, ShardedSource):
        raise ConfigError(
            "StreamingDataLoader reads datasets, and this is a source: pass it to an AsyncDataLoader, or as"
            " StreamingDataset(streams=[Stream(source=…)])"
        )
    is_data = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    if isinstance(dataset, str | os.PathLike | type) or not is_data:
        raise ConfigError(
            f"{dataset!r:.100} is no dataset: pass StreamingDataset(remote=…), or any other that torch takes"
        )


def _agree_on_batch_size(dataset: StreamingDataset, batch_size: int | None) -> None:
    if batch_size is None:
        if dataset.batch_size is None:
            raise ConfigError("neither the loader nor the dataset has a batch size: pass batch_size= to the loader")
    elif dataset.batch_size is None:
        dataset.batch_size = batch_size
    elif dataset.batch_size != batch_size:
        # Workers take whole batches in turn: only if both agree is what was delivered the beginning of the order, so
        # that a state says where it ended.
        warnings.warn(
            f"the loader has batch_size={batch_size} but its dataset has batch_size={dataset.batch_size}: both use"
            f" {batch_size} from now on",
            stacklevel=3,
        )
        dataset.batch_size = batch_size
