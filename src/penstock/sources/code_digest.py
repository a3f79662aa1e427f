"""Digests of code: the syntax tree of a function, and all values and functions that it refers to.

Trees leave out positions, comments and docstrings, and are the same in all releases of Python. The source counts only
if the file, as it is now, holds the very bytecode that is loaded: it may have been edited since. Otherwise, and where
there is no source, bytecode and the version of Python count. Functions and classes of libraries count by name.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import linecache
import pickle
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from penstock.reading.source import CodeDigest

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRAPPERS = (staticmethod, classmethod, functools._lru_cache_wrapper)
_MOST_BYTES = 1 << 30
_LIBRARIES, _STDLIB = {"site-packages", "dist-packages"}, sysconfig.get_paths()["stdlib"]


def digest_code(name: str, value: Any, *, has_settings: bool = True) -> CodeDigest:
    """Digest a function, or anything else that has code; if there is no digest, the reason is with it."""
    digest = _Digest()
    try:
        return CodeDigest(name, digest.of(value), "", has_settings)
    except Exception as error:  # noqa: BLE001  of the value's own methods, too
        reason = f"{name!r} has no digest, because of {digest.last!r:.80}: {error}"
        return CodeDigest(name, "", reason, has_settings)


def with_code(fingerprint: str | None, code: Sequence[CodeDigest]) -> str | None:
    """Add digests of code to a fingerprint, if they are all known."""
    if fingerprint is None or not all(each.digest for each in code):
        return None
    whole = hashlib.blake2b("".join(each.digest for each in code).encode(), digest_size=16).hexdigest()
    return f"{fingerprint}-code-{whole}" if code else fingerprint


def why_none(code: Sequence[CodeDigest]) -> str:
    """Describe why there is no fingerprint, and what to do."""
    reason = next((f"{each.reason}. Pass it what can be pickled, or " for each in code if each.reason), "")
    return reason or "give data in memory a fingerprint=, transforms that depend on more than code settings(), "


def name_of(function: Any) -> str:
    """Name a function, what a partial one calls, or the class of another object."""
    function = getattr(function, "func", function)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


class _Digest(pickle.Pickler):
    """Takes in what pickle would write of values, and the code of functions and classes."""

    def __init__(self) -> None:
        super().__init__(self, 4)
        self.fast = True  # whether equal values are one object does not count
        self.hash = hashlib.blake2b(digest_size=16)
        self.last = ""  # the name that was taken in last
        self._seen: dict[int, tuple[int, Any]] = {}  # functions and classes, which may refer to each other
        self._num_bytes = 0

    def of(self, value: Any) -> str:
        """Return the digest of a value."""
        self.dump(value)
        return self.hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Take in some bytes, as a file does."""
        self._num_bytes += len(data)
        if self._num_bytes > _MOST_BYTES:
            raise ValueError("it is too large")
        self.hash.update(data)

    def persistent_id(self, value: Any) -> Any:
        """Return what is taken in instead of a value; None: what pickle writes of it."""
        if type(value) is str:
            self.last = value
        elif isinstance(value, FunctionType | type):
            if id(value) in self._seen:
                return "again", self._seen[id(value)][0]
            self._seen[id(value)] = len(self._seen), value
            return _parts_of_function(value) if isinstance(value, FunctionType) else _parts_of_class(value)
        elif isinstance(value, set | frozenset):
            return "set", sorted(_Digest().of(each) for each in value)
        elif isinstance(value, ModuleType):
            return "module", value.__name__
        elif isinstance(value, property):
            return "property", (value.fget, value.fset, value.fdel)
        elif isinstance(value, _WRAPPERS):
            return type(value).__name__, value.__wrapped__
        elif isinstance(value, functools.cached_property):
            return "cached_property", value.func
        return None


def _parts_of_function(function: FunctionType) -> Any:
    code, names = function.__code__, function.__globals__
    cells = [(name, _content(cell)) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)]
    if _is_library(names.get("__name__", "")):
        return _library_name(names["__name__"], function), cells
    used = [(name, names[name]) for name in _names_used(code, "LOAD_GLOBAL", "LOAD_NAME") if name in names]
    for name, value in list(used):
        if isinstance(value, ModuleType) and not _is_library(value.__name__):
            attributes = _names_used(code, "LOAD_ATTR", "LOAD_METHOD")
            used += [(f"{name}.{each}", vars(value)[each]) for each in attributes if each in vars(value)]
    return _source_of(code, names), function.__defaults__, function.__kwdefaults__, cells, used


def _parts_of_class(cls: type) -> Any:
    if _is_library(cls.__module__):
        return _library_name(cls.__module__, cls)
    own = [each for each in sorted(vars(cls).items()) if each[0] != "_abc_impl"]
    return cls.__bases__, [each for each in own if not each[0].startswith("__") or isinstance(each[1], FunctionType)]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned to it yet
        return None


def _is_library(module: str) -> bool:
    file, top = getattr(sys.modules.get(module), "__file__", None), module.partition(".")[0]
    if file is None or top == "__main__":  # which python -m runs may be a program of a library
        return top in sys.stdlib_module_names
    return top == "penstock" or file.startswith(_STDLIB) or not _LIBRARIES.isdisjoint(Path(file).parts)


def _library_name(module: str, value: Any) -> str:
    """Name what a library has; modules of penstock may move."""
    if module.partition(".")[0] == "penstock":
        return f"penstock.{getattr(value, 'written_name', '') or value.__qualname__}"
    return f"{module}.{value.__qualname__}"


def _names_used(code: CodeType, *kinds: str) -> list[str]:
    """List the names that code refers to in these ways, but no globals that it keeps something in itself."""
    steps = [step for each in (code, *_inner_codes(code)) for step in dis.get_instructions(each)]
    stored = {step.argval for step in steps if step.opname == "STORE_GLOBAL"}
    return sorted({step.argval for step in steps if step.opname in kinds} - stored)


# --- Source -------------------------------------------------------------------------------------------------------


def _source_of(code: CodeType, names: dict[str, Any]) -> Any:
    """Return the trees of the functions with the name of this one in its line, and which of them it is."""
    linecache.checkcache(code.co_filename)
    trees, codes = _functions_in("".join(linecache.getlines(code.co_filename, names)))
    wanted = _plain(code)
    places = [each.co_firstlineno for each in codes if each.co_name == code.co_name and _plain(each) == wanted]
    if not places:
        return sys.version_info[:2], wanted
    line = code.co_firstlineno if code.co_firstlineno in places else places[0]
    in_line = [each for each in codes if (each.co_name, each.co_firstlineno) == (code.co_name, line)]
    return trees.get((code.co_name, line)), [_plain(each) for each in in_line].index(wanted)


@functools.lru_cache(maxsize=8)
def _functions_in(text: str) -> tuple[dict[tuple[str, int], list[Any]], list[CodeType]]:
    """Return the functions in some source: their trees by name and line, and their bytecode."""
    trees: dict[tuple[str, int], list[Any]] = {}
    try:
        codes = _inner_codes(compile(text, "", "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return trees, []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            line = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
            trees.setdefault((getattr(node, "name", "<lambda>"), line), []).append(_tree(node))
    return trees, codes


def _tree(node: Any) -> Any:
    """Return a syntax tree as lists, without what differs between releases of Python, and text that does nothing."""
    if isinstance(node, list):
        return [
            _tree(each) for each in node if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        ]
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return [type(node).__name__, *((name, _tree(value)) for name, value in parts)]


def _inner_codes(code: CodeType) -> list[CodeType]:
    return [each for one in code.co_consts if isinstance(one, CodeType) for each in (one, *_inner_codes(one))]


def _plain(code: CodeType) -> str:
    """Return all that bytecode does as text, without where it stands."""
    consts = [_plain(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    shown = [repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each) for each in consts]
    sizes = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return repr((code.co_code, shown, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, sizes))
