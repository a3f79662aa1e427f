"""The shape of the house, checked from the syntax tree: imports go down only, in no circles, and files stay small."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import penstock
from tests.house import (
    callbacks_and_arguments,
    class_names,
    exported_names,
    functions_of,
    modules_imported,
    modules_of,
    ratcheted,
    small_modules_of_one,
)

ROOT = Path(penstock.__file__).parent
TESTS = Path(__file__).parent
RATCHET = json.loads((TESTS / "house_ratchet.json").read_text())
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
    "lazy_names",
    "counters",
    "thread_times",
    "threads",
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
    "publish": {"blocks", "index", "codecs", "storage", "formats", "cachedir", "cache"},
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
    "integrations": {"loaders"},
    "packing": {"sources"},
    "ray": {"conversion"},
    "robots": {"episodes"},
    "transforms": {"sources"},
    # Contracts are run by plug-ins' tests, never by the library itself.
    "testing": BELOW_PIPELINE | {"recipes"},
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


# --- The house as a whole -----------------------------------------------------------------------------------

SHARED_NAMES = {"as_streaming"}  # names of another library's, beside ours
MAX_ARGUMENTS = 8
MAX_CALLBACKS = 2
TABLES_OF_FUNCTIONS = {"Cloud", "RetryHooks"}  # what differs between clouds, and what tests put in the place of clocks
PUBLIC_ELSEWHERE = {"Writer"}  # as_streaming lists it, for classes of users
SMALL_LINES = 80
# Small modules that one other module of their folder imports, and why they are by themselves.
BY_THEMSELVES = {
    "cli": "a command each",
}
WORDS = re.compile(
    r"\b(whoever|whomever|somebody|someone|anybody|anyone|nobody|no one|he|him|his|she|her|on its way|on their way)\b",
    re.IGNORECASE,
)
VAGUE = re.compile(r"(Give|Tell|Say)s?\b")
PROSE = [
    *(TESTS.parent / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((TESTS.parent / "docs").glob("*.md")),
    *sorted((TESTS.parent / "benchmarks").glob("*.md")),
]
CODE = sorted(
    file for folder in ("src", "tests", "benchmarks", "examples") for file in (TESTS.parent / folder).rglob("*.py")
)


def test_nothing_grows_without_a_line_that_says_so() -> None:
    found = ratcheted(ROOT, TESTS)
    for name, value in found.items():
        allowed = RATCHET[name]
        if isinstance(value, dict):
            grown = {key: size for key, size in value.items() if size > allowed.get(key, 0)}
            assert not grown, (
                f"code lines of packages that grew: raise them in house_ratchet.json, and say why: {grown}"
            )
        elif isinstance(value, list):
            assert not set(value) - set(allowed), "modules without a test of their own: write one"
        else:
            assert value <= allowed, f"{name} rose to {value}: raise it in house_ratchet.json, and say why"


def test_most_modules_have_a_test_of_their_own() -> None:
    num_modules = sum(1 for file in FILES if not file.stem.startswith("_"))
    assert len(RATCHET["untested"]) <= 0.4 * num_modules


def test_a_name_means_one_thing() -> None:
    homes = {
        name: [home for home in found if home.split(".")[1] not in SHARED_NAMES]
        for name, found in class_names(ROOT).items()
    }
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_constructors_that_are_not_public_take_few_arguments() -> None:
    public = exported_names(ROOT)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name not in public | PUBLIC_ELSEWHERE | TABLES_OF_FUNCTIONS:
                callbacks, arguments = callbacks_and_arguments(node)
                assert arguments <= MAX_ARGUMENTS, f"{file}: {node.name} takes {arguments} arguments"
                assert callbacks <= MAX_CALLBACKS, f"{file}: {node.name} takes {callbacks} callbacks"


def test_small_modules_with_one_user_lie_in_it() -> None:
    found = small_modules_of_one(ROOT, SMALL_LINES)
    alone = {name: user for name, user in found.items() if name.split(".")[1] not in BY_THEMSELVES}
    assert not alone, "a module of one other one is a part of it, or needs a reason in BY_THEMSELVES"


def test_the_design_stays_short() -> None:
    assert (TESTS.parent / "docs" / "design.md").read_text().count("\n") <= 270


def test_words_name_what_acts() -> None:
    found = []
    for file in (*CODE, *PROSE):
        if file != Path(__file__) and "golden" not in file.parts:
            lines = enumerate(file.read_text().splitlines(), 1)
            found += [
                f"{file}:{number}: {line.strip()}" for number, line in lines if WORDS.search(line.replace("_", " "))
            ]
    assert not found, "a noun instead: the worker, the process that holds the lease"


def test_docstrings_of_functions_say_what_they_do() -> None:
    docs = {
        f"{file}: {function.name}": ast.get_docstring(function) or ""
        for file in CODE
        for function in functions_of(ast.parse(file.read_text()))
    }
    assert not [name for name, doc in docs.items() if VAGUE.match(doc)], (
        "Return, Open, Evict instead of Give, Tell, Say"
    )
