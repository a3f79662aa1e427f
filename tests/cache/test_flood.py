"""A server that sends far more than it was asked for fills no memory."""

from __future__ import annotations

import json
import re
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import MDSWriter
from tests.cache.kit import fetcher_pids, finish, start_client

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT = """
import json, sys
from penstock import StreamingDataset
from penstock.errors import PenstockError
remote, local, options = sys.argv[1:]
dataset = StreamingDataset(
    remote=remote, local=local, shuffle=True, batch_size=64, storage_options=json.loads(options), download_retry=0
)
print(len(dataset), flush=True)
sys.stdin.readline()
try:
    print(sum(1 for _ in zip(range(64), dataset)), flush=True)
except PenstockError as error:
    print(error, flush=True)
sys.stdin.readline()
dataset.close()
"""
NUM_SAMPLES, MEGABYTE = 4000, 1 << 20
FLOOD_BYTES, MOST_MORE = 200 * MEGABYTE, 24 * MEGABYTE
SMALL_BYTES = 100_000


class Flood:
    """A folder as a web server or a bucket; once `is_on`, each small range of a shard comes with 200 MB behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_on = False
        self.num_floods = 0

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = self.folder / handler.path.removeprefix("/bucket/")
        data, found = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range") or "")
        begin, end = (int(found[1]), min(len(data), int(found[2]) + 1)) if found else (0, len(data))
        floods = self.is_on and path.suffix == ".mds" and end - begin < SMALL_BYTES
        handler.send_response(206 if found else 200)
        if found:
            handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        handler.send_header("Content-Length", str(end - begin + FLOOD_BYTES * floods))
        handler.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        handler.send_header("ETag", '"1"')
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data[begin:end])
            self.num_floods += floods
            for _ in range(FLOOD_BYTES // MEGABYTE * floods):
                handler.wfile.write(bytes(MEGABYTE))


@pytest.fixture
def flood(tmp_path: Path) -> Iterator[tuple[Flood, str]]:
    flood = Flood(tmp_path / "remote")
    with MDSWriter(out=flood.folder, columns={"tokens": "ndarray:int32:1000"}, size_limit=4 << 20) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"tokens": np.full(1000, number, np.int32)})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                flood.answer(self)
            except OSError:  # the client hangs up, as it should
                self.close_connection = True

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield flood, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def most_bytes(pid: int) -> int:
    """The most memory that a process has had so far."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ADDRESS/bucket", {}),
        ("ADDRESS/bucket", {"headers": {"X-Api-Key": "k"}}),
        ("s3://bucket", {"anon": True, "endpoint_url": "ADDRESS", "region": "us-east-1"}),
    ],
    ids=["web server", "web server with headers", "bucket at a strange address"],
)
def test_what_was_not_asked_for_is_not_kept(
    flood: tuple[Flood, str], tmp_path: Path, runtime: Path, url: str, options: dict[str, Any]
) -> None:
    server, address = flood
    arguments = (url, tmp_path / "local", json.dumps(options))
    client = start_client(CLIENT, *(str(each).replace("ADDRESS", address) for each in arguments))
    assert client.stdout is not None
    assert client.stdin is not None
    assert client.stdout.readline() == f"{NUM_SAMPLES}\n"
    (pid,) = fetcher_pids(runtime)
    before = most_bytes(pid)
    server.is_on = True
    client.stdin.write("go\n")
    client.stdin.flush()
    outcome = client.stdout.readline()
    assert "more bytes than were requested" in outcome or outcome == "64\n"
    more = most_bytes(pid) - before
    client.stdin.write("go\n")
    finish(client)
    assert server.num_floods > 0
    assert more < MOST_MORE
