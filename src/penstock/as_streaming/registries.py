"""MosaicML Streaming's registries of code by name; ours hold it."""

from __future__ import annotations

from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.data.stream import stream_classes
from penstock.errors import ConfigError, ObjectNotFoundError, UserCodeError
from penstock.registry import Registry

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


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
