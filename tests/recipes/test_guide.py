"""The guide of recipes: its commands run on tiny raw files, and its recipe passes the contract that it shows."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from penstock.recipes.table import recipes
from penstock.testing import write_lines
from tests.test_docs import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "recipes.md"


def test_the_commands_of_the_guide_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "raw/val.jsonl", [{"text": "a", "meta": {"pile_set_name": "ArXiv"}}])
    for command in "".join(blocks(PAGE, "sh")).splitlines():
        words = shlex.split(command.removeprefix("python -m "))
        subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert json.loads((tmp_path / "store/val/index.json").read_text())["shards"]


def test_the_recipe_of_the_guide_passes_its_contract(tmp_path: Path) -> None:
    code = blocks(PAGE, "python")[-1]
    assert len(code.splitlines()) <= 45
    (tmp_path / "test_poems.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_poems.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_every_recipe_is_in_the_table() -> None:
    table = PAGE.read_text()
    assert not [name for name in recipes.names(of_packages=False) if f"| `{name}` |" not in table]
