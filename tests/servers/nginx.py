"""nginx: a folder over HTTP with ranges, and a door that lets clients of Google Cloud Storage in to an S3 emulator."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.servers.process import find_program, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIG = """
daemon off;
{user}
worker_processes 1;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_max_body_size 0;
  {temporary}
  server {{
    listen 127.0.0.1:{port};
    {server}
  }}
}}
"""
# As root it would read as a user who may not look into the folders of the tests.
_USER = "user root root;" if os.geteuid() == 0 else ""
_TEMPORARY = "\n  ".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
_FILES = """
    root files;
    location /private/ { return 403; }
    location /unranged/ { max_ranges 0; }
"""
_DOOR = """
    location / {{
      proxy_set_header Authorization "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, Signature=0";
      proxy_pass {behind}/;
    }}
"""


@dataclass(frozen=True)
class WebServer:
    url: str
    files: Path  # what lies here is served


@contextmanager
def run_nginx(folder: Path) -> Iterator[WebServer]:
    (folder / "files").mkdir()
    with _run(folder, _FILES) as url:
        yield WebServer(url, folder / "files")


@contextmanager
def run_gcs_door(folder: Path, behind: str) -> Iterator[str]:
    with _run(folder, _DOOR.format(behind=behind)) as url:
        yield url


@contextmanager
def _run(folder: Path, server: str) -> Iterator[str]:
    folder.chmod(0o755)
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(user=_USER, temporary=_TEMPORARY, port=port, server=server))
    with running([find_program("nginx"), "-p", f"{folder}/", "-c", str(config)], port, folder):
        yield f"http://127.0.0.1:{port}"
