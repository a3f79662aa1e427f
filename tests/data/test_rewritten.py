"""Data that was written again is read anew: in every setting, in the same folder, by the next process."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MDSWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.nginx import WebServer

NUM_SAMPLES = 60
COLUMNS = {"id": "int", "x": "ndarray:float32:8"}


def write(out: Path, value: int, **options: Any) -> None:
    """Write a dataset whose samples all say the same value; its shape never changes."""
    with MDSWriter(out=out, columns=COLUMNS, size_limit=600, exist_ok=True, **options) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"id": number, "x": np.full(8, value, np.float32)})


_READ = """
import json, sys
sys.modules["torch"] = None  # it is not needed, and takes longer than all else
from penstock import StreamingDataset
arguments = json.loads(sys.argv[1])
with StreamingDataset(**arguments) as dataset:
    print(json.dumps([[sample["id"], float(sample["x"][3])] for sample in dataset]))
"""


def read_elsewhere(**arguments: Any) -> list[list[float]]:
    """Stream in a process of its own, as the next job would."""
    done = subprocess.run(
        [sys.executable, "-c", _READ, json.dumps(arguments, default=str)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def all_are(samples: list[list[float]], value: int) -> bool:
    return samples == [[number, value] for number in range(NUM_SAMPLES)]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder over HTTP, by a server that gives no tags and tells times in whole seconds."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


SETTINGS = [
    *itertools.product(("folder", "http"), (None, "zstd"), (None, "sha1"), (False, True)),
    ("validated", None, "sha1", True),
    ("validated", "zstd", "sha1", False),
    ("local alone", None, None, True),
    ("local alone", "zstd", None, True),
]


@pytest.mark.parametrize(("remote", "compression", "hashes", "has_local"), SETTINGS)
def test_the_next_job_reads_what_was_written_again(
    tmp_path: Path, remote: str, compression: str | None, hashes: str | None, has_local: bool
) -> None:
    out = tmp_path / "data"
    arguments: dict[str, Any] = {}
    if remote == "validated":
        arguments["validate_hash"] = hashes
    if remote == "local alone":
        arguments["local"] = out
    elif has_local:
        arguments["local"] = tmp_path / "cache"
    with served(tmp_path) as url:
        if remote != "local alone":
            arguments["remote"] = f"{url}/data" if remote == "http" else out
        for value in (1, 2):
            write(out, value, compression=compression, hashes=hashes)
            assert all_are(read_elsewhere(**arguments), value)


@pytest.mark.parametrize("has_local", [False, True])
def test_of_a_web_server_that_makes_tags_of_time_and_size(tmp_path: Path, nginx: WebServer, has_local: bool) -> None:
    out = nginx.files / tmp_path.name
    arguments = {"remote": f"{nginx.url}/{tmp_path.name}"} | ({"local": tmp_path / "cache"} if has_local else {})
    for value in (1, 2):
        write(out, value)
        assert all_are(read_elsewhere(**arguments), value)
