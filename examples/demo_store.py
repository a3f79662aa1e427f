"""A store in a few lines: serves the files of a folder over HTTP, whole or by ranges, and counts what it sends."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: DemoStore

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *args: object) -> None:
        """Keep the terminal for the demo."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.folder / Path(self.path.lstrip("/")).name
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        size, begin, end = len(data), 0, len(data)
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes="):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or size - 1) + 1, size)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if with_body:
            self.wfile.write(data[begin:end])
            self.server.num_bytes_sent += end - begin


class DemoStore(ThreadingHTTPServer):
    """Serves from a thread of its own, on a free port of this machine, until it is closed."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.num_bytes_sent = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
