"""`ShardedSource`: samples in named shards, each opened at any of its rows; and a source with transforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from copy import copy
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from penstock.blocks.stage import check_row
from penstock.cachedir.once import found_once
from penstock.errors import ConfigError, MissingColumnError, TransformError, UnknownLengthError
from penstock.reading.kept_rows import KeptRows
from penstock.reading.source import FunctionReader, OpenShard, Source
from penstock.sources.code_digest import why_none, with_code
from penstock.sources.fluent_verbs import FluentVerbs
from penstock.sources.iterators import RowStage, SampleIterator, ShardsInTurn, in_chunks, picked_rows
from penstock.sources.shard_info import FilesVersion, ShardCount, ShardInfo, join_versions
from penstock.sources.split_rule import split_rule
from penstock.sources.transforming import TransformedStage, describe_row
from penstock.sources.transforms import (
    ChainedTransform,
    FilterTransform,
    apply_all,
    changes_number,
    grouped,
)
from penstock.sources.written import write_once
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from penstock.blocks.block import PositionAfter
    from penstock.blocks.stage import OpenStage
    from penstock.formats.base import Rows
    from penstock.reading.kept_rows import Chosen
    from penstock.reading.source import CodeDigest, SourceFiles
    from penstock.sources.split_rule import SplitRule
    from penstock.sources.transforming import WorkerKind
    from penstock.sources.transforms import AnySourceTransform, AnyTransform
    from penstock.types import Int64Array, Sample


class ShardedSource(FluentVerbs["TransformedShardedSource", "ViewShardedSource"], ABC):
    """Samples in named shards. Iterate over it, or open its shards by name, at any row.

    To make your own, inherit from it and define `shard_names` and `read_shard`. If you know how many rows shards have,
    define `get_shard_info`, too. Iterators have `state_dict` and `load_state_dict`. Yield a new dict for each sample,
    because those who iterate may change it.
    """

    makes_new_samples: ClassVar[bool] = False  # each sample is a new dict, of which no function of a user's knows
    _input_sources: Sequence[ShardedSource] = ()  # that it reads

    @property
    @abstractmethod
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, in order, each only once."""

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:
        """Return the samples of a shard from a row on. You define it, but call `open_shard`."""
        raise NotImplementedError(f"{type(self).__name__} does not define read_shard")

    @property
    def num_shards(self) -> ShardCount:
        """The number of shards; may also be called."""
        return ShardCount(len(self.shard_names))

    def open_shard(self, shard_name: str) -> SampleIterator:
        """Open a shard at its beginning."""
        return self.open_shard_at_row(shard_name, 0)

    def open_shard_at_row(self, shard_name: str, row: int = 0) -> SampleIterator:
        """Open a shard at a row, counted from 0 in the stored data, whatever transforms drop or add.

        The number of rows is a valid row too, with nothing after it.
        """
        self.shard_number(shard_name)
        return SampleIterator(self.open_stage(shard_name, row))

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open a shard at a row, as what makes blocks of it."""
        info = self.get_shard_info(shard_name)
        num_rows = None if info is None else info.num_rows
        return RowStage(partial(self._read_chunks, shard_name), check_row(shard_name, row, num_rows), num_rows)

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        """Return the samples of a shard from a row on, some at a time."""
        return in_chunks(self.read_shard(shard_name, row))

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return what is known of a shard, or None."""
        self.shard_number(shard_name)
        return None

    @property
    def num_parts(self) -> int:
        """How many parts there can be: one with a single shard may be cut below it, in what it reads."""
        return len(self.shard_names)

    def part(self, number: int, num_parts: int) -> ShardedSource:
        """Return one of several parts, at most `num_parts` of them, which have all samples together."""
        return _SomeShards(self, self.shard_names[number::num_parts])

    def shard_number(self, shard_name: str) -> int:
        """Return the place of a shard among all; an unknown name is an error."""
        try:
            return self.shard_names.index(shard_name)
        except ValueError:
            raise _no_such_shard(shard_name, self.shard_names) from None

    def shard_lengths(self) -> list[int] | None:
        """Return the number of samples in each shard, or None if they are not all known exactly."""
        infos = [self.get_shard_info(name) for name in self.shard_names]
        lengths = [info.num_rows for info in infos if info is not None and info.num_rows is not None]
        return lengths if len(lengths) == len(infos) else None

    @property
    def has_random_rows(self) -> bool:
        """Whether `read_rows` can be called."""
        return False

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:  # noqa: ARG002
        """Return the samples at these rows of a shard, in this order; only of a source that `has_random_rows`."""
        raise ConfigError(f"{type(self).__name__} can only read its rows in order")

    @property
    def fingerprint(self) -> str | None:
        """A hash that changes with the samples and their order, or None if that cannot be known."""
        return with_code(self.order_fingerprint, self.code_digests)

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of the data, kinds of stages and settings, without code: what states compare."""
        return None if type(self).fingerprint is ShardedSource.fingerprint else self.fingerprint

    @cached_property  # from then on it is the same, whatever functions keep in themselves
    def code_digests(self) -> Sequence[CodeDigest]:
        """The functions of yours that make the samples."""
        return [digest for source in self._input_sources for digest in source.code_digests]

    @property
    def files_version(self) -> FilesVersion | None:
        """Which files samples come from, and which versions of them; None if they come from none."""
        return join_versions(source.files_version for source in self._input_sources)

    @property
    def is_endless(self) -> bool:
        """Whether iterating never ends, because data are read again and again."""
        return any(source.is_endless for source in self._input_sources)

    def iter_shards(
        self, shard_indices: Sequence[int] | None = None, start_shard: int = 0, start_row: int = 0
    ) -> SampleIterator:
        """Read shards one after the other.

        Args:
            shard_indices: The numbers of the shards, in the order in which to read them; by default all.
            start_shard: How many of these to skip.
            start_row: The row at which the first of them begins.
        """
        return SampleIterator(ShardsInTurn(self, shard_indices, start_shard, start_row))

    def __iter__(self) -> SampleIterator:
        return self.iter_shards()

    def __len__(self) -> int:
        lengths = self.shard_lengths()
        if lengths is None:
            raise UnknownLengthError(
                f"{type(self).__name__} does not know how many samples it has without reading them all:"
                " count as you read"
            )
        return sum(lengths)

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """Close what is open."""
        for source in self._input_sources:
            source.close()

    def as_files(self) -> SourceFiles | None:
        """Name the files that this source reads, if a stream can read them in place and gives the same samples."""
        return None

    def as_stream_source(self, columns: tuple[str, ...] | None = None, limit_bytes: int | None = None) -> Source:
        """Return this source, or some columns of it, as one of a `StreamingDataset`: `Stream(source=...)` calls it.

        It needs a fingerprint, so that states fit the data. If it cannot read rows in any order, its samples are
        written to files first, once on each node, which take no more than so many bytes.
        """
        fingerprint = self.fingerprint
        if fingerprint is None:
            raise ConfigError(
                f"{type(self).__name__} has no fingerprint, so a state could be resumed with other data unnoticed:"
                f" {why_none(self.code_digests)}stream what save_dataset(..., format='mds') writes, or shuffle with"
                " shuffle_buffer_size= of AsyncDataLoader"
            )
        if self.has_random_rows and self.shard_lengths() is not None:
            return IndexedSource(self, columns)
        if self.is_endless:
            raise ConfigError(
                f"{type(self).__name__} never ends, because its mix restarts: use stop_strategy='all_exhausted' or"
                " 'first_exhausted', epochs=, or LimitedShardedSource"
            )
        made = write_once(self.iter_shards, fingerprint, type(self).__name__, columns, limit_bytes)
        made.content, made.code_digests = self.order_fingerprint or fingerprint, self.code_digests
        return made

    def transform(
        self, transform: AnySourceTransform, *, num_workers: int = 0, worker_kind: WorkerKind = "thread"
    ) -> TransformedShardedSource:
        """Apply a transform, or several joined with `>>`, to each sample as it is read."""
        return TransformedShardedSource(self, transform, num_workers=num_workers, worker_kind=worker_kind)

    def numbered(self) -> ViewShardedSource:
        """Return a view of all rows, by their numbers; it needs to be known how many rows there are."""
        lengths = self.shard_lengths()
        if lengths is None:
            raise ConfigError(
                f"{type(self).__name__} does not know how many rows its shards have, so they have no numbers: open"
                " files as a StreamingDataset, which counts them, or take the first rows with LimitedShardedSource"
            )
        return ViewShardedSource(self, KeptRows.all(sum(lengths)))

    def as_view(self) -> tuple[ShardedSource, Callable[[], KeptRows]] | None:
        """Return what this is a view of, and what finds the rows that it keeps; None: it is no view."""
        return None


class GivesSource(Protocol):
    """What can be given in the place of a source, because it makes one of itself: a `StreamingDataset`."""

    def as_source(self) -> ShardedSource:
        """Return the source."""


def as_source(given: ShardedSource | GivesSource) -> ShardedSource:
    """Take a source as it is, and a dataset as the source of its samples."""
    if isinstance(given, ShardedSource):
        return given
    if hasattr(given, "as_source"):
        return given.as_source()
    raise ConfigError(
        f"source is a {type(given).__name__}: pass a ShardedSource or a StreamingDataset. MemoryShardedSource makes a"
        " source of a list"
    )


class TransformedShardedSource(ShardedSource):
    """A source whose samples go through transforms as they are read.

    The rows of its shards are those of the stored data: row 10 is whatever the stored row 10 becomes, be it nothing
    or several samples. Iterators keep the exact place within what became of a row. It has a length if its transforms
    neither drop nor add samples.

    Args:
        source: The source.
        transform: A transform, several joined with `>>`, or a function.
        num_workers: How many threads or processes apply it, in order, with a limited amount of work in progress.
        worker_kind: `"thread"` or `"process"`. Processes help with work in Python itself, and need transforms that
            can be pickled.
    """

    def __init__(
        self,
        source: ShardedSource | GivesSource,
        transform: AnySourceTransform,
        *,
        num_workers: int = 0,
        worker_kind: WorkerKind = "thread",
    ) -> None:
        source = as_source(source)
        check_whole("num_workers", num_workers, 0)
        if worker_kind not in ("thread", "process"):
            raise ConfigError(f"worker_kind={worker_kind!r} is unknown: use 'thread' or 'process'")
        *before, transforms = grouped(ChainedTransform([transform]))
        workers: dict[str, Any] = {"num_workers": num_workers, "worker_kind": worker_kind}
        for group in before:
            source = TransformedShardedSource(source, ChainedTransform(group), **workers)
        inner = source if isinstance(source, TransformedShardedSource) else None
        is_batched = any(each.is_batched for each in transforms)
        if not is_batched and inner is not None and inner._joins:
            # One step over the rows as they are stored is quicker, and knows which of them fails.
            source, transforms = inner._source, [*inner._transforms, *transforms]
        self._joins: bool = num_workers == 0 and not is_batched
        self._source: ShardedSource = source
        self._transforms: list[AnyTransform] = transforms
        # For those who want to know what it is made of.
        self.source, self.transforms, self._input_sources = source, tuple(transforms), (source,)
        self.num_workers, self.worker_kind = num_workers, worker_kind

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards."""
        return self._source.shard_names

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of the source, and of the kinds and settings of its transforms."""
        transform = ChainedTransform(self._transforms).order_fingerprint()
        inner = self._source.order_fingerprint
        return None if inner is None or transform is None else f"{inner}-{transform}"

    @cached_property
    def code_digests(self) -> Sequence[CodeDigest]:
        """The functions of yours that make the samples."""
        return [*self._source.code_digests, *ChainedTransform(self._transforms).code_digests()]

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return what is known of the stored shard; how many rows it has is known if transforms keep the number."""
        info = self._source.get_shard_info(shard_name)
        return info if info is None or self._keeps_rows else replace(info, num_rows=None)

    @property
    def has_random_rows(self) -> bool:
        """Whether any row can be read: the source can, and each row becomes one sample."""
        return (
            self._source.has_random_rows and self._keeps_rows and not any(each.is_batched for each in self._transforms)
        )

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return what becomes of these rows of a shard, in this order."""
        made: list[Sample] = []
        for row, sample in zip(rows, self._source.read_rows(shard_name, rows), strict=True):
            try:
                made += apply_all(self._transforms, sample)
            except Exception as error:
                raise TransformError(
                    f"a transform failed on row {row} of {shard_name}: {type(error).__name__}: {error}"
                ) from error
        return made

    def numbered(self) -> ViewShardedSource:
        """Return a view of the rows that filters let pass, which are found by reading all rows once on each node."""
        view = self.as_view()
        return super().numbered() if view is None else ViewShardedSource(view[0], view[1]())

    def as_view(self) -> tuple[ShardedSource, Callable[[], KeptRows]] | None:
        """Return the source without its filters, and what finds the rows that pass them; None: there are none."""
        others = [each for each in self._transforms if type(each) is not FilterTransform]
        if len(others) == len(self._transforms) or any(changes_number(each) for each in others):
            return None
        inner = self._source.as_view()
        whole, find = (self._source, None) if inner is None else inner
        if whole.shard_lengths() is None:
            return None
        return (whole.transform(ChainedTransform(others)) if others else whole), partial(self._passing, find)

    def _passing(self, find: Callable[[], KeptRows] | None) -> KeptRows:
        """Find the rows that pass, among those that the source keeps."""
        among = KeptRows.all(sum(self._source.shard_lengths() or ())) if find is None else find()
        return among.keep(found_once(self.fingerprint, self._find_passing))

    def _find_passing(self) -> Int64Array:
        passing, number = [], 0
        with closing(iter(self._source)) as samples:
            for sample in chain.from_iterable(iter(samples.read, [])):
                try:
                    if apply_all(self._transforms, sample):
                        passing.append(number)
                except Exception as error:
                    told = f"a filter, or a transform before it, failed on row {number}"
                    raise TransformError(f"{told}: {type(error).__name__}: {error}") from error
                number += 1
        return np.array(passing, np.int64)

    @property
    def _keeps_rows(self) -> bool:
        return not any(map(changes_number, self._transforms))

    @property
    def num_parts(self) -> int:
        """How many parts there can be."""
        return self._source.num_parts if len(self.shard_names) == 1 else super().num_parts

    def part(self, number: int, num_parts: int) -> ShardedSource:
        """Return a part: of what it reads, if that is a single shard."""
        if len(self.shard_names) > 1:
            return super().part(number, num_parts)
        made = copy(self)
        made._source = made.source = self._source.part(number, num_parts)
        made._input_sources = (made._source,)
        return made

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        """Open a shard at a row of the stored data."""
        return TransformedStage(
            self._source.open_stage(shard_name, row),
            self._transforms,
            partial(self._describe_row, shard_name),
            num_workers=self.num_workers,
            worker_kind=self.worker_kind,
        )

    def _describe_row(self, shard_name: str, after: PositionAfter, number: int | None, count: int) -> str:
        return describe_row(shard_name, partial(self._stored_row, after), after(0), number, count)

    def _stored_row(self, after: PositionAfter, number: int) -> int | None:
        """Find the stored row of an input, if positions tell: those before and after so many of them."""
        before, behind = after(number), after(number + 1)
        if "row" in before:
            return int(before["row"]) + int(before.get("given", 0))
        inner = self._source
        if not isinstance(inner, TransformedShardedSource) or any(each.is_batched for each in inner.transforms):
            return None
        row = behind["input"].get("row")  # after the row that it was made of, unless this makes more
        return None if row is None else int(row) + int(behind["input"].get("given", 0)) - ("given" not in behind)


class _SomeShards(ShardedSource):
    """Some shards of a source, by name."""

    def __init__(self, source: ShardedSource, names: Sequence[str]) -> None:
        self._source, self._names, self._input_sources = source, list(names), (source,)
        self.makes_new_samples = source.makes_new_samples  # type: ignore[misc]

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        return self._source.get_shard_info(shard_name)

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:
        return self._source.open_stage(shard_name, row)


_ROWS_AT_ONCE = 256


class ViewShardedSource(ShardedSource):
    """Some rows of a source, by their numbers, in the order in which they are stored: what `select` and others return.

    Its shards are those of the source, with fewer rows. `view[3]` is a sample, where rows can be read in any order.
    """

    def __init__(self, source: ShardedSource, kept: KeptRows) -> None:
        self.source, self.kept, self._input_sources = source, kept, (source,)

    @cached_property
    def _starts(self) -> Int64Array:
        """The first row of each shard of the source, and the end of the last."""
        return np.cumsum([0, *(self.source.shard_lengths() or ())])

    @cached_property
    def _firsts(self) -> Int64Array:
        """The same, of this view."""
        return self.kept.firsts(self._starts)

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards."""
        return self.source.shard_names

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return what is known of a shard."""
        info, number = self.source.get_shard_info(shard_name), self.shard_number(shard_name)
        return None if info is None else replace(info, num_rows=int(self._firsts[number + 1] - self._firsts[number]))

    def shard_lengths(self) -> list[int]:
        """Return the rows of all shards."""
        lengths: list[int] = np.diff(self._firsts).tolist()
        return lengths

    @property
    def order_fingerprint(self) -> str | None:
        """A hash of the source and of the rows."""
        inner = self.source.order_fingerprint
        return None if inner is None else f"{inner}-kept-{self.kept.digest}"

    @property
    def has_random_rows(self) -> bool:
        """Whether the source reads rows in any order."""
        return self.source.has_random_rows

    def read_rows(self, shard_name: str, rows: Sequence[int]) -> list[Sample]:
        """Return the samples at these rows of a shard, in this order."""
        return self.source.read_rows(shard_name, self._stored(shard_name, np.asarray(rows, np.int64)).tolist())

    def __getitem__(self, number: int) -> Sample:
        row = range(len(self))[number]
        shard = int(np.searchsorted(self._firsts, row, side="right")) - 1
        [sample] = self.read_rows(self.shard_names[shard], [row - int(self._firsts[shard])])
        return sample

    def numbered(self) -> ViewShardedSource:
        """Return this view."""
        return self

    def as_view(self) -> tuple[ShardedSource, Callable[[], KeptRows]] | None:
        """Return what this is a view of, and its rows."""
        return self.source, partial(getattr, self, "kept")  # which pickles

    def keep(self, rows: Chosen) -> ViewShardedSource:
        """Return a view of some of these rows."""
        return ViewShardedSource(self.source, self.kept.keep(rows))

    def keep_parts(self, shares: Mapping[str, float], by: str | None, seed: int) -> dict[str, ViewShardedSource]:
        """Return views that share these rows."""
        rule, inner = split_rule(shares, by, seed), self.fingerprint
        parts = found_once(inner and f"{inner}-{rule}", partial(self._find_parts, rule))
        return {name: self.keep(np.flatnonzero(parts == number)) for number, name in enumerate(rule.names)}

    def _find_parts(self, rule: SplitRule) -> npt.NDArray[np.uint8]:
        """Return in which part each row is; its address, if no field decides, is the one in the source."""
        if rule.column is not None:
            with closing(iter(self)) as samples:
                places = [rule.place(sample, ("", 0)) for rows in iter(samples.read, []) for sample in rows]
            return np.array(places, np.uint8)
        stored = self.kept.stored(range(len(self)))
        parts = np.zeros(len(stored), np.uint8)
        for number, name in enumerate(self.shard_names):
            here = slice(int(self._firsts[number]), int(self._firsts[number + 1]))
            parts[here] = rule.place_rows(name, stored[here] - self._starts[number])
        return parts

    def _stored(self, shard_name: str, rows: Int64Array) -> Int64Array:
        """Return the rows of a shard of the source that some rows of it here are."""
        number = self.shard_number(shard_name)
        stored: Int64Array = self.kept.stored(self._firsts[number] + rows) - self._starts[number]
        return stored

    def _read_chunks(self, shard_name: str, row: int) -> Iterator[list[Sample]]:
        number = self.shard_number(shard_name)
        rows = self._stored(shard_name, np.arange(row, int(self._firsts[number + 1] - self._firsts[number])))
        if self.has_random_rows:
            for begin in range(0, len(rows), _ROWS_AT_ONCE):
                yield self.source.read_rows(shard_name, rows[begin : begin + _ROWS_AT_ONCE].tolist())
        elif len(rows):
            with closing(self.source.open_stage(shard_name, int(rows[0]))) as stage:
                yield from picked_rows(stage, rows)


class IndexedSource(Source):
    """The shards of a source that knows its lengths and reads any rows; give it to a `Stream` as `source=`."""

    def __init__(
        self, source: ShardedSource, columns: tuple[str, ...] | None = None, *, is_nameless: bool = False
    ) -> None:
        lengths = source.shard_lengths()
        if lengths is None or not source.has_random_rows:
            raise ConfigError(
                f"{type(source).__name__} cannot read its rows in any order: shuffle it through a buffer of"
                " AsyncDataLoader, shuffle_buffer_size=, or stream its files with remote=, or what"
                " save_dataset(..., format='mds') writes"
            )
        super().__init__(lengths)
        self._source, self._names, self._columns = source, list(source.shard_names), columns
        self._is_nameless, self.code_digests = is_nameless, source.code_digests

    def open(self, shard: int) -> OpenShard:
        """Open a shard."""
        length = int(self.spans.starts[shard + 1] - self.spans.starts[shard])
        return OpenShard(_RowReader(self._source, self._names[shard], length, self._columns))

    @property
    def content(self) -> str:
        """The fingerprint of what decides the order, if there is one."""
        return "" if self._is_nameless else self._source.order_fingerprint or ""

    def describe_shard(self, shard: int) -> str:
        """Return the name of the shard."""
        return self._names[shard]


class _RowReader(FunctionReader):
    """Rows of one shard, many at a time."""

    def __init__(self, source: ShardedSource, name: str, num_rows: int, columns: tuple[str, ...] | None) -> None:
        super().__init__(num_rows, lambda row: self.read([row])[0])
        self._source, self._name, self._columns = source, name, columns

    def read(self, rows: Rows) -> list[Sample]:
        """Return the samples at these rows, in this order."""
        samples = self._source.read_rows(self._name, [int(row) for row in rows])
        if self._columns is None:
            return samples
        try:
            return [{name: sample[name] for name in self._columns} for sample in samples]
        except KeyError as missing:
            raise MissingColumnError(f"a sample of {self._name} has no field {missing}", shard=self._name) from None


def _no_such_shard(name: str, names: Sequence[str]) -> ConfigError:
    close = get_close_matches(str(name), names, n=1)
    first = next(iter(names), None)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {len(names)} shards, and the first is {first!r}"
    return ConfigError(f"the source has no shard {name!r}: {hint}", shard=name)
