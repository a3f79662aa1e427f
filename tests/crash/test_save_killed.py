"""A save that replaces a dataset, killed at each step: one of the two can be read, and the next save leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock import MemoryShardedSource, ParquetShardedSource, save_dataset
from penstock.failpoints import TARGET_POINTS, VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

REPLACE = """
import sys
from penstock import MemoryShardedSource, save_dataset
from penstock.publish import target
if sys.argv[2] == "renames":  # as on disks that cannot swap two folders
    target.exchange = lambda first, second: False
save_dataset(MemoryShardedSource([{"new": n} for n in range(50)]), sys.argv[1], overwrite=True)
"""


def read(folder: Path) -> list[dict[str, int]]:
    return list(ParquetShardedSource(str(folder)))


OLD = [{"old": n} for n in range(20)]
NEW = [{"new": n} for n in range(50)]


@pytest.mark.parametrize("how", ["swap", "renames"])
@pytest.mark.parametrize("point", TARGET_POINTS[1:])
def test_killed_while_it_replaces(tmp_path: Path, point: str, how: str) -> None:
    if (point, how) == ("target.between", "swap"):
        return  # a swap has no moment in between
    out = tmp_path / "out"
    save_dataset(MemoryShardedSource(OLD), out)
    command = [sys.executable, "-c", REPLACE, str(out), how]
    killed = subprocess.run(command, env={**os.environ, VARIABLE: point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    if point == "target.between":
        assert not out.exists()  # its name comes back with the next save
    else:
        assert read(out) == (NEW if point == "target.published" else OLD)
    # Going on finishes what was begun, or finds it finished; either way nothing hidden stays.
    source = MemoryShardedSource(NEW)
    if point == "target.published":
        assert save_dataset(source, out, resume=True).num_examples == 50
    else:
        with pytest.raises(FileExistsError, match="was not finished"):
            save_dataset(source, out)
        assert read(out) == OLD
        save_dataset(source, out, overwrite=True)
    assert read(out) == NEW
    assert list(tmp_path.iterdir()) == [out]
    assert sorted(path.name for path in out.iterdir()) == ["_manifest.json", "shard-00000.parquet"]
