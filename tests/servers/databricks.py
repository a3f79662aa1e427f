"""As much of the REST API of a Databricks workspace as its SDK needs to move files, in this process."""

from __future__ import annotations

import base64
import json
import posixpath
import re
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "dapi_secret_of_the_tests"
PAGE = 2
Reply = tuple[int, Any, dict[str, str]]


class Workspace:
    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}  # by path, with the second of the change
        self.folders: set[str] = set()
        self.handles: dict[int, str] = {}
        self.clock = int(time.time())  # goes on by one with each change
        self.lock = threading.Lock()
        self.refusals: list[int] = []  # answers to the next requests for bytes
        self.cuts: list[int] = []  # bytes after which the next bodies end
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.workspace = self
        self.host = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def write(self, path: str, data: bytes) -> None:
        self.clock += 1
        self.files[path] = (data, self.clock)
        self.make_folder(posixpath.dirname(path))

    def make_folder(self, path: str) -> None:
        while path != "/":
            self.folders.add(path)
            path = posixpath.dirname(path)

    def below(self, folder: str) -> list[tuple[str, bool]]:
        paths = [(path, False) for path in self.files] + [(path, True) for path in self.folders]
        return sorted((path, is_folder) for path, is_folder in paths if posixpath.dirname(path) == folder)


@contextmanager
def running_workspace() -> Iterator[Workspace]:
    workspace = Workspace()
    try:
        yield workspace
    finally:
        workspace.close()


class _Server(ThreadingHTTPServer):
    workspace: Workspace
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies go out apart: each answer would wait 40 ms
    server: _Server

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.there = self.server.workspace
        with self.there.lock:
            status, value, headers = self.answer(unquote(parts.path))
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if status == 206 and self.there.cuts:
            data = data[: self.there.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(data)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, path: str) -> Reply:
        if path.startswith("/.well-known"):
            return 404, b"", {}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.fail(403, "PERMISSION_DENIED", "Invalid access token.")
        if path.startswith("/api/2.0/fs/files/"):
            return self.file(path.removeprefix("/api/2.0/fs/files"))
        if path.startswith("/api/2.0/fs/directories/"):
            return self.folder(path.removeprefix("/api/2.0/fs/directories"))
        name = path.removeprefix("/api/2.0/dbfs/").replace("-", "_")
        asked = self.query if self.command == "GET" else json.loads(self.body)
        reply: Reply = getattr(self, f"dbfs_{name}")(**asked)
        return reply

    def fail(self, status: int, code: str, message: str) -> Reply:
        return status, {"error_code": code, "message": message}, {}

    def missing(self, path: str) -> Reply:
        return self.fail(404, "NOT_FOUND", f"{path} is not there")

    def file(self, path: str) -> Reply:
        if self.command == "PUT":
            if posixpath.dirname(path) not in self.there.folders:
                return self.missing(posixpath.dirname(path))
            self.there.write(path, self.body)
            return 204, b"", {}
        if self.command == "GET" and self.there.refusals:
            return self.fail(self.there.refusals.pop(0), "TEMPORARILY_UNAVAILABLE", "come back later")
        if path not in self.there.files:
            return self.missing(path)
        if self.command == "DELETE":
            del self.there.files[path]
            return 204, b"", {}
        data, second = self.there.files[path]
        headers = {"Last-Modified": formatdate(second, usegmt=True), "Content-Type": "application/octet-stream"}
        if self.command == "HEAD":
            return 200, b"", {**headers, "Content-Length": str(len(data))}
        return self.ranged(data, headers)

    def ranged(self, data: bytes, headers: dict[str, str]) -> Reply:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None:
            return 200, data, headers
        begin, end = int(match.group(1)), min(int(match.group(2)) + 1, len(data))
        if begin >= len(data):
            return self.fail(416, "INVALID_RANGE", "the file is shorter")
        return 206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}

    def folder(self, path: str) -> Reply:
        if self.command == "PUT":
            self.there.make_folder(path)
            return 204, b"", {}
        if path not in self.there.folders:
            return self.missing(path)
        entries: list[dict[str, Any]] = []
        for child, is_folder in self.there.below(path):
            entry: dict[str, Any] = {"path": child, "name": posixpath.basename(child), "is_directory": is_folder}
            if not is_folder:
                data, second = self.there.files[child]
                entry |= {"file_size": len(data), "last_modified": second * 1000 + 7}
            entries.append(entry)
        begin = int(self.query.get("page_token", "0"))
        page: dict[str, Any] = {"contents": entries[begin : begin + PAGE]}
        if begin + PAGE < len(entries):
            page["next_page_token"] = str(begin + PAGE)
        return 200, page, {}

    def dbfs_get_status(self, path: str) -> Reply:
        if path in self.there.folders:
            return 200, {"path": path, "is_dir": True, "file_size": 0}, {}
        if path not in self.there.files:
            return self.fail(404, "RESOURCE_DOES_NOT_EXIST", f"No file or directory exists on path {path}.")
        return 200, self.described(path), {}

    def described(self, path: str) -> dict[str, Any]:
        data, second = self.there.files[path]
        return {"path": path, "is_dir": False, "file_size": len(data), "modification_time": second * 1000}

    def dbfs_list(self, path: str) -> Reply:
        if path not in self.there.folders:
            return self.fail(404, "RESOURCE_DOES_NOT_EXIST", f"No file or directory exists on path {path}.")
        entries = [
            {"path": child, "is_dir": True, "file_size": 0} if is_folder else self.described(child)
            for child, is_folder in self.there.below(path)
        ]
        return 200, {"files": entries} if entries else {}, {}

    def dbfs_read(self, path: str, offset: str = "0", length: str = "500000") -> Reply:
        assert int(length) <= 1 << 20
        data = self.there.files[path][0][int(offset) : int(offset) + int(length)]
        return 200, {"bytes_read": len(data), "data": base64.b64encode(data).decode()}, {}

    def dbfs_create(self, path: str, overwrite: bool = False) -> Reply:
        self.there.write(path, b"")
        self.there.handles[len(self.there.handles)] = path
        return 200, {"handle": len(self.there.handles) - 1}, {}

    def dbfs_add_block(self, data: str, handle: int = 0) -> Reply:
        path = self.there.handles[handle]
        self.there.write(path, self.there.files[path][0] + base64.b64decode(data))
        return 200, {}, {}

    def dbfs_close(self, handle: int = 0) -> Reply:
        return 200, {}, {}

    def dbfs_delete(self, path: str, recursive: bool = False) -> Reply:
        self.there.files.pop(path, None)
        return 200, {}, {}

    def dbfs_mkdirs(self, path: str) -> Reply:
        self.there.make_folder(path)
        return 200, {}, {}

    def dbfs_move(self, source_path: str, destination_path: str) -> Reply:
        if destination_path in self.there.files:
            return self.fail(400, "RESOURCE_ALREADY_EXISTS", "there is a file of that name")
        self.there.write(destination_path, self.there.files.pop(source_path)[0])
        return 200, {}, {}
