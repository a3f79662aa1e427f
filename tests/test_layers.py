"""The shape of the house, checked from the syntax tree: imports go down only, in no circles, and files stay small."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import penstock
from tests.house import modules_imported, modules_of

ROOT = Path(penstock.__file__).parent
EVERYWHERE = {
    "arrays_file",
    "errors",
    "types",
    "registry",
    "units",
    "user_warnings",
    "extras",
    "files",
    "outside_text",
    "status_line",
    "interrupts",
    "failpoints",
    "processes",
    "runtime",
    "shared_file",
    "lazy_names",
    "counters",
    "thread_times",
    "_version",
}
ENTRY_POINTS = {"__init__", "__main__"}
BELOW_DATA = {
    "order",
    "blocks",
    "index",
    "codecs",
    "storage",
    "formats",
    "wire",
    "cachedir",
    "scan",
    "fetcher",
    "cache",
    "reading",
}
BELOW_PIPELINE = BELOW_DATA | {"publish", "data", "sources", "episodes", "loaders", "pipeline", "conversion", "sim"}
MAY_IMPORT: dict[str, set[str]] = {
    "order": set(),
    "blocks": {"order"},
    "index": set(),
    "codecs": set(),
    "storage": set(),
    "wire": {"storage"},
    "formats": {"order", "blocks", "index", "codecs"},
    "cachedir": {"index", "codecs", "storage", "wire"},
    "scan": {"index", "codecs", "storage", "formats", "cachedir"},
    "fetcher": {"index", "codecs", "storage", "formats", "wire", "cachedir", "scan"},
    "cache": {"index", "codecs", "storage", "wire", "cachedir", "fetcher"},
    "publish": {"index", "codecs", "storage", "formats", "cachedir", "cache"},
    "reading": {"order", "blocks", "index", "codecs", "formats", "cachedir", "cache", "wire"},
    "data": BELOW_DATA | {"sources"},
    "sources": BELOW_DATA | {"publish"},
    "episodes": BELOW_DATA | {"publish", "data"},
    "as_streaming": BELOW_PIPELINE,
    "as_easydata": {"loaders", "sources"},
    "loaders": {"order", "blocks", "reading", "data", "sources"},
    "sim": {"order", "index", "cache"},
    "pipeline": BELOW_PIPELINE,
    "conversion": BELOW_PIPELINE,
    "recipes": BELOW_PIPELINE,
    "cli": BELOW_PIPELINE | {"pipeline", "recipes", "viewer"},
    "viewer": BELOW_PIPELINE | {"pipeline", "recipes"},
    # Modules of names.
    "caching": {"cache", "data"},
    "packing": {"sources"},
    "robots": {"episodes"},
    "transforms": {"sources"},
    # Contracts are run by plug-ins' tests, never by the library itself.
    "testing": BELOW_PIPELINE,
}
# Optional or heavy libraries, and the only files that may name them at module level.
HEAVY = {
    "torch",
    "jax",
    "pyarrow",
    "PIL",
    "simplejpeg",
    "av",
    "torchcodec",
    "obstore",
    "cramjam",
    "xxhash",
    "ray",
    "pyspark",
    "paramiko",
    "huggingface_hub",
    "databricks",
    "fsspec",
    "tokenizers",
    "transformers",
    "jinja2",
    "datasets",
}
MAX_LINES_OF_FILE = 600  # of one idea
MAX_LINES_OF_FUNCTION = 60
MAX_MODULES_OF_FOLDER = 20
MANY_OF_A_KIND = {"order", "storage"}  # one file for each law of an order, for each family of stores


def packages_imported(tree: ast.AST) -> set[str]:
    """Every `penstock.X` that a file imports, anywhere in it, as X."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full, not relative"
            names = [node.module or ""]
            if node.module == "penstock":
                names = [f"penstock.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("penstock.")}
    return found


def top_level_imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_down_only(file: Path) -> None:
    parts = file.relative_to(ROOT).with_suffix("").parts
    home = parts[0]
    if len(parts) == 1 and home in ENTRY_POINTS:
        return  # the front doors name everything, lazily
    allowed = EVERYWHERE if home in EVERYWHERE else EVERYWHERE | MAY_IMPORT[home] | {home}
    above = packages_imported(ast.parse(file.read_text())) - allowed
    assert not above, f"{home} may not import {sorted(above)}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_heavy_libraries_are_imported_on_first_use(file: Path) -> None:
    assert not top_level_imports(ast.parse(file.read_text())) & HEAVY


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = modules_of(ROOT)
    imports = {name: modules_imported(ast.parse(file.read_text()), modules) - {name} for name, file in modules.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail("modules that import each other in a circle: " + " ← ".join(error.args[1]), pytrace=False)


def is_module_of_names(file: Path) -> bool:
    return "lazy_names(__spec__)" in file.read_text()


def test_only_the_package_itself_imports_modules_of_names() -> None:
    modules = modules_of(ROOT)
    doors = {name for name, file in modules.items() if is_module_of_names(file)}
    assert "penstock.sources" in doors
    for name, file in modules.items():
        through = doors & modules_imported(ast.parse(file.read_text()), modules) - {name}
        assert name == "penstock" or not through, f"{name} imports {through}: import from where the names are defined"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_stay_small(file: Path) -> None:
    text = file.read_text()
    num_lines = text.count("\n")
    assert num_lines <= MAX_LINES_OF_FILE, "two ideas in one file, or one told at too great length"
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    assert not [(name, length) for name, length in lengths if length > MAX_LINES_OF_FUNCTION]


def test_folders_hold_few_modules() -> None:
    rooms = [file for file in FILES if file.stem not in ENTRY_POINTS and not is_module_of_names(file)]
    counts = Counter(str(file.parent.relative_to(ROOT)) for file in rooms)
    crowded = {folder: count for folder, count in counts.items() if count > MAX_MODULES_OF_FOLDER}
    assert not crowded.keys() - MANY_OF_A_KIND, f"more than {MAX_MODULES_OF_FOLDER} modules in a folder: {crowded}"
