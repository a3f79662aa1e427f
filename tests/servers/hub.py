"""As much of the Hugging Face Hub's API as huggingface_hub needs to read, list and commit, in this process.

Small files are answered at once, large ones by a redirect to a signed address, as the Hub does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "hf_secret_of_the_tests"
LARGE_BYTES = 5_000
PAGE = 3
SIGNATURE = "Signature=do-not-show"

Files = dict[str, bytes]


@dataclass
class Repo:
    """Commits by name, each with all its files."""

    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    is_private: bool = False
    is_gated: bool = False

    def __post_init__(self) -> None:
        self.commit("main", {})

    def commit(self, branch: str, files: Files) -> str:
        name = hashlib.sha1(f"{branch} {len(self.commits)}".encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name

    def find(self, revision: str) -> str | None:
        name = self.branches.get(revision, revision)
        return name if name in self.commits else None


class HubServer:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.large: Files = {}
        self.lock = threading.Lock()
        self.refusals: list[tuple[int, dict[str, str]]] = []  # answers to the next requests for files
        self.cuts: list[int] = []  # bytes after which the next bodies end
        self.requests: list[str] = []
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.hub = self
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.elsewhere = self.endpoint.replace("127.0.0.1", "localhost")  # as files are: on another host
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def options(self, **more: Any) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "token": TOKEN, **more}


@contextmanager
def running_hub() -> Iterator[HubServer]:
    hub = HubServer()
    try:
        yield hub
    finally:
        hub.close()


def git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Server(ThreadingHTTPServer):
    hub: HubServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies go out apart: each answer would wait 40 ms
    server: _Server

    ROUTES = (
        ("GET", r"/api/datasets/([^/]+)", "with_organization"),
        ("GET", r"/api/(\w+s/[^/]+/[^/]+)(?:/revision/(.+))?", "info"),
        ("GET", r"/api/(\w+s/[^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", "tree"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate_card"),
        ("POST", r"/api/(\w+s/[^/]+/[^/]+)/preupload/(.+)", "preupload"),
        ("POST", r"/api/(\w+s/[^/]+/[^/]+)/commit/(.+)", "commit"),
        ("POST", r"/(\w+s/[^/]+/[^/]+).git/info/lfs/objects/batch", "batch"),
        ("GET", r"/buckets/([^/]+/[^/]+)/resolve/(.+)", "bucket_file"),
        ("GET", r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "file"),
        ("GET", r"/large/(\w+)", "large_file"),
        ("PUT", r"/large/(\w+)", "put_large"),
    )

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        hub = self.server.hub
        hub.requests.append(f"{self.command} {path}")
        for method, pattern, name in self.ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in (method, "HEAD"):
                with hub.lock:
                    reply = getattr(self, name)(*[part and unquote(part) for part in match.groups()])
                self.reply(*reply)
                return
        self.reply(404, b"", {})

    do_HEAD = do_POST = do_PUT = do_GET

    def log_message(self, *args: Any) -> None:
        pass

    def reply(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        hub = self.server.hub
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if status in (200, 206) and "Accept-Ranges" in headers and hub.cuts:
            data = data[: hub.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(data)

    def fail(self, status: int, code: str) -> tuple[int, bytes, dict[str, str]]:
        return status, b"", {"X-Error-Code": code, "X-Error-Message": f"{code} says the Hub"}

    def json(self, value: Any, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        return 200, json.dumps(value).encode(), {"Content-Type": "application/json", **headers}

    def open(self, name: str, revision: str) -> tuple[Repo, str] | tuple[int, bytes, dict[str, str]]:
        repo = self.server.hub.repos.get(name)
        may = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repo is None or (repo.is_private and not may):
            return self.fail(401, "RepoNotFound")
        if repo.is_gated:
            return self.fail(403, "GatedRepo")
        commit = repo.find(revision)
        return (repo, commit) if commit else self.fail(404, "RevisionNotFound")

    def with_organization(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        found = [known for known in self.server.hub.repos if known.endswith(f"/{name}")]
        return (307, b"", {"Location": f"/api/{found[0]}"}) if found else (404, b"", {"X-Error-Code": "RepoNotFound"})

    def info(self, name: str, revision: str | None) -> tuple[int, bytes, dict[str, str]]:
        found = self.open(name, revision or "main")
        if len(found) == 3:
            return found
        return self.json({"id": name.partition("/")[2], "sha": found[1], "siblings": [], "tags": [], "private": False})

    def tree(self, name: str, revision: str, folder: str | None) -> tuple[int, bytes, dict[str, str]]:
        found = self.open(name, revision)
        if len(found) == 3:
            return found
        root = f"{folder}/" if folder else ""
        paths = sorted(path for path in found[0].commits[found[1]] if path.startswith(root))
        if folder and not paths:
            return self.fail(404, "EntryNotFound")
        folders = {path.rpartition("/")[0] for path in paths} - {"", folder}
        entries = [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(folders)]
        entries += [entry_of(path, found[0].commits[found[1]][path]) for path in paths]
        begin = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        headers = {}
        if begin + PAGE < len(entries):
            following = f"{self.server.hub.endpoint}{urlsplit(self.path).path}?recursive=True&cursor={begin + PAGE}"
            headers["Link"] = f'<{following}>; rel="next"'
        return self.json(entries[begin : begin + PAGE], **headers)

    def file(self, kind: str | None, name: str, revision: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        if self.server.hub.refusals:
            status, headers = self.server.hub.refusals.pop(0)
            return status, b"", headers
        found = self.open(f"{kind or 'models'}/{name}", revision)
        if len(found) == 3:
            return found
        files = found[0].commits[found[1]]
        if path not in files:
            return self.fail(404, "EntryNotFound")
        return self.content(files[path], found[1])

    def bucket_file(self, name: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        files = self.server.hub.repos[f"buckets/{name}"].commits
        data = next(reversed(files.values())).get(path)
        return self.fail(404, "EntryNotFound") if data is None else self.content(data, "")

    def content(self, data: bytes, commit: str) -> tuple[int, bytes, dict[str, str]]:
        hub = self.server.hub
        if len(data) < LARGE_BYTES:
            return self.ranged(data, {"ETag": f'"{git_name(data)}"', "X-Repo-Commit": commit})
        name = sha256(data)
        hub.large[name] = data
        headers = {
            "Location": f"{hub.elsewhere}/large/{name}?{SIGNATURE}",
            "X-Linked-Etag": f'"{name}"',
            "X-Linked-Size": str(len(data)),
            "X-Repo-Commit": commit,
        }
        return 302, b"", headers

    def large_file(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        if SIGNATURE not in self.path:
            return 403, b"", {}
        return self.ranged(self.server.hub.large[name], {"ETag": '"of-the-cdn"'})

    def ranged(self, data: bytes, headers: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        headers["Accept-Ranges"] = "bytes"
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None:
            return 200, data, headers
        begin, end = int(match.group(1)), min(int(match.group(2)) + 1, len(data))
        if begin >= len(data):
            return 416, b"", {"Content-Range": f"bytes */{len(data)}"}
        return 206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}

    def create(self) -> tuple[int, bytes, dict[str, str]]:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.fail(401, "Unauthorized")
        asked = json.loads(self.body)
        repo = f"{asked['type']}s/{asked['organization']}/{asked['name']}"
        is_new = repo not in self.server.hub.repos
        if is_new:
            self.server.hub.repos[repo] = Repo(is_private=asked.get("visibility") == "private")
        return 200 if is_new else 409, json.dumps({"url": f"{self.server.hub.endpoint}/{repo}"}).encode(), {}

    def validate_card(self) -> tuple[int, bytes, dict[str, str]]:
        assert json.loads(self.body)["content"].startswith(("---\nconfigs:", "# "))
        return self.json({"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> tuple[int, bytes, dict[str, str]]:
        found = self.open(name, revision)
        if len(found) == 3:
            return found
        asked = json.loads(self.body)["files"]
        modes = ["lfs" if file["size"] >= LARGE_BYTES else "regular" for file in asked]
        files = [
            {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
            for file, mode in zip(asked, modes, strict=True)
        ]
        return self.json({"files": files})

    def batch(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        objects = [
            {**wanted, "actions": {"upload": {"href": f"{self.server.hub.endpoint}/large/{wanted['oid']}?{SIGNATURE}"}}}
            for wanted in json.loads(self.body)["objects"]
        ]
        return self.json({"objects": objects, "transfer": "basic"})

    def put_large(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        assert sha256(self.body) == name
        self.server.hub.large[name] = self.body
        return 200, b"", {}

    def commit(self, name: str, revision: str) -> tuple[int, bytes, dict[str, str]]:
        found = self.open(name, revision)
        if len(found) == 3:
            return found
        files = dict(found[0].commits[found[1]])
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.server.hub.large[value["oid"]]
            elif item["key"] == "deletedFile":
                del files[value["path"]]
        oid = found[0].commit(revision, files)
        return self.json({"commitUrl": f"{self.server.hub.endpoint}/{name}/commit/{oid}", "commitOid": oid})


def entry_of(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_name(data)}
    if len(data) >= LARGE_BYTES:
        entry |= {"oid": git_name(b"pointer"), "lfs": {"oid": sha256(data), "size": len(data), "pointerSize": 134}}
    return entry
