"""penstock carries training samples from storage to the training step.

Public names are resolved on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._version import __version__

if TYPE_CHECKING:
    from penstock.cache.cleanup import clear_cache, prune_cache
    from penstock.cache.contents import list_cache
    from penstock.data.dataset import StreamingDataset
    from penstock.data.local import LocalDataset
    from penstock.data.stats import Stats
    from penstock.data.stream import Stream
    from penstock.data.warm import warm_cache
    from penstock.errors import PenstockError, TransformError
    from penstock.formats.encodings.base import Encoding
    from penstock.formats.encodings.table import encodings
    from penstock.loaders.torch import StreamingDataLoader
    from penstock.order.schedule import MixSchedule
    from penstock.reading.source import FunctionReader, OpenShard, Source
    from penstock.write.merge_index import merge_index
    from penstock.write.writer import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

_HOMES = {
    "CSVWriter": "penstock.write.writer",
    "Encoding": "penstock.formats.encodings.base",
    "FunctionReader": "penstock.reading.source",
    "JSONWriter": "penstock.write.writer",
    "LocalDataset": "penstock.data.local",
    "MDSWriter": "penstock.write.writer",
    "MixSchedule": "penstock.order.schedule",
    "OpenShard": "penstock.reading.source",
    "PenstockError": "penstock.errors",
    "Source": "penstock.reading.source",
    "Stats": "penstock.data.stats",
    "Stream": "penstock.data.stream",
    "StreamingDataLoader": "penstock.loaders.torch",
    "StreamingDataset": "penstock.data.dataset",
    "TSVWriter": "penstock.write.writer",
    "TransformError": "penstock.errors",
    "XSVWriter": "penstock.write.writer",
    "clear_cache": "penstock.cache.cleanup",
    "encodings": "penstock.formats.encodings.table",
    "list_cache": "penstock.cache.contents",
    "merge_index": "penstock.write.merge_index",
    "prune_cache": "penstock.cache.cleanup",
    "warm_cache": "penstock.data.warm",
}

__all__ = [
    "CSVWriter",
    "Encoding",
    "FunctionReader",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "MixSchedule",
    "OpenShard",
    "PenstockError",
    "Source",
    "Stats",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "TransformError",
    "XSVWriter",
    "__version__",
    "clear_cache",
    "encodings",
    "list_cache",
    "merge_index",
    "prune_cache",
    "warm_cache",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
