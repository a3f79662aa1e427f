"""Whole programs: what was recorded, printed by the real library, and frameworks that train on ours."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.as_streaming.test_programs import OUR_LINE, PROGRAMS, RECORDED, run_program
from tests.interop.conftest import release_folder

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
TRAINING = sorted((Path(__file__).parent / "programs").glob("*.py"))


def load_script(name: str) -> ModuleType:
    """Import one of the scripts, whose files have no ending."""
    from importlib.machinery import SourceFileLoader

    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_the_real_library_prints_what_was_recorded(program: Path, peer_python: Path, tmp_path: Path) -> None:
    copy = tmp_path / program.name
    copy.write_text(program.read_text().replace(OUR_LINE, ""))
    assert run_program(peer_python, copy, tmp_path) == json.loads(RECORDED.read_text())[program.stem]


def test_the_recorded_names_are_those_of_the_real_library(peer_python: Path) -> None:
    installed = next((peer_python.parents[1] / "lib").glob("python*/site-packages"))
    source = release_folder("0.5.0")
    names_of_release = load_script("record_mosaic_names").names_of_release
    found = {"0.5.0": names_of_release(source), "0.13.0": names_of_release(installed)}
    assert found == json.loads((ROOT / "tests/golden/mosaic_names.json").read_text())


@pytest.mark.parametrize("program", TRAINING, ids=lambda program: program.stem)
def test_a_framework_trains_on_ours_and_goes_on_where_it_stopped(program: Path, tmp_path: Path) -> None:
    python = Path(os.environ.get("PENSTOCK_PEER_COMPOSER", ROOT / ".peers/composer/bin/python"))
    if not python.exists():
        pytest.fail(f"Composer has no environment at {python}: run these tests by `make interop`")
    told = run_program(python, program, tmp_path)
    assert sorted(told["whole"][: told["epoch_size"]]) == list(range(told["epoch_size"]))
    assert told["rest"] == told["whole"][told["taken_before"] :]
