"""The servers of remote.py on this machine: nginx, which answers signed S3 reads from files, and moto for uploads."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "bench"
START_S = 60.0

CONFIG = """
{user}
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 512; }}
http {{
  access_log off;
  sendfile on;
  tcp_nodelay on;
  keepalive_requests 1000000;
  {temporary}
  server {{
    listen 127.0.0.1:{port};
    location /{bucket}/ {{ alias {files}/; }}
    location = /{bucket} {{
      default_type application/xml;
      if ($args ~ start-after) {{ return 200 '{no_more}'; }}
      alias {listing};
    }}
  }}
}}
"""
TEMPORARY = "\n  ".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))


@contextmanager
def file_server(files: Path, folder: Path, listed: str = "") -> Iterator[int]:
    """The files below a folder as objects of the bucket; those of one folder in it can be listed, if one is named."""
    port = free_port()
    listing = folder / "listing.xml"
    listing.write_text(bucket_listing(files, listed))
    user = "user root;" if os.getuid() == 0 else ""
    config = CONFIG.format(
        user=user,
        temporary=TEMPORARY,
        port=port,
        bucket=BUCKET,
        files=files,
        listing=listing,
        no_more=bucket_listing(files, ""),
    )
    (folder / "nginx.conf").write_text(config)
    with running([find_program("nginx"), "-p", f"{folder}/", "-c", str(folder / "nginx.conf")], port, folder):
        yield port


def bucket_listing(files: Path, listed: str) -> str:
    """What S3 answers when asked for the names below a folder of at most 1000 files, tagged as nginx tags them."""
    entries = []
    for path in sorted((files / listed).iterdir()) if listed else []:
        found = path.stat()
        when = datetime.fromtimestamp(int(found.st_mtime), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        tag = f"&quot;{int(found.st_mtime):x}-{found.st_size:x}&quot;"
        entries.append(
            f"<Contents><Key>{listed}/{path.name}</Key><LastModified>{when}</LastModified><ETag>{tag}</ETag>"
            f"<Size>{found.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    head = f"<Name>{BUCKET}</Name><KeyCount>{len(entries)}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false"
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{head}</IsTruncated>{''.join(entries)}</ListBucketResult>"
    )


@contextmanager
def s3_emulator(folder: Path) -> Iterator[int]:
    port = free_port()
    with running([find_program("moto_server"), "-H", "127.0.0.1", "-p", str(port)], port, folder):
        yield port


def find_program(name: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise BenchmarkError(f"this needs {name}: run scripts/setup_servers, or make bench, which does")
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=folder)
        try:
            deadline = time.monotonic() + START_S
            while not listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BenchmarkError(f"{command[0]} does not start:\n{log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
