"""The modules that `import streaming` finds: each gives the names of its table, and loads nothing before that."""

from __future__ import annotations

import sys
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.as_streaming.names import INSTEAD, NAMES
from penstock.errors import NotProvidedError

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "streaming"


class StandInModule(ModuleType):
    """A module of the original whose names are ours."""

    def __init__(self, name: str, homes: Mapping[str, str]) -> None:
        super().__init__(name, f"The names of MosaicML Streaming's `{name}`, provided by penstock.")
        self.__path__: list[str] = []  # every one may have modules below it
        self.__all__ = sorted(name for name in homes if not name.startswith("_"))
        self._homes = homes

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            home, _, attributes = self._homes[name].partition(":")
            value = attrgetter(attributes)(import_module(home))
            setattr(self, name, value)
            return value
        refuse(f"{self.__name__}.{name}")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return [*self._homes]


class _RefusedModules:
    """Says what to use instead where a module of the original has no counterpart."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """Raise for such a module, and leave all others to the finders that come after."""
        if name.startswith(f"{ROOT}."):
            refuse(name)


def refuse(name: str) -> None:
    """Raise an error for a name of the original, or one below it, that is known to have no counterpart."""
    known = name
    while known not in INSTEAD:
        known, dot, _ = known.rpartition(".")
        if not dot:
            return
    raise NotProvidedError(f"penstock does not provide {name}: {INSTEAD[known]}", name=name)


def stand_in() -> None:
    """Put our modules where `import streaming` looks first, unless the real ones are there already."""
    found = sys.modules.get(ROOT)
    if found is not None and not isinstance(found, StandInModule):
        raise NotProvidedError(
            f"{ROOT} has already been imported, from {getattr(found, '__file__', 'somewhere else')}: put `import"
            " penstock.as_streaming` above all other imports of your script"
        )
    modules = {name: StandInModule(name, homes) for name, homes in NAMES.items()}
    for name, module in modules.items():
        above, _, last = name.rpartition(".")
        if above:
            setattr(modules[above], last, module)
    sys.modules.update(modules)
    sys.meta_path.insert(0, _RefusedModules)
