"""A web server that answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class ScriptedServer:
    url: str
    requests: list[Request] = field(default_factory=list)


def whole(body: bytes) -> Answer:
    """Answer a request for the first bytes of an object that has no more than these."""
    headers = {
        "Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}",
        "ETag": '"tag"',
        "Last-Modified": "Mon, 16 Nov 2026 00:00:00 GMT",
    }
    return Answer(206, body, headers)


@contextmanager
def run_script(answer: Callable[[Request], Answer]) -> Iterator[ScriptedServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            script.requests.append(request)
            given = answer(request)
            self.send_response(given.status)
            for name, value in {"Content-Length": str(len(given.body)), **given.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = respond

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script = ScriptedServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
