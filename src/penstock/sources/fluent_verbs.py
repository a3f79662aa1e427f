"""`FluentVerbs`: what can be done to samples, as methods of sources and of datasets alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.sources.chat import AppliesChatTemplate
    from penstock.sources.transforming import WorkerKind
    from penstock.sources.transforms import AnySourceTransform
    from penstock.types import Sample

Made = TypeVar("Made")  # the source that a verb returns


class FluentVerbs(Generic[Made]):
    """Transforms as methods: each returns a new source, and reads nothing before that is iterated over."""

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
