"""The front doors: names of the package and of its public modules, and what it costs to open them."""

from __future__ import annotations

import ast
import builtins
import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import errors
from penstock.registry import Registry

if TYPE_CHECKING:
    # mypy fails where a name is not of the type that it has at home, and where one that is not there would pass as any.
    from typing_extensions import assert_type

    from penstock import caching, packing, pipeline, robots, sources, transforms
    from penstock.cache.contents import CachedDataset
    from penstock.data.dataset import StreamingDataset
    from penstock.episodes.settings import LeRobotStream
    from penstock.pipeline.config import RayConfig
    from penstock.sources.composite import LimitedShardedSource
    from penstock.sources.pack.packers import PoolPacker
    from penstock.sources.transforms import AddField

    assert_type(penstock.StreamingDataset, type[StreamingDataset])
    assert_type(penstock.AddField, type[AddField])
    assert_type(caching.list_cache(), tuple[CachedDataset, ...])
    assert_type(packing.PoolPacker, type[PoolPacker])
    assert_type(pipeline.RayConfig, type[RayConfig])
    assert_type(robots.LeRobotStream, type[LeRobotStream])
    assert_type(sources.LimitedShardedSource, type[LimitedShardedSource])
    assert_type(transforms.AddField, type[AddField])
    penstock.Streaming  # type: ignore[attr-defined]  # noqa: B018
    sources.Streaming  # type: ignore[attr-defined]  # noqa: B018

HEAVY = {"torch", "jax", "pyarrow", "PIL", "simplejpeg", "obstore", "cramjam", "xxhash"}
ROOT = Path(__file__).parents[1]
# Modules of names, and where their names are documented.
PAGES = {
    "caching": "streaming.md",
    "conversion": "converting.md",
    "packing": "packing.md",
    "pipeline": "pipeline.md",
    "robots": "episodes.md",
    "sources": "sources.md",
    "transforms": "transforms.md",
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def homes_in_the_text(module: str) -> dict[str, str]:
    """Return where the table of a module says that its names are from, lines with * left out."""
    tree = ast.parse(Path(import_module(module).__file__ or "").read_text())
    table = [line for block in tree.body if isinstance(block, ast.If) for line in block.body]
    lines = [line for line in table if isinstance(line, ast.ImportFrom)]
    return {name.asname: line.module or "" for line in lines for name in line.names if name.asname == name.name}


DOORS = ["penstock", "penstock.testing", "penstock.integrations.trainer", *(f"penstock.{name}" for name in PAGES)]


@pytest.mark.parametrize("module", DOORS)
def test_a_table_has_the_names_of_its_module(module: str) -> None:
    door = import_module(module)
    homes = homes_in_the_text(module)
    assert sorted(homes) == door.__all__ == dir(door)
    for name, home in homes.items():
        value = getattr(door, name)
        assert value is getattr(import_module(home), name)
        assert isinstance(value, str | Registry) or home in (value.__module__, *(f"penstock.{name}" for name in PAGES))
        assert value.__doc__
        assert f"{module}.{name}" not in sys.modules, "a module of this name would take the place of the name"


@pytest.mark.parametrize("subject", PAGES)
def test_names_of_a_subject_are_documented_and_in_the_package_too(subject: str) -> None:
    door = import_module(f"penstock.{subject}")
    page = (ROOT / "docs" / PAGES[subject]).read_text()
    assert f"`penstock.{subject}`" in page
    for name in door.__all__:
        assert getattr(penstock, name) is getattr(door, name)
        assert re.search(rf"`{name}\b", page), f"docs/{PAGES[subject]} does not explain {name}"


def test_few_names_are_typed_first() -> None:
    most = json.loads((ROOT / "tests" / "house_ratchet.json").read_text())["public_names"]
    assert len(dir(penstock)) == most, "names that are not in a first example belong in the module of their subject"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(penstock, "Streaming")


def test_the_version_is_the_installed_one() -> None:
    assert penstock.__version__ == version("penstock")


def test_importing_penstock_loads_nothing_heavier_than_numpy() -> None:
    loaded = run("import sys, penstock; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not HEAVY & set(loaded)


def test_names_that_need_no_torch_do_not_load_it() -> None:
    loaded = run(
        "import importlib, sys, penstock\n"
        f"for door in (penstock, *map(importlib.import_module, {[f'penstock.{name}' for name in PAGES]})):\n"
        "    for name in door.__all__:\n"
        "        if not name.startswith('Streaming'): getattr(door, name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    ).split()
    assert not HEAVY & set(loaded)


def test_without_torch_all_but_its_loader_works(tmp_path: Path) -> None:
    printed = run(
        "import sys; sys.modules['torch'] = None\n"
        "import penstock\n"
        f"with penstock.MDSWriter(out={str(tmp_path)!r}, columns={{'x': 'int'}}) as writer:\n"
        "    for x in range(100): writer.write({'x': x})\n"
        f"dataset = penstock.StreamingDataset(local={str(tmp_path)!r}, shuffle=True, batch_size=8)\n"
        "assert sorted(sample['x'] for sample in dataset) == list(range(100))\n"
        "try: from penstock import StreamingDataLoader\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
        "try: penstock.StreamingDataLoader(dataset)\n"
        "except AttributeError as error: print(error)"
    )
    imported, asked = printed.splitlines()
    assert imported == f"MissingExtraError {asked}"
    assert re.match(r"StreamingDataLoader needs torch, which .*: run pip install '.*\[torch\]'$", asked)


def test_without_torch_one_may_look_around() -> None:
    printed = run(
        "import sys; sys.modules['torch'] = None\n"
        "import importlib, inspect, pydoc, penstock\n"
        f"for door in (penstock, *map(importlib.import_module, {[f'penstock.{name}' for name in PAGES]})):\n"
        "    assert 'PACKAGE CONTENTS' in pydoc.render_doc(door, renderer=pydoc.plaintext) or door is not penstock\n"
        "    assert {name for name, _ in inspect.getmembers(door)} >= set(dir(door)) == set(door.__all__)\n"
        "    exec(f'from {door.__name__} import *')\n"
        "name = 'StreamingDataLoader'\n"
        "print(hasattr(penstock, name), name in dir(penstock), StreamingDataset.__name__)"
    )
    assert printed == "False False StreamingDataset"


def test_errors_of_the_docs_are_where_a_user_looks() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(\w+Error)`", page.read_text())}
    ours = {name for name in named if not hasattr(builtins, name)}
    assert len(ours) > 15
    assert not {name for name in ours if not hasattr(errors, name) or not hasattr(penstock, name)}
    for page in pages:
        if "| error |" in page.read_text():
            assert "`penstock.errors`" in page.read_text(), page


def test_the_package_is_typed() -> None:
    assert (Path(penstock.__file__).parent / "py.typed").is_file()
