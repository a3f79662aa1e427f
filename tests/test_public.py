"""The front door: its names, and what it costs to open it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import penstock
from penstock.registry import Registry

HEAVY = {"torch", "jax", "pyarrow", "PIL", "simplejpeg", "obstore", "cramjam", "xxhash"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_all_is_what_is_exported() -> None:
    assert sorted(penstock.__all__) == penstock.__all__ == dir(penstock)
    assert penstock.__all__ == sorted([*penstock._HOMES, "__version__"])
    for name, home in penstock._HOMES.items():
        value = getattr(penstock, name)
        assert isinstance(value, Registry) or value.__module__ == home
        assert getattr(penstock, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(penstock, "Streaming")


def test_the_version_is_the_installed_one() -> None:
    assert penstock.__version__ == version("penstock")


def test_importing_penstock_loads_nothing_heavier_than_numpy() -> None:
    loaded = run("import sys, penstock; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not HEAVY & set(loaded)


def test_names_that_need_no_torch_do_not_load_it() -> None:
    loaded = run(
        "import sys, penstock\n"
        "for name in penstock.__all__:\n"
        "    if not name.startswith('Streaming'): getattr(penstock, name)\n"
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
        "try: penstock.StreamingDataLoader\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    assert printed.startswith("MissingExtraError")
    assert "penstock[torch]" in printed


def test_the_package_is_typed() -> None:
    assert (Path(penstock.__file__).parent / "py.typed").is_file()
