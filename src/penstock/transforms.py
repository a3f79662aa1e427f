"""Transforms of sources: of samples and batches, by field, of chats, and tokenizing. See `docs/transforms.md`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.sources.chat import ChatTemplate as ChatTemplate
    from penstock.sources.chat import ChatTemplateTransform as ChatTemplateTransform
    from penstock.sources.chat import ConvertInputOutputToChatML as ConvertInputOutputToChatML
    from penstock.sources.chat import ConvertToChatML as ConvertToChatML
    from penstock.sources.chat import MaybeApplyChatTemplate as MaybeApplyChatTemplate
    from penstock.sources.tokens.source import TokenizeTransform as TokenizeTransform
    from penstock.sources.transforms import AddField as AddField
    from penstock.sources.transforms import BatchTransform as BatchTransform
    from penstock.sources.transforms import ChainedTransform as ChainedTransform
    from penstock.sources.transforms import CombineFields as CombineFields
    from penstock.sources.transforms import DropFields as DropFields
    from penstock.sources.transforms import ExpandTransform as ExpandTransform
    from penstock.sources.transforms import ExtractField as ExtractField
    from penstock.sources.transforms import FilterByField as FilterByField
    from penstock.sources.transforms import FilterNonEmpty as FilterNonEmpty
    from penstock.sources.transforms import FilterTransform as FilterTransform
    from penstock.sources.transforms import FlatMapTransform as FlatMapTransform
    from penstock.sources.transforms import MapBatchTransform as MapBatchTransform
    from penstock.sources.transforms import MapField as MapField
    from penstock.sources.transforms import MapTransform as MapTransform
    from penstock.sources.transforms import RenameFields as RenameFields
    from penstock.sources.transforms import SelectFields as SelectFields
    from penstock.sources.transforms import Transform as Transform
else:
    from penstock.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__spec__)
