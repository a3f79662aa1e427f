"""Runs the other library in its own environment, once to write every case and once to read ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The other environment imports the cases as `tests.interop`, and so must this one, however pytest was started.
sys.path.insert(0, str(ROOT))

collect_ignore = ["original"]  # is copied beside the tests of the original, and changes how modules are found

Report = dict[str, dict[str, Any]]


def release_folder(release: str) -> Path:
    """The source distribution of a release of mosaicml-streaming, with its tests."""
    folder = Path(os.environ.get("PENSTOCK_PEER_MOSAIC_TESTS", ROOT / ".peers")) / f"mosaic-{release}"
    if not (folder / "tests").is_dir():
        pytest.fail(f"there is no source distribution at {folder}: run these tests by `make interop`")
    return folder


@pytest.fixture(scope="session")
def peer_python() -> Path:
    """The interpreter of the environment that holds mosaicml-streaming."""
    python = Path(os.environ.get("PENSTOCK_PEER_MOSAIC", ROOT / ".peers/mosaic/bin/python"))
    if not python.exists():
        pytest.fail(f"mosaicml-streaming has no environment at {python}: run these tests by `make interop`")
    return python


def run_peer(python: Path, command: str, directory: Path, scratch: Path) -> Report:
    report = scratch / "report.json"
    done = subprocess.run(
        [python, "-m", "tests.interop.peer", command, directory, report],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Report = json.loads(report.read_text())
    return found


@pytest.fixture(scope="session")
def theirs(peer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """Every case written by the other library, and what it reads there itself."""
    directory = tmp_path_factory.mktemp("theirs")
    return directory, run_peer(peer_python, "write", directory, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="session")
def ours(peer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """Every case written by penstock, and what the other library reads there.

    A case that cannot be written is left out here; its own test shows the error.
    """
    from tests.interop.ours import write_all

    directory = tmp_path_factory.mktemp("ours")
    failures = write_all(directory)
    report = run_peer(peer_python, "read", directory, tmp_path_factory.mktemp("scratch"))
    return directory, {**report, **{name: {"error": error} for name, error in failures.items()}}
