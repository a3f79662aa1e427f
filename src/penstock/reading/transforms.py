"""Functions of the user's on samples, or on columns, called in the process that reads them; samples that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import ConfigError, DataError, ObjectChangedError, ObjectNotFoundError, TransformError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.reading.source import Source
    from penstock.types import Columns, Int64Array

    SampleTransform: TypeAlias = Callable[[Any], Any]
    BatchTransform: TypeAlias = Callable[[Columns], Columns]


# What may be wrong with one sample or one shard. A store that is away is not: then all would be skipped.
SKIPPED = (DataError, ObjectNotFoundError, ObjectChangedError)


class UnreadableSample:
    """Stands where a sample could not be read, and knows why."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class SampleTransforms:
    """The transform of each stream, and then the one of the dataset."""

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
        self.chains = [tuple(filter(None, (own, of_dataset))) for own in of_streams]  # of functions, by stream

    def apply(self, sample_id: int, sample: Any) -> Any:
        """Return what the transforms make of a sample; an error says which sample it was."""
        stream = 0
        if len(self.chains) > 1:
            stream = int(self._first_ids.searchsorted(sample_id, side="right")) - 1
        try:
            for transform in self.chains[stream]:
                sample = transform(sample)
        except Exception as error:
            raise self._failure(sample_id, stream, error) from error
        return sample

    def _failure(self, sample_id: int, stream: int, error: Exception) -> TransformError:
        spans = self._source.spans
        shard = spans.shard_of(sample_id)
        where, row = self._source.describe_shard(shard), sample_id - int(spans.starts[shard])
        return TransformError(
            f"sample_transform failed on sample {sample_id} (stream {stream}, {where}, row {row}):"
            f" {type(error).__name__}: {error}",
            sample=sample_id,
            stream=stream,
            shard=where,
            row=row,
        )


def make_each(make: Callable[[int, Any], Any], ids: Sequence[int], samples: Sequence[Any], *, skips: bool) -> list[Any]:
    """Make something of each sample that could be read; if bad ones are skipped, a gap where that fails."""
    if not skips:
        return [make(number, sample) for number, sample in zip(ids, samples, strict=True)]
    made: list[Any] = []
    for number, sample in zip(ids, samples, strict=True):
        try:
            made.append(sample if isinstance(sample, UnreadableSample) else make(number, sample))
        except SKIPPED as error:
            made.append(UnreadableSample(error))
    return made


def make_columns(transform: BatchTransform, ids: Sequence[int] | Int64Array, columns: Columns) -> Columns:
    """Return what a transform makes of a batch by column; an error says which samples were in it."""
    try:
        return transform(columns)
    except Exception as error:
        first = int(ids[0]) if len(ids) else None
        raise TransformError(
            f"batch_transform failed on the batch of {len(ids)} samples that begins with sample {first}:"
            f" {type(error).__name__}: {error}",
            sample=first,
        ) from error


def check_transform(transform: Any, name: str) -> None:
    """Raise if something given as a transform is none."""
    if transform is not None and not callable(transform):
        raise ConfigError(f"{name}={transform!r:.100} is not callable: pass a function that takes one value")
