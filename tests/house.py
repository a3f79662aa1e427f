"""Measures of the source tree: sizes of packages, and how modules import each other. Printed by `scripts/house`."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
}


def python_files(root: Path) -> list[Path]:
    """Return all modules of a package, in the order of their names."""
    return sorted(root.rglob("*.py"))


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_and_prose_lines(text: str) -> tuple[int, int]:
    """Count the lines of code, and those of docstrings and comments. Blank lines are neither."""
    docs = docstring_lines(ast.parse(text))
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docs), len(docs | comments)


def code_lines_of_packages(root: Path) -> dict[str, int]:
    """Count the lines of code of each package; modules beside the packages are counted as `.`."""
    counts: Counter[str] = Counter()
    for file in python_files(root):
        parts = file.relative_to(root).parts
        counts[parts[0] if len(parts) > 1 else "."] += code_and_prose_lines(file.read_text())[0]
    return dict(sorted(counts.items()))


def modules_of(root: Path) -> dict[str, Path]:
    """Return the files of a package by the name that each is imported under."""
    names = {".".join((root.name, *file.relative_to(root).with_suffix("").parts)): file for file in python_files(root)}
    return {name.removesuffix(".__init__"): file for name, file in names.items()}


def modules_imported(tree: ast.AST, modules: Mapping[str, Path]) -> set[str]:
    """Return our modules that a file imports anywhere in it, for types alone or within a function included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            found |= {name if (name := f"{home}.{alias.name}") in modules else home for alias in node.names}
    return found & modules.keys()


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return what each module imports."""
    modules = modules_of(root)
    return {name: modules_imported(ast.parse(file.read_text()), modules) - {name} for name, file in modules.items()}


def longest_chain(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the longest chain of modules of which each imports the next; raise `CycleError` if there is a circle."""
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(imports).static_order():
        below = max((chains[other] for other in sorted(imports.get(name, ()))), key=len, default=[])
        chains[name] = [name, *below]
    return max(chains.values(), key=len, default=[])


def class_names(root: Path) -> dict[str, list[str]]:
    """Return where each class that is not private to its module is defined, by its name."""
    found: dict[str, list[str]] = {}
    for name, file in modules_of(root).items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    return found


def functions_of(tree: ast.AST) -> Sequence[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return all functions and methods of a file."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
