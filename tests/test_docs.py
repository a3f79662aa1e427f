"""Every Python example of the documentation runs, in order, in a fresh process per page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks(page, "python")))
    subprocess.run([sys.executable, "-W", "error", str(script)], cwd=tmp_path, check=True, timeout=300)


@pytest.mark.parametrize("name", ["README.md", "docs/converting.md"])
def test_the_commands_of_a_page_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text("\n".join(blocks(ROOT / name, "python")))
    subprocess.run([sys.executable, "example.py"], cwd=tmp_path, check=True)
    commands = [
        line for block in blocks(ROOT / name, "sh") for line in block.splitlines() if line.startswith("penstock ")
    ]
    assert commands
    for command in commands:
        subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=tmp_path, check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_the_files_that_the_design_names_are_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / "docs" / "design.md").read_text()))
    assert len(named) > 20
    assert not {name for name in named if not any((root / name).exists() for root in (ROOT / "src" / "penstock", ROOT))}
