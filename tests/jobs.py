"""Training jobs as processes of their own: started, watched, killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cache.kit import fetcher_pids, heed_interrupts, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_S = 120.0


@dataclass
class Job:
    """One job, which may be started any number of times, each time going on from where it was."""

    out: Path
    dataset: dict[str, Any]
    batch_size: int = 6
    workers: int = 2
    epochs: int = 2
    step_s: float = 0.0
    kind: str | None = None  # of files that are read in place, instead of shards of our own
    process: subprocess.Popen[str] | None = field(default=None, init=False)

    def start(self, *, stop_at: int | None = None) -> subprocess.Popen[str]:
        """Start it in a process group of its own; after so many batches in all it stops to wait for what comes."""
        self.close()
        self.out.mkdir(exist_ok=True)
        settings = {
            "out": str(self.out),
            "dataset": self.dataset,
            "batch_size": self.batch_size,
            "workers": self.workers,
            "epochs": self.epochs,
            "step_s": self.step_s,
            "kind": self.kind,
            "stop_at": stop_at,
        }
        with (self.out / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.training_job", json.dumps(settings)],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )
        return self.process

    def run(self) -> list[list[int]]:
        """Run it to its end, and give all batches since its first start."""
        self.start()
        assert self.wait() == 0, self.errors
        return self.batches

    def wait_for(self, words: str) -> None:
        """Wait until the job says these words."""
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == words:
                return
        raise AssertionError(f"the job ended before {words!r}: {self.errors}")

    def go_on(self) -> None:
        """Let a job go on that stopped."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def wait(self) -> int:
        """Wait for its end, which must come, and give its exit code."""
        assert self.process is not None
        try:
            self.process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"the job hangs: {self.errors}") from None
        return self.process.returncode

    def kill_all(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the job and all its workers at once."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End it if it runs, and close the lines to it."""
        if self.process is not None:
            if self.pids:
                self.kill_all()
            self.process.communicate()

    @property
    def pids(self) -> list[int]:
        """The job and its workers, as far as they live."""
        assert self.process is not None
        return [pid for pid, group in live_processes() if group == self.process.pid]

    @property
    def worker_pids(self) -> list[int]:
        """The workers of its loader, in the order that they were started."""
        assert self.process is not None
        return sorted(set(self.pids) - {self.process.pid})

    def wait_until_all_are_gone(self) -> None:
        """No process may survive for long."""
        wait_until(lambda: not self.pids, _PATIENCE_S)

    @property
    def batches(self) -> list[list[int]]:
        """All batches that the job was given up to where it would go on."""
        saved: list[list[int]] = json.loads((self.out / "saved.json").read_text())["batches"]
        return saved

    @property
    def errors(self) -> str:
        """What it said to complain."""
        return (self.out / "errors").read_text()[-6000:]


def run_through_kills(job: Job, stops: Sequence[int], runtime: Path) -> list[list[int]]:
    """Kill all of a job, and the fetcher, at some batches; then let it come to its end, and give its batches."""
    try:
        for stop_at in stops:
            job.start(stop_at=stop_at)
            job.wait_for(f"batch {stop_at}")
            for pid in fetcher_pids(runtime):
                os.kill(pid, signal.SIGKILL)
            job.kill_all()
        return job.run()
    finally:
        job.close()


def run_side_by_side(jobs: Sequence[Job]) -> list[list[list[int]]]:
    """Run jobs at the same time, and give the batches of each."""
    try:
        for job in jobs:
            job.start()
        for job in jobs:
            assert job.wait() == 0, job.errors
        return [job.batches for job in jobs]
    finally:
        for job in jobs:
            job.close()


def live_processes() -> list[tuple[int, int]]:
    """Return the number and the group of each process that has not ended."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # it ended meanwhile
            if state not in "ZX":
                found.append((int(process.name), int(group)))
    return found
