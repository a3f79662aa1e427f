"""penstock's side: writes every case and reads any, giving digests."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from tests.interop.cases import CASES, write_case
from tests.interop.digest import digest_sample

import penstock
from penstock.formats.base import ReadOptions
from penstock.formats.parts import open_shard

if TYPE_CHECKING:
    from pathlib import Path


def write_all(directory: Path) -> dict[str, str]:
    """Writes every case into a folder of its name; returns the errors of those that failed."""
    failures = {}
    for case in CASES.values():
        try:
            write_case(case, directory / case.name, penstock, penstock.merge_index)
        except Exception:  # noqa: BLE001 - the test of that case will show it
            failures[case.name] = traceback.format_exc()
    return failures


def read_one_by_one(directory: Path) -> list[dict[str, Any]]:
    dataset = penstock.LocalDataset(directory, allow_unsafe_types=True)
    return [digest_sample(dataset[number]) for number in range(len(dataset))]


def read_at_once(directory: Path) -> list[dict[str, Any]]:
    dataset = penstock.LocalDataset(directory, allow_unsafe_types=True)
    return [digest_sample(sample) for sample in dataset[:]]


def read_shards_checking(directory: Path, algorithm: str) -> list[dict[str, Any]]:
    """Shard by shard, with the digest of each stored file checked first."""
    samples = []
    for shard in penstock.LocalDataset(directory, allow_unsafe_types=True).index.shards:
        reader = open_shard(directory, shard, ReadOptions(allow_unsafe_types=True), validate_hash=algorithm)
        samples += [digest_sample(sample) for sample in reader.read(range(len(reader)))]
        reader.close()
    return samples
