"""The tests that mosaicml-streaming 0.5.0 carries, run on penstock: only what docs/migrating.md lists may fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
HELPERS = Path(__file__).parent / "original"  # what the source distribution lacks
LISTED = re.compile(r"^\| `(test_\w+\.py[^`]*)` \|", re.MULTILINE)
# pytest 9 refuses a mark on a fixture, which had no meaning before.
MARKED_FIXTURE = re.compile(r"@pytest\.mark\.usefixtures\([^)]*\)\n(?=@pytest\.fixture)")


@pytest.fixture
def their_tests(tmp_path: Path) -> Path:
    """A folder with their tests and our helpers, to be run there."""
    release = Path(os.environ.get("PENSTOCK_PEER_MOSAIC_TESTS", ROOT / ".peers/mosaic-0.5.0"))
    if not (release / "tests").is_dir():
        pytest.fail(f"there is no source distribution at {release}: run these tests by `make interop`")
    folder = tmp_path / "tests"
    shutil.copytree(HELPERS, folder)
    (folder / "__init__.py").touch()
    for file in (release / "tests").glob("test_*.py"):
        (folder / file.name).write_text(MARKED_FIXTURE.sub("", file.read_text()))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # none of ours counts
    return tmp_path


def run_tests(folder: Path) -> dict[str, bool]:
    """Run the tests of a folder, and say of each, or of each file that cannot be imported, whether it passed."""
    runtime = folder / "r"
    runtime.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--junitxml=report.xml", "tests"],
        cwd=folder,
        env={**os.environ, "PENSTOCK_RUNTIME_DIR": str(runtime), "PENSTOCK_CACHE_DIR": str(folder / "c")},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    report = folder / "report.xml"
    assert report.exists(), done.stdout + done.stderr
    cases = ET.parse(report).iter("testcase")
    return {name_of(case): case.find("failure") is None and case.find("error") is None for case in cases}


def name_of(case: ET.Element) -> str:
    """Name a test as pytest does: `test_array.py::test_list_1d`, or a file that cannot be imported by itself."""
    module, name = case.get("classname", ""), case.get("name", "")
    if not module:
        return f"{name.removeprefix('tests.')}.py"
    _, file, *classes = module.split(".")
    return "::".join([f"{file}.py", *classes, name])


def test_only_what_the_docs_list_fails(their_tests: Path) -> None:
    listed = set(LISTED.findall((ROOT / "docs/migrating.md").read_text()))
    outcomes = run_tests(their_tests)
    failed = {name for name, is_passed in outcomes.items() if not is_passed}
    assert len(outcomes) > 800
    assert sorted(failed - listed) == [], "these fail, and docs/migrating.md does not say why"
    assert sorted(listed - failed) == [], "docs/migrating.md says that these fail, and they do not"
