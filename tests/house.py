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


def exported_names(root: Path) -> set[str]:
    """Return the names that public modules give out, each a line of theirs."""
    found: set[str] = set()
    for file in python_files(root):
        text = file.read_text()
        if "lazy_names(__spec__)" in text:
            imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
            found |= {alias.asname or alias.name for node in imports for alias in node.names}
    return found


def callbacks_and_arguments(node: ast.ClassDef) -> tuple[int, int]:
    """Count the callbacks that a class is made with, and the arguments of its `__init__`; fields are no arguments."""
    fields = [one.annotation for one in node.body if isinstance(one, ast.AnnAssign)]
    given: list[ast.expr | None] = []
    for function in functions_of(ast.Module(node.body, [])):
        if function.name == "__init__":
            arguments = function.args
            given = [one.annotation for one in (*arguments.posonlyargs, *arguments.args[1:], *arguments.kwonlyargs)]
    is_record = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    called = [one for one in (fields if is_record else given) if one is not None and "Callable" in ast.unparse(one)]
    return len(called), len(given)


def untested_modules(root: Path, tests: Path) -> list[str]:
    """Return the modules that have no test of their own: `a/test_b.py` for `a/b.py`."""
    modules = [file.relative_to(root) for file in python_files(root) if not file.stem.startswith("_")]
    return [str(file) for file in modules if not (tests / file.parent / f"test_{file.name}").exists()]


def small_modules_of_one(root: Path, most_lines: int) -> dict[str, str]:
    """Return the small modules that one other module of their folder imports and nothing else, with that module."""
    imports, modules = import_graph(root), modules_of(root)
    found = {}
    for name, file in modules.items():
        users = [other for other, imported in imports.items() if name in imported]
        is_beside = len(users) == 1 and users[0].rpartition(".")[0] == name.rpartition(".")[0]
        if is_beside and file.stem != "__init__" and file.read_text().count("\n") < most_lines:
            found[name] = users[0]
    return found


def ratcheted(root: Path, tests: Path) -> dict[str, object]:
    """Return the figures of `house_ratchet.json`, which may only fall; `public_names` is not measured here."""
    texts = [file.read_text() for file in python_files(root)]
    return {
        "files": len(texts),
        "lines": sum(text.count("\n") for text in texts),
        "longest_chain": len(longest_chain(import_graph(root))) - 1,
        "code_lines": code_lines_of_packages(root),
        "untested": untested_modules(root, tests),
    }
