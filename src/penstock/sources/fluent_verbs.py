"""`FluentVerbs`: what can be done to samples, as methods of sources and of datasets alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.errors import ConfigError
from penstock.sources.chat import ChatTemplateTransform
from penstock.sources.transforms import (
    DropFields,
    FilterTransform,
    FlatMapTransform,
    MapBatchTransform,
    MapTransform,
    RenameFields,
    SelectFields,
)
from penstock.units import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.reading.kept_rows import Chosen
    from penstock.sources.chat import AppliesChatTemplate
    from penstock.sources.transforming import WorkerKind
    from penstock.sources.transforms import AnySourceTransform
    from penstock.types import Sample

Made = TypeVar("Made")  # the source that a transform makes
View = TypeVar("View")  # the source of some rows


class Numbered(Protocol[View]):
    """A source of which rows can be kept by their numbers."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def keep(self, rows: Chosen) -> View:
        """Return a view of some rows."""

    def keep_parts(self, shares: Mapping[str, float], by: str | None, seed: int) -> dict[str, View]:
        """Return views that share all rows."""


class FluentVerbs(Generic[Made, View]):
    """Transforms and views as methods: each returns a new source, and reads nothing before that is iterated over."""

    def transform(
        self, transform: AnySourceTransform, *, num_workers: int = 0, worker_kind: WorkerKind = "thread"
    ) -> Made:
        """Apply a transform, or several joined with `>>`, to each sample as it is read."""
        raise NotImplementedError

    def map(self, fn: Callable[[Sample], Sample], *, num_workers: int = 0, worker_kind: WorkerKind = "thread") -> Made:
        """Apply a function that returns a new sample for each sample."""
        return self.transform(MapTransform(fn), num_workers=num_workers, worker_kind=worker_kind)

    def map_batches(
        self,
        fn: Callable[[list[Sample]], Any],
        batch_size: int = 1000,
        *,
        num_workers: int = 0,
        worker_kind: WorkerKind = "thread",
    ) -> Made:
        """Apply a function to lists of samples; it returns the samples that replace them, fewer or more."""
        return self.transform(MapBatchTransform(fn, batch_size), num_workers=num_workers, worker_kind=worker_kind)

    def flat_map(self, fn: Callable[[Sample], Any]) -> Made:
        """Apply a function that returns any number of samples for each sample."""
        return self.transform(FlatMapTransform(fn))

    def filter(self, predicate: Callable[[Sample], Any]) -> Made:
        """Keep the samples for which a function returns True."""
        return self.transform(FilterTransform(predicate))

    # --- Views: some of the rows, by their numbers ---

    def numbered(self) -> Numbered[View]:
        """Return a view of all rows, by their numbers."""
        raise NotImplementedError

    def select(self, rows: Chosen) -> View:
        """Keep some rows: by a slice, a mask or their numbers. They stay in the order in which they are stored."""
        return self.numbered().keep(rows)

    def take(self, count: int) -> View:
        """Keep the first rows."""
        check_whole("count", count, 0)
        return self.select(slice(count))

    def skip(self, count: int) -> View:
        """Leave out the first rows."""
        check_whole("count", count, 0)
        return self.select(slice(count, None))

    def shard(self, index: int, num_shards: int) -> View:
        """Keep one of so many equal parts, of rows that are stored side by side."""
        check_whole("num_shards", num_shards, 1)
        if not 0 <= index < num_shards:
            raise ConfigError(f"shard {index} does not exist: there are {num_shards}, counted from 0")
        rows = self.numbered()
        return rows.keep(slice(index * len(rows) // num_shards, (index + 1) * len(rows) // num_shards))

    def split(self, shares: Mapping[str, float], *, by: str | None = None, seed: int = 0) -> dict[str, View]:
        """Divide the rows by a keyed hash, such as `{"train": 0.98, "val": 0.02}`; return a view for each name.

        A row never changes sides when rows are appended. With `by`, the value of this field decides, so that rows of
        equal values stay together; all rows are read for it, once on each node.
        """
        return self.numbered().keep_parts(shares, by, seed)

    def select_fields(self, fields: Sequence[str]) -> Made:
        """Keep these fields only."""
        return self.transform(SelectFields(fields))

    def rename_fields(self, mapping: Mapping[str, str]) -> Made:
        """Rename fields, old name to new."""
        return self.transform(RenameFields(mapping))

    def drop_fields(self, fields: Sequence[str]) -> Made:
        """Remove these fields."""
        return self.transform(DropFields(fields))

    def apply_chat_template(
        self,
        tokenizer: AppliesChatTemplate,
        messages_field: str = "messages",
        output_field: str = "text",
        **options: Any,
    ) -> Made:
        """Write messages as text by the chat template of a tokenizer; see `ChatTemplateTransform`."""
        return self.transform(ChatTemplateTransform(tokenizer, messages_field, output_field, **options))
