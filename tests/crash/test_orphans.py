"""Workers whose parent is killed while their batches are too large for the pipe that is no longer read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cache.kit import wait_until
from tests.streaming import private_places

from penstock import MDSWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = """
import sys
from torch.utils.data import DataLoader
from penstock import StreamingDataset

if __name__ == "__main__":
    dataset = StreamingDataset(local=sys.argv[1], batch_size=64)
    batches = iter(DataLoader(dataset, batch_size=64, num_workers=2, multiprocessing_context=sys.argv[2]))
    next(batches)
    print(*[worker.pid for worker in batches._workers], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or since
        return False


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_they_end(tmp_path: Path, start_method: str) -> None:
    with MDSWriter(out=str(tmp_path / "data"), columns={"text": "str"}) as writer:
        for number in range(1024):
            writer.write({"text": f"{number} " * 500})
    (tmp_path / "job.py").write_text(JOB)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "data"), start_method],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # a killed process cannot remove its temporary files
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(is_running, workers))
        process.kill()
        process.wait()
        try:
            wait_until(lambda: not any(map(is_running, workers)))
        finally:
            for pid in filter(is_running, workers):
                os.kill(pid, signal.SIGKILL)
