"""Functions of the user's on samples, or on columns, called in the process that reads them; samples that failed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import ConfigError, DataError, ObjectChangedError, ObjectNotFoundError, TransformError
from penstock.reading.kept_rows import locate_row
from penstock.reading.sample_rng import RowDraws, SampleRng, kept_globals, seed_globals, takes_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.order.keys import UInt64Array
    from penstock.reading.source import Source
    from penstock.types import Columns, Int64Array

    SampleTransform: TypeAlias = Callable[..., Any]  # of a sample and, if it has an argument of that name, `rng`
    BatchTransform: TypeAlias = Callable[..., Columns]  # the same, of columns
    MakeColumns: TypeAlias = Callable[[Sequence[int] | Int64Array, Columns, UInt64Array | None], Columns]


# What may be wrong with one sample or one shard. A store that is away is not: then all would be skipped.
SKIPPED = (DataError, ObjectNotFoundError, ObjectChangedError)


class UnreadableSample:
    """Stands where a sample could not be read, and knows why."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class SampleTransforms:
    """The transform of each stream, and then the one of the dataset.

    Attributes:
        chains: The functions of each stream, and whether each is given a generator.
        draws: Whether any of them draws.
    """

    def __init__(
        self,
        source: Source,
        first_ids: Int64Array,
        of_streams: Sequence[SampleTransform | None],
        of_dataset: SampleTransform | None,
    ) -> None:
        for transform in (*of_streams, of_dataset):
            check_transform(transform, "sample_transform")
        self._source, self._first_ids = source, first_ids
        self.chains = [
            tuple((each, takes_rng(each)) for each in (own, of_dataset) if each is not None) for own in of_streams
        ]
        self.draws = any(is_drawing for chain in self.chains for _, is_drawing in chain)

    def apply(self, sample_id: int, sample: Any, rng: SampleRng | None = None) -> Any:
        """Return what the transforms make of a sample; an error says which sample it was."""
        stream = 0
        if len(self.chains) > 1:
            stream = int(self._first_ids.searchsorted(sample_id, side="right")) - 1
        try:
            for transform, is_drawing in self.chains[stream]:
                sample = transform(sample, rng=rng) if is_drawing else transform(sample)
                if sample is None:
                    raise TypeError("it returned None: return the sample, also if you changed it in place")
        except Exception as error:
            raise self._failure(sample_id, stream, error) from error
        return sample

    def _failure(self, sample_id: int, stream: int, error: Exception) -> TransformError:
        shard, row = locate_row(self._source, sample_id)
        where = self._source.describe_shard(shard)
        return TransformError(
            f"sample_transform failed on sample {sample_id} (stream {stream}, {where}, row {row}):"
            f" {type(error).__name__}: {error}",
            sample=sample_id,
            stream=stream,
            shard=where,
            row=row,
        )


def make_each(
    make: Callable[..., Any],
    ids: Sequence[int],
    samples: Sequence[Any],
    keys: UInt64Array | None = None,
    *,
    skips: bool,
    seeds_globals: bool = False,
) -> list[Any]:
    """Make something of each sample that could be read; if bad ones are skipped, a gap where that fails.

    With keys, `make` gets a generator besides, which is valid for its sample alone.
    """
    if keys is None and not skips:
        return [make(number, sample) for number, sample in zip(ids, samples, strict=True)]
    made: list[Any] = []
    rng, drawn = SampleRng(), [None] * len(samples) if keys is None else keys.tolist()
    with kept_globals() if seeds_globals else nullcontext():
        for number, sample, key in zip(ids, samples, drawn, strict=True):
            try:
                if isinstance(sample, UnreadableSample):
                    made.append(sample)
                elif key is None:
                    made.append(make(number, sample))
                else:
                    if seeds_globals:
                        seed_globals(key)
                    made.append(make(number, sample, rng.begin(key)))
            except SKIPPED as error:
                if not skips:
                    raise
                made.append(UnreadableSample(error))
    return made


def make_columns(
    transform: BatchTransform, ids: Sequence[int] | Int64Array, columns: Columns, keys: UInt64Array | None = None
) -> Columns:
    """Return what a transform makes of a batch by column; an error says which samples were in it."""
    try:
        made = transform(columns) if keys is None else transform(columns, rng=RowDraws(keys))
        if not isinstance(made, Mapping):
            raise TypeError(f"it returned a {type(made).__name__}: return a dict of columns")
        return made
    except Exception as error:
        first = int(ids[0]) if len(ids) else None
        raise TransformError(
            f"batch_transform failed on the batch of {len(ids)} samples that begins with sample {first}:"
            f" {type(error).__name__}: {error}",
            sample=first,
        ) from error


def columns_maker(transform: BatchTransform | None) -> MakeColumns | None:
    """Return what calls a transform on batches by column, if there is one."""
    check_transform(transform, "batch_transform")
    return None if transform is None else partial(make_columns, transform)


def check_transform(transform: Any, name: str) -> None:
    """Raise if something given as a transform is none."""
    if transform is not None and not callable(transform):
        raise ConfigError(f"{name}={transform!r:.100} is not callable: pass a function that takes one value")
