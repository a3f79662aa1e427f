"""torch's loaders: what they take for a dataset, what they must not make of it, and batches made in their workers.

torch moves every tensor of a worker through a file in shared memory, whose descriptor the receiver has to ask the
worker for. That takes half a millisecond and more, longer than all else that becomes of a batch of small samples. Here
small tensors are pickled like any other value; large ones go torch's way, which copies less.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from math import inf
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from penstock.data.ranks import worker_of
from penstock.errors import BatchError, ConfigError
from penstock.thread_times import thread_times
from penstock.user_warnings import warn_user

__all__ = [
    "IterableDataset",
    "TimedCollate",
    "asked_at_once",
    "collate_alone",
    "is_counted_by_accelerate",
    "keep_small_tensors_inside",
    "refuse_resharding",
    "warn_of_other_batches",
]

T = TypeVar("T")

# torch's own class, where there is torch, so that its loaders know what a dataset is.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from torch.utils.data import IterableDataset

    from penstock.counters import Counters

    Functions = dict[Any, Callable[..., Any]]
else:
    if find_spec("torch") is None:

        class IterableDataset(Generic[T]):
            """Stands in where there is no torch."""

    else:
        from torch.utils.data import IterableDataset

_WANTED = "possibly_batched_index"  # what torch's fetchers call the list of what they are asked for
_MOST_FRAMES = 8  # between this dataset and the fetcher are at most a few wrappers


def warn_of_other_batches(batch_size: int | None) -> None:
    """Warn if the loader that asks for samples now makes batches of another size than the dataset was told."""
    wanted = asked_at_once()
    if batch_size is None or wanted in (None, batch_size) or worker_of()[0] != 0:
        return
    warn_user(
        f"the loader makes batches of {wanted} samples, but its dataset has batch_size={batch_size}: the batches"
        " are not those of the planned order, and with workers the state of the dataset would be wrong. Pass the"
        " same batch_size to both, or use penstock's StreamingDataLoader, which sets the batch size of its"
        " dataset"
    )


def asked_at_once() -> int | None:
    """Return how many samples the torch loader that asks for one right now puts into a batch; None if there is none.

    A loader of another kind, or a torch that calls things otherwise, is none: nothing but a warning depends on it.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if _WANTED in frame.f_code.co_varnames:
            wanted = frame.f_locals.get(_WANTED)
            return len(wanted) if isinstance(wanted, list | tuple) else None
        frame = frame.f_back
    return None


# Of Hugging Face Accelerate: classes that hand each rank a part of what their dataset or loader gives.
_DIVIDERS = {"IterableDatasetShard", "DataLoaderDispatcher"}


def refuse_resharding(num_ranks: int) -> None:
    """Raise if the loader that iterates now would drop samples, because it divides them among ranks again."""
    for owner, _ in _of_accelerate() if num_ranks > 1 else ():
        if type(owner).__name__ in _DIVIDERS:
            raise ConfigError(
                f"Accelerate's {type(owner).__name__} would split the samples of each rank among all {num_ranks}"
                " ranks again, and most samples would be lost: use penstock's StreamingDataLoader, which"
                " `prepare` does not change"
            )


def is_counted_by_accelerate() -> bool:
    """Return whether the epoch set now is what a loader of Accelerate counts by itself, from 0 again in each process.

    A job that resumes would get an epoch twice. Such a loader is watched, too: where Accelerate keeps no state of it,
    saving one in the middle of a pass is an error, because nothing of ours is asked when the checkpoint is loaded.
    """
    for owner, function in _of_accelerate():
        if function == "__iter__":
            if not getattr(owner, "use_stateful_dataloader", True):
                owner.use_stateful_dataloader, owner.state_dict = True, partial(_refuse_to_save, owner)
            return True
    return False


def _refuse_to_save(adapter: Any) -> dict[str, Any]:
    if not any(each is adapter for each in adapter.gradient_state.dataloader_references):
        return {}  # between passes there is nothing to lose
    raise ConfigError(
        "Accelerate does not keep the position of a torch DataLoader, so load_state would begin the epoch again: make"
        " the loader with penstock's StreamingDataLoader(dataset, batch_size=…), or the accelerator with"
        " Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))"
    )


def _of_accelerate() -> Iterator[tuple[Any, str]]:
    """Yield the loaders and datasets of Accelerate that call us now, and their functions that do."""
    frame: FrameType | None = sys._getframe(1) if "accelerate.data_loader" in sys.modules else None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not None and type(owner).__module__ == "accelerate.data_loader":
            yield owner, frame.f_code.co_name
        frame = frame.f_back


# --- Batches ---------------------------------------------------------------------------------------------------------


# Beyond this, taking the bytes out of a pipe takes longer than asking for a descriptor.
_LARGE_BYTES = 1 << 18
_OF_THREADS = 1 << 15  # numbers from which on torch has several threads copy them
# What NumPy and torch both know. (Of single values torch knows all but uint64, which it refuses in its own words.)
_INTEGERS: set[Any] = {np.uint8, np.uint16, np.uint32, np.int8, np.int16, np.int32, np.int64}
_NUMBERS = _INTEGERS | {np.bool_, np.float16, np.float32, np.float64}


def keep_small_tensors_inside(counters: Counters) -> None:
    """Have torch's `default_collate`, in this worker, make such batches of samples that are dicts."""
    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map[dict] = partial(_collate_dicts, counters)


def collate_alone(samples: list[Any], streams_without: Callable[[str], list[str]] = lambda _: []) -> Any:
    """Make a batch as torch's `default_collate` does, but without a pool of threads in the process that trains.

    Torch's threads wait for each other by spinning: where others use the processors, most of the time goes to that.
    """
    from torch import Tensor, from_numpy
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    def stack(tensors: list[Any], *, collate_fn_map: Functions) -> Any:
        is_large = len(tensors) * tensors[0].numel() >= _OF_THREADS and get_worker_info() is None
        if is_large and all(_is_plain_tensor(tensor, inf) for tensor in tensors) and _are_alike(tensors):
            return from_numpy(np.stack([tensor.numpy() for tensor in tensors]))
        return default_collate_fn_map[Tensor](tensors, collate_fn_map=collate_fn_map)

    try:
        return collate(samples, collate_fn_map={**default_collate_fn_map, Tensor: stack})
    except (KeyError, RuntimeError, TypeError) as error:
        if (why := why_no_batch(samples, streams_without)) is None:
            raise
        raise BatchError(why) from error


def why_no_batch(samples: list[Any], streams_without: Callable[[str], list[str]]) -> str | None:
    """Return which column keeps samples from becoming one batch, and what to do; None: it is something else."""
    if not all(isinstance(sample, dict) for sample in samples):
        return None
    for name in dict.fromkeys(name for sample in samples for name in sample):
        values = [sample[name] for sample in samples if name in sample]
        if lacking := len(samples) - len(values):
            where = f" ({' and '.join(places)} has none)" if (places := streams_without(name)) else ""
            return (
                f"{lacking} of the {len(samples)} samples of a batch have no {name!r}{where}: read"
                " what all streams have, with columns=, or make samples alike, with sample_transform="
            )
        if any(value is None for value in values):
            return f"column {name!r} has None in it, which fits into no tensor: fill it in a sample_transform="
        shapes = {
            (len(value),) if isinstance(value, list) else np.shape(value) for value in values if _has_shape(value)
        }
        if len(shapes) > 1:
            shown = " and ".join(map(str, sorted(shapes)[:2]))
            return (
                f"column {name!r} has values of several shapes, such as {shown}, which do not fit into one batch: pass"
                " collate_fn=PadCollator() to the loader, which pads them (to NumPy arrays), or cut them to one length"
            )
    return None


def _has_shape(value: Any) -> bool:
    return isinstance(value, list) or hasattr(value, "shape")


class TimedCollate:
    """A function that makes a batch of samples, and how long it takes."""

    def __init__(self, collate: Callable[[list[Any]], Any], counters: Counters) -> None:
        self._collate, self._counters = collate, counters

    def __call__(self, samples: list[Any]) -> Any:
        """Make a batch."""
        with _timed(self._counters):
            return self._collate(samples)


@contextmanager
def _timed(counters: Counters) -> Iterator[None]:
    """Count the time of collating once, whatever calls what."""
    if thread_times.is_collating:
        yield
        return
    thread_times.is_collating, begin = True, perf_counter_ns()
    try:
        yield
    finally:
        thread_times.is_collating = False
        counters.row().add({"collating_ns": perf_counter_ns() - begin})


class Batch(dict[str, Any]):
    """A collated batch. Once it has arrived, it is a plain dict."""

    def __reduce__(self) -> tuple[Any, ...]:
        small = [name for name, value in self.items() if _is_plain_tensor(value, _LARGE_BYTES)]
        return _arrive, ({**self, **{name: self[name].numpy() for name in small}}, small)


def _arrive(values: dict[str, Any], tensors: list[str]) -> dict[str, Any]:
    from torch import from_numpy

    for name in tensors:
        values[name] = from_numpy(values[name])
    return values


def _is_plain_tensor(value: Any, limit_bytes: float) -> bool:
    import torch

    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.nbytes < limit_bytes
        and value.dtype in _dtypes_of_numpy()
        and not (value.requires_grad or value.is_conj() or value.is_neg())
    )


@cache
def _dtypes_of_numpy() -> set[Any]:
    from torch import from_numpy

    return {from_numpy(np.empty(0, kind)).dtype for kind in (*_NUMBERS, np.uint64)}


def _collate_dicts(counters: Counters, batch: list[Any], *, collate_fn_map: Functions) -> Any:
    """Do what torch does with dicts, sooner: each column by itself."""
    from torch.utils.data._utils.collate import collate

    first = batch[0]
    with _timed(counters):
        if type(first) is not dict:  # a mapping of its own class, which torch keeps
            others = {kind: function for kind, function in collate_fn_map.items() if kind is not dict}
            return collate(batch, collate_fn_map=others)
        return Batch({name: _collate_column([sample[name] for sample in batch], collate_fn_map) for name in first})


def _collate_column(values: list[Any], functions: Functions) -> Any:
    from torch import from_numpy
    from torch.utils.data._utils.collate import collate

    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in _NUMBERS:
        return from_numpy(np.array(values))
    if kind is np.ndarray and values[0].dtype.type in _NUMBERS:
        if len(values) * values[0].nbytes < _LARGE_BYTES and _are_alike(values):
            return from_numpy(np.stack(values))
        values = list(map(from_numpy, values))  # a third of the time that `torch.as_tensor` takes
    return collate(values, collate_fn_map=functions)


def _are_alike(arrays: list[Any]) -> bool:
    return len({(array.dtype, array.shape) for array in arrays}) == 1
