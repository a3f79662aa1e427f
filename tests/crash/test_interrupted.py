"""Ctrl-C while a store does not answer: everybody ends at once, and says in one line what was being waited for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cache.kit import fetcher_pids, heed_interrupts, left_over, wait_until
from tests.jobs import live_processes
from tests.servers.faults import FaultProxy, Faults
from tests.streaming import private_places, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.nginx import WebServer
    from tests.servers.s3 import S3Server

TRAIN = """
import sys
from penstock import StreamingDataLoader, StreamingDataset

def main():
    url, how, num_workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    dataset = StreamingDataset(remote=url, batch_size=10, predownload=10, download_timeout=600)
    if how == "by number":
        wait_for_the_test()
        dataset[333]
    batches = dataset
    if how != "dataset":
        batches = StreamingDataLoader(dataset, num_workers=num_workers, columnar=how == "columnar")
    for number, batch in enumerate(batches):
        if number == 0:
            wait_for_the_test()

def wait_for_the_test():
    print("begun", flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


@pytest.fixture(scope="module")
def data(nginx: WebServer) -> str:
    write_samples(nginx.files / "interrupted", 400)
    return f"{nginx.url}/interrupted"


def start(*command: object, **variables: str) -> subprocess.Popen[str]:
    """Start a program as a terminal does: in a process group of its own, which hears of Ctrl-C as a whole."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )


def interrupt(process: subprocess.Popen[str], places: Path, *, whom: str = "all") -> list[str]:
    """Interrupt a program or all of its group, and return what it complained of; no process may stay behind."""
    if whom == "all":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    try:
        errors = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"it hangs: {process.communicate()}") from None
    wait_until(lambda: not [pid for pid, group in live_processes() if group == process.pid])
    assert not left_over(places / "run")
    return errors.splitlines()


def check_short(lines: list[str], words: str | tuple[str, ...]) -> None:
    """The traceback shows the user's program, where it called ours, and why."""
    beginning = "KeyboardInterrupt: while waiting for "
    assert lines[-1].startswith(beginning), lines
    assert lines[-1].removeprefix(beginning).startswith(words), lines
    assert lines.count("Traceback (most recent call last):") == 1
    frames = [line for line in lines if line.startswith("  File ")]
    assert sum("train.py" not in line for line in frames) <= 3, lines


def processor_time(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]


def is_at_rest(pid: int) -> bool:
    before = processor_time(pid)
    time.sleep(0.5)
    return processor_time(pid) == before


@pytest.mark.parametrize(
    ("how", "num_workers", "whom", "words"),
    [
        ("dataset", 0, "all", "shard "),
        ("loader", 0, "all", "shard "),
        ("loader", 2, "all", "the next batch"),
        ("loader", 2, "main process", "the next batch"),
        ("columnar", 0, "all", "shard "),
        ("columnar", 2, "all", ("the next batch", "shard ")),  # whether a thread reads ahead or the loop itself
        ("by number", 0, "all", "parts of part."),
    ],
)
def test_a_training_loop(
    data: str, places: Path, tmp_path: Path, how: str, num_workers: int, whom: str, words: str | tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    with FaultProxy(data) as proxy:
        process = start(tmp_path / "train.py", proxy.url, how, num_workers)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        proxy.faults = Faults(rate=1.0, kinds=("stall",))
        process.stdin.write("go on\n")
        process.stdin.flush()
        wait_until(lambda: proxy.counts["stall"] and is_at_rest(process.pid))
        check_short(interrupt(process, places, whom=whom), words)


WRITE = """
import sys
from penstock import MDSWriter

with MDSWriter(out="s3://interrupted/data", columns={"x": "bytes"}, size_limit=20_000) as writer:
    for number in range(int(sys.argv[1])):
        writer.write({"x": bytes(1000)})
        if number == 0:
            print("begun", flush=True)
            sys.stdin.readline()
"""


@pytest.mark.parametrize("num_samples", [30, 1000])
def test_a_writer(moto: S3Server, places: Path, tmp_path: Path, num_samples: int) -> None:
    """While it waits for its last shards, or for room for the next one."""
    moto.make_bucket("interrupted")
    (tmp_path / "train.py").write_text(WRITE)
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with FaultProxy(moto.endpoint) as proxy:
        process = start(tmp_path / "train.py", num_samples, S3_ENDPOINT_URL=proxy.url, **keys)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        proxy.faults = Faults(rate=1.0, kinds=("stall",))
        process.stdin.write("go on\n")
        process.stdin.flush()
        wait_until(lambda: proxy.counts["stall"] and is_at_rest(process.pid))
        lines = interrupt(process, places)
    orphans = "s3://interrupted/data: no index was published; no shards were written"
    check_short([line for line in lines if line != orphans], "shards to be uploaded to s3://interrupted/data")


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes requests and never answers one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def wait_for_request(silent: socket.socket) -> socket.socket:
    silent.settimeout(30)
    connection, _ = silent.accept()
    connection.settimeout(30)
    assert connection.recv(1)
    return connection


def test_a_dataset_that_is_being_opened(silent: socket.socket, places: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    url = f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}/data"
    process = start(tmp_path / "train.py", url, "dataset", 0)
    with wait_for_request(silent):
        lines = interrupt(process, places)
    check_short(lines, f"index.json from {url.replace('user:secret@', '')}")


def test_the_command(silent: socket.socket, places: Path) -> None:
    settings = {
        "S3_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    process = start("-m", "penstock", "merge", "s3://bucket/data", **settings)
    with wait_for_request(silent):
        assert fetcher_pids(places / "run")
        lines = interrupt(process, places)
    assert process.returncode == 128 + signal.SIGINT
    assert len(lines) == 1
    assert lines[0].startswith("penstock: interrupted while waiting for s3://bucket/data/")
