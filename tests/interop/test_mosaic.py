"""What penstock writes mosaicml-streaming reads, and the other way round: every value and, if possible, every byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.cases import CASES, Case
from tests.interop.digest import digest_sample, sha1
from tests.interop.ours import read_at_once, read_one_by_one, read_shards_checking

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.conftest import Report

pytestmark = pytest.mark.interop


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def ways_of(report: Report, case: Case) -> dict[str, list[dict[str, Any]]]:
    """What the other library read, by the way it read it."""
    entry = report[case.name]
    assert "error" not in entry, entry["error"]
    ways: dict[str, list[dict[str, Any]]] = entry["ways"]
    assert ways
    return ways


def expected(case: Case) -> list[dict[str, Any]]:
    return [digest_sample(sample) for sample in case.expected()]


def without_lossy(samples: list[dict[str, Any]], case: Case) -> list[dict[str, Any]]:
    return [{name: value for name, value in sample.items() if name not in case.lossy} for sample in samples]


def digests_of_files(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): sha1(path.read_bytes()) for path in files}


@each(list(CASES.values()))
def test_they_read_what_we_wrote(case: Case, ours: tuple[Path, Report]) -> None:
    directory, report = ours
    read_by_us = read_one_by_one(directory / case.name)
    for way, samples in ways_of(report, case).items():
        assert without_lossy(samples, case) == expected(case), way
        assert samples == read_by_us, way


@each([case for case in CASES.values() if not case.ours_only])
def test_we_read_what_they_wrote(case: Case, theirs: tuple[Path, Report]) -> None:
    directory, report = theirs
    for way, samples in ways_of(report, case).items():
        assert read_one_by_one(directory / case.name) == samples, way
        assert read_at_once(directory / case.name) == samples, way
        assert without_lossy(samples, case) == expected(case), way


@each([case for case in CASES.values() if case.hashes and not case.ours_only])
def test_their_digests_are_what_we_compute(case: Case, theirs: tuple[Path, Report]) -> None:
    directory, _ = theirs
    for algorithm in case.hashes:
        assert read_shards_checking(directory / case.name, algorithm) == expected(case), algorithm


@each([case for case in CASES.values() if case.same_bytes and not case.ours_only])
def test_our_files_are_theirs_byte_for_byte(case: Case, ours: tuple[Path, Report], theirs: tuple[Path, Report]) -> None:
    assert digests_of_files(ours[0] / case.name) == digests_of_files(theirs[0] / case.name)
