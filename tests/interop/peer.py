"""The other library's side, run in its environment: writes every case, or reads every case, and reports digests.

python -m tests.interop.peer write|read DIRECTORY REPORT
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streaming
from streaming.base.util import merge_index
from tests.interop.cases import CASES, Case, write_case
from tests.interop.digest import digest_sample

if TYPE_CHECKING:
    from collections.abc import Callable

Digests = list[dict[str, Any]]


def stream(directory: Path, validate_hash: str | None) -> Digests:
    """Reads as a training job does: from a remote into an empty cache, checking hashes on the way."""
    with tempfile.TemporaryDirectory() as cache:
        dataset = streaming.StreamingDataset(
            remote=str(directory),
            local=cache,
            validate_hash=validate_hash,
            allow_unsafe_types=True,
            shuffle=False,
            batch_size=1,
        )
        return [digest_sample(dataset[number]) for number in range(len(dataset))]


def read_locally(directory: Path) -> Digests:
    dataset = streaming.LocalDataset(str(directory))
    return [digest_sample(dataset[number]) for number in range(len(dataset))]


def read(case: Case, directory: Path) -> dict[str, Digests]:
    """Every way in which the library can read this dataset, by name."""
    ways = {f"streaming, checking {name}": stream(directory, name) for name in case.hashes}
    if not case.hashes:
        ways["streaming"] = stream(directory, None)
    # Its local reader does not decompress.
    if not case.compressed:
        ways["local"] = read_locally(directory)
    return ways


def attempt(work: Callable[[], dict[str, Digests]]) -> dict[str, Any]:
    """One case that fails must not hide the others."""
    try:
        return {"ways": work()}
    except Exception:  # noqa: BLE001 - whatever it raises belongs in the report
        return {"error": traceback.format_exc()}


def write_and_read(case: Case, directory: Path) -> dict[str, Digests]:
    write_case(case, directory, streaming, merge_index)
    return read(case, directory)


def main() -> None:
    command, root, report = sys.argv[1:]
    work = {"write": write_and_read, "read": read}[command]
    cases = [case for case in CASES.values() if command == "read" or not case.ours_only]
    found = {case.name: attempt(partial(work, case, Path(root, case.name))) for case in cases}
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
