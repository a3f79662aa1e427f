"""Modules of names: each public name stands in one line of one module, and is imported when it is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from opcode import opmap
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import FrameType


def lazy_names(spec: ModuleSpec) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module that imports its names for type checkers alone.

    The table is the module's own text, so that no name is written twice: type checkers read the imports, and this reads
    their lines. `from home import name as name` is a name of the module. Names of modules from which it imports `*` are
    found in them, but are not listed. `# needs LIBRARY` behind a line means that the name is not there without it.
    """
    homes: dict[str, str] = {}
    missing: set[str] = set()
    others: list[str] = []
    for line in spec.loader.get_source(spec.name).splitlines():  # type: ignore[union-attr]
        match line.split():
            case ["from", home, "import", "*"]:
                others.append(home)
            case ["from", home, "import", name, "as", _, *needs]:
                homes[name] = home
                if needs and find_spec(needs[-1]) is None:
                    missing.add(name)
    listed = sorted(homes.keys() - missing)

    def find(name: str) -> Any:
        home = homes.get(name) or next((other for other in others if name in import_module(other).__all__), None)
        if home is None:
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(home), name)
        except MissingExtraError as error:
            if _is_imported(sys._getframe(1)):
                raise
            raise AttributeError(str(error)) from error
        setattr(sys.modules[spec.name], name, value)
        return value

    return find, lambda: listed, listed


def _is_imported(caller: FrameType) -> bool:
    """Return whether a name is wanted by `from module import name`, which would replace an `AttributeError`."""
    return caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]
