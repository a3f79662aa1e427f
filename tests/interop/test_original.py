"""The tests that releases of mosaicml-streaming carry, run on penstock: only what is listed beside this file may fail.

`listed/RELEASE.md` names each test that fails, with its kind and why it fails. The run compares both ways.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from tests.interop.conftest import release_folder

pytestmark = pytest.mark.interop

HELPERS = Path(__file__).parent / "original"  # what the source distributions lack
LISTED = Path(__file__).parent / "listed"
ROW = re.compile(r"^\| `(test_\w+\.py[^`]*)` \| (\w+) \| (.+) \|$", re.MULTILINE)
# Tests of these kinds say nothing about what code written for the original gets here.
BESIDE_THE_POINT = ("wording", "private")
KINDS = (*BESIDE_THE_POINT, "differs")
# pytest 9 refuses a mark on a fixture, which had no meaning before.
MARKED_FIXTURE = re.compile(r"@pytest\.mark\.usefixtures\([^)]*\)\n(?=@pytest\.fixture)")
# Release → how many tests it has at least.
RELEASES = {"0.5.0": 950, "0.13.0": 2000}


class Row(NamedTuple):
    """Tests that fail: their names with `*` for any text, or a whole file; the kind of test, and why they fail."""

    names: str
    kind: str
    why: str

    def matches(self, name: str) -> bool:
        pattern = ".*".join(map(re.escape, self.names.split("*")))
        return re.fullmatch(rf"{pattern}(::.*)?", name) is not None


def their_tests(release: str, folder: Path) -> None:
    """Make a folder with their tests and our helpers, to be run there."""
    source = release_folder(release)
    shutil.copytree(HELPERS, folder / "tests")
    (folder / "tests/__init__.py").touch()
    for file in (source / "tests").glob("test_*.py"):
        (folder / "tests" / file.name).write_text(MARKED_FIXTURE.sub("", file.read_text()))
    (folder / "pytest.ini").write_text("[pytest]\n")  # none of ours counts
    shutil.copytree(source / "libraries", folder / "libraries")


def run_tests(folder: Path, order: str | None) -> dict[str, str]:
    """Run the tests of a folder, and say of each, or of each file that cannot be imported, how it went."""
    runtime = folder / "r"
    runtime.mkdir(mode=0o700)
    settings = {
        "PENSTOCK_RUNTIME_DIR": str(runtime),
        "PENSTOCK_CACHE_DIR": str(folder / "c"),
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(folder / "libraries")]),
        **({} if order is None else {"PENSTOCK_ORDER": order}),
    }
    options = ["-q", "-n", "2", "-p", "penstock.as_streaming", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests"],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    report = folder / "report.xml"
    assert report.exists(), done.stdout + done.stderr
    return {name_of(case): outcome_of(case) for case in ET.parse(report).iter("testcase")}


def name_of(case: ET.Element) -> str:
    """Name a test as pytest does: `test_array.py::test_list_1d`, or a file that cannot be imported by itself."""
    module, name = case.get("classname", ""), case.get("name", "")
    if not module:
        return f"{name.removeprefix('tests.')}.py"
    _, file, *classes = module.split(".")
    return "::".join([f"{file}.py", *classes, name])


def outcome_of(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def rows_of(release: str) -> list[Row]:
    return [Row(*found) for found in ROW.findall((LISTED / f"{release}.md").read_text())]


def count_by_file(outcomes: dict[str, str], rows: list[Row]) -> dict[str, Counter[str]]:
    """Count the tests of each file: those that passed or were skipped, and those that failed by their kind."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, outcome in outcomes.items():
        kinds = [row.kind for row in rows if outcome == "failed" and row.matches(name)]
        counts[name.partition("::")[0]][kinds[0] if kinds else outcome] += 1
    return dict(sorted(counts.items()))


@pytest.mark.parametrize("release", RELEASES)
def test_only_what_is_listed_fails(release: str, tmp_path: Path) -> None:
    rows = rows_of(release)
    their_tests(release, tmp_path)
    outcomes = run_tests(tmp_path, order="mosaic" if release == "0.13.0" else None)
    counts = count_by_file(outcomes, rows)
    print(*(f"{file}: {dict(count)}" for file, count in counts.items()), sep="\n")

    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert len(outcomes) > RELEASES[release]
    unlisted = sorted(name for name in failed if not any(row.matches(name) for row in rows))
    assert unlisted == [], "these fail, and the list does not say why"
    surprising = sorted(name for name in outcomes.keys() - failed if any(row.matches(name) for row in rows))
    assert surprising == [], "the list says that these fail, and they do not"
    assert [row.names for row in rows if not any(map(row.matches, outcomes))] == [], "there are no such tests"
    for file, count in counts.items():
        to_the_point = count["passed"] + count["differs"]
        assert count["passed"] >= 0.9 * to_the_point, f"too much of {file} fails: {dict(count)}"


def test_what_was_asked_of_the_tests_of_the_latest_release() -> None:
    """Partition and spanner are functions of numbers alone: next to nothing of them may be listed."""
    rows = rows_of("0.13.0")
    assert not [row for row in rows if row.names.startswith(("test_spanner", "test_sampling", "test_shuffle"))]
    assert {row.kind for row in rows if row.names.startswith("test_partition")} == {"wording"}
