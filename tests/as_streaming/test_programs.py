"""Programs in the style of MosaicML Streaming's documentation give what they give there, but for one line more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
RECORDED = Path(__file__).parents[1] / "golden/mosaic_programs.json"
OUR_LINE = "import penstock.as_streaming  # isort: skip\n"


def run_program(python: Path | str, program: Path, folder: Path) -> Any:
    """Run a program in a folder, and give what it prints."""
    done = subprocess.run([python, program, folder], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_prints_what_it_prints_there(program: Path, tmp_path: Path) -> None:
    assert program.read_text().count(OUR_LINE) == program.read_text().count("penstock") == 1
    assert run_program(sys.executable, program, tmp_path) == json.loads(RECORDED.read_text())[program.stem]
