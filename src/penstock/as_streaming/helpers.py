"""MosaicML Streaming's registries, its `Reader` of one shard, and small names that need a line or two here."""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.data.getitem import items_at
from penstock.data.mosaic_names import Shard
from penstock.data.mosaic_names import Spanner as _Spanner
from penstock.data.stream import stream_classes
from penstock.errors import ConfigError, ObjectNotFoundError, SampleIndexError, UserCodeError
from penstock.formats.base import ReadOptions
from penstock.formats.parts import open_shard
from penstock.index.catalog import parse_index
from penstock.index.paths import INDEX_NAME
from penstock.order.id_spans import IdSpans
from penstock.reading.shard_table import check_layouts
from penstock.registry import Registry
from penstock.units import parse_bytes, parse_count

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from penstock.formats.base import ShardReader
    from penstock.index.model import Index


VERSION = "0.13.0"  # the release whose names and behaviour these are


def clean_stale_shared_memory() -> None:
    """Do nothing: penstock leaves nothing behind in shared memory."""


def get_list_arg(text: str) -> list[str]:
    """Split a list that was written with commas."""
    return text.split(",") if text else []


def get_index_basename() -> str:
    """Name the index file of a dataset."""
    return INDEX_NAME


def bytes_to_int(bytes_str: int | float | str) -> int:
    """Turn a size such as `"64kb"` into a number of bytes; one of an exabyte or more is rounded as a float is."""
    exact = parse_bytes(bytes_str)
    return exact if exact < 1 << 53 else int(float(exact))


def number_abbrev_to_int(abbrev_str: int | float | str) -> int:
    """Turn a count such as `"64k"` into a number."""
    return parse_count(abbrev_str)


def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Decorate a function to call it again when it raises one of these errors, waiting twice as long each time."""
    if callable(exc_class) and not isinstance(exc_class, type):
        return retry()(exc_class)
    errors = (exc_class,) if isinstance(exc_class, type) else tuple(exc_class)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(num_attempts - 1):
                with suppress(*errors):
                    return function(*args, **kwargs)
                if clean_up_fn is not None:
                    clean_up_fn()
                time.sleep(initial_backoff * 2**attempt + random.random() * max_jitter)  # noqa: S311
            return function(*args, **kwargs)

        return call

    return decorate


class Spanner(_Spanner):
    """Finds the shard of a sample and its place in there: `shard, row = spanner[sample]`."""

    def __init__(self, shard_sizes: Sequence[int], span_size: int = 1 << 10) -> None:  # noqa: ARG002
        super().__init__(IdSpans(shard_sizes))


class Array(ABC):
    """Gives items by number, slice, list or array of numbers to a class that defines `size` and `get_item`."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of items."""

    @abstractmethod
    def get_item(self, idx: int) -> Any:
        """Return one item by its number, counted from 0."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: Any) -> Any:
        return items_at(at, self.size, lambda ids: [self.get_item(int(number)) for number in ids])


class Reader(Shard, Array):
    """The samples of one shard in a folder of this machine, by number: make it with `reader_from_json`."""

    def __init__(self, dirname: str, split: str | None, index: Index) -> None:
        self._index, self._info = index, index.shards[0]
        super().__init__(self._info)
        self.dirname, self.split = dirname, split or ""
        self._allow_unsafe_types = False
        self._opened: ShardReader | None = None

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
        """Read the shard that an entry of an index describes, in whatever format it is."""
        return reader_from_json(dirname, split, obj)

    def validate(self, allow_unsafe_types: bool) -> None:
        """Refuse a shard that cannot be read; one with `pkl` columns is read only after it was allowed here."""
        check_layouts(self._index, ReadOptions(allow_unsafe_types=allow_unsafe_types), self.dirname)
        self._allow_unsafe_types = allow_unsafe_types
        self._opened = None

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return one sample by its number, counted from 0."""
        if not 0 <= idx < self.samples:
            raise SampleIndexError(f"sample {idx} is out of range: the shard has {self.samples} samples", sample=idx)
        if self._opened is None:
            options = ReadOptions(allow_unsafe_types=self._allow_unsafe_types)
            self._opened = open_shard(Path(self.dirname).expanduser() / self.split, self._info, options)
        return self._opened.read([idx])[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # open files stay in their process


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """Read the shard that an entry of an index describes, `json.load(file)["shards"][0]` for example."""
    document = json.dumps({"version": obj.get("version"), "shards": [obj]})
    return Reader(dirname, split, parse_index(document.encode(), str(Path(dirname) / (split or "") / INDEX_NAME)))


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """Return what to do if a library is missing."""
    return f"{package_name} is missing: pip install 'penstock[{extra_deps}]', or the library itself"


class TypedRegistry:
    """Names that stand for code, with the methods of the original's registries."""

    def __init__(self, namespace: tuple[str, ...], entry_points: bool = False, description: str = "") -> None:
        self.namespace, self.entry_points, self.description = namespace, entry_points, description
        group = "_".join(namespace) if entry_points else ""
        self._items: Registry[Any] = Registry(namespace[-1], group=group, builtin={})

    def register(self, name: str, *, func: Any = None) -> Any:
        """Let a name stand for something, or decorate what it is to stand for; the last one counts."""
        if func is None:
            return lambda given: self.register(name, func=given)
        self._items.replace(name, func)
        return func

    register_class = register

    def get(self, name: str) -> Any:
        """Return what a name stands for."""
        return self._items.get(name)

    def get_all(self) -> dict[str, Any]:
        """Return what each name stands for."""
        return {name: self.get(name) for name in self._items.names()}

    def __contains__(self, name: str) -> bool:
        return name in self._items


streams_registry = TypedRegistry(("streaming", "streams_registry"), entry_points=True)
streams_registry._items = stream_classes  # which `stream_name=` of a dataset names


def create_registry(
    *namespace: str,
    generic_type: Any = None,  # noqa: ARG001  for type checkers alone
    entry_points: bool = False,
    description: str = "",
) -> TypedRegistry:
    """Make an empty registry; with `entry_points`, it has what packages declare in the group `first_second`."""
    return TypedRegistry(namespace, entry_points, description)


def construct_from_registry(
    name: str,
    registry: TypedRegistry,
    partial_function: bool = True,
    pre_validation_function: Callable[[Any], None] | type | None = None,
    post_validation_function: Callable[[Any], None] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call the class of a name with `kwargs`; give these to its function now or, by default, when it is called."""
    found = registry.get(name)
    if isinstance(pre_validation_function, type):
        if not (isinstance(found, type) and issubclass(found, pre_validation_function)):
            raise ConfigError(f"Expected {name} to be of type {pre_validation_function}, but it is {found!r:.100}")
    elif pre_validation_function is not None:
        pre_validation_function(found)
    if not callable(found):
        raise ConfigError(f"Expected {name} to be a class or function, but it is {found!r:.100}")
    is_called = isinstance(found, type) or not partial_function
    made = found(**(kwargs or {})) if is_called else partial(found, **(kwargs or {}))
    if post_validation_function is not None:
        post_validation_function(made)
    return made


def import_file(loc: str | os.PathLike[str]) -> ModuleType:
    """Run a file of Python, and return it as a module."""
    path = Path(loc)
    if not path.exists():
        raise ObjectNotFoundError(f"File {path} does not exist: pass the path of a file of Python", path=str(path))
    module = ModuleType("python_code")
    try:
        SourceFileLoader(module.__name__, str(path)).exec_module(module)
    except Exception as error:
        raise UserCodeError(f"Error executing {path}: {error!r:.200}") from error
    return module
