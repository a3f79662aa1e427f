"""Web servers: the reading half of the contract on nginx."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import uuid
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from penstock.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, RequestRefusedError
from penstock.storage.base import Store, open_store, resolve_store
from penstock.storage.http import HttpHeaderStore
from penstock.testing.stores import LargeObjectContract, StoreReadContract
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.nginx import WebServer


class FolderContract(StoreReadContract):
    """A folder that a web server shows."""

    files: Path
    url: str
    missing_keys = ("missing", "folder/x/y")  # for a folder itself servers have answers of many kinds

    def make_store(self, folder: Path) -> Store:
        self.root = f"{uuid.uuid4().hex}/a b"
        return open_store(f"{self.url}/{self.root.replace(' ', '%20')}/")

    def put(self, store: Store, folder: Path, key: str, data: bytes) -> None:
        path = self.files / self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class TestNginx(FolderContract, LargeObjectContract):
    @pytest.fixture(autouse=True)
    def _server(self, nginx: WebServer) -> None:
        self.files, self.url = nginx.files, nginx.url

    def put_sparse(self, store: Store, folder: Path, key: str, num_bytes: int) -> Path:
        self.put(store, folder, key, b"")
        path = self.files / self.root / key
        os.truncate(path, num_bytes)
        return path


class WithHeaders(FolderContract):
    """The same servers, asked with a header that must not go elsewhere: another client asks."""

    secrets = ("hunter2",)

    def make_store(self, folder: Path) -> Store:
        url = f"{self.url}/{uuid.uuid4().hex}/a%20b/"
        self.root = "/".join(url.removesuffix("/").replace("%20", " ").split("/")[-2:])
        store = open_store(resolve_store(url, {"headers": {"X-Api-Key": "hunter2"}}, environ={}))
        assert isinstance(store, HttpHeaderStore)
        return store


class TestNginxWithHeaders(WithHeaders, TestNginx):
    pass


class TestUnranged(FolderContract):
    """A server that knows no ranges sends the whole each time; what we ask for comes all the same."""

    @pytest.fixture(autouse=True)
    def _server(self, nginx: WebServer) -> None:
        self.files, self.url = nginx.files / "unranged", f"{nginx.url}/unranged"


class TestUnrangedWithHeaders(WithHeaders, TestUnranged):
    pass


class TestPython(FolderContract):
    """The server of the standard library: no ranges, no tags."""

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        self.files = tmp_path_factory.mktemp("python")

        class Quiet(SimpleHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(self.files)))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        yield
        server.shutdown()
        thread.join()
        server.server_close()


class TestPythonWithHeaders(WithHeaders, TestPython):
    pass


@pytest.mark.parametrize("headers", [{}, {"X-Api-Key": "hunter2"}])
def test_nothing_can_be_written_or_listed(nginx: WebServer, tmp_path: Path, headers: dict[str, str]) -> None:
    store = open_store(resolve_store(nginx.url, {"headers": headers}))
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(ConfigError, match="cannot be written to: web servers are read-only"):
        store.upload(tmp_path / "x", "x")
    with pytest.raises(ConfigError, match="cannot be written to"):
        store.delete("x")
    with pytest.raises(RequestRefusedError, match="cannot be listed: a web server does not list its files"):
        store.list()


@pytest.mark.parametrize("headers", [{}, {"X-Api-Key": "hunter2"}])
def test_denied(nginx: WebServer, headers: dict[str, str]) -> None:
    store = open_store(resolve_store(f"{nginx.url}/private", {"headers": headers}))
    with pytest.raises(AccessDeniedError, match=r"no access to http://127.*/private/x: the server answered 403"):
        store.read_piece("x", Span(0, 1))


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_several_ranges_by_one_call(nginx: WebServer, scheme: str) -> None:
    """They come together from a bucket that is given credentials; from a web server one by one."""
    data = bytes(range(256)) * 40
    (nginx.files / "bucket").mkdir(exist_ok=True)
    (nginx.files / "bucket" / "several").write_bytes(data)
    options = {"key": "k", "secret": "s", "endpoint_url": nginx.url, "region": "us-east-1"}
    store: Any = open_store(f"{nginx.url}/bucket" if scheme == "http" else resolve_store("s3://bucket", options))
    assert store.reads_together == (scheme == "s3")
    spans = [Span(begin, begin + 7) for begin in range(0, 10_000, 400)]
    found = store.read_ranges("several", spans)
    assert [bytes(each) for each in found] == [data[span.begin : span.end] for span in spans]
    with pytest.raises(ObjectNotFoundError):
        store.read_ranges("absent", spans)
    with pytest.raises(RequestRefusedError):
        store.read_ranges("several", [Span(0, 5), Span(len(data) - 5, len(data) + 5)])


def test_settings() -> None:
    settings = resolve_store("https://me:hunter2@host/a", {"headers": {"X-Token": "hunter3"}}, environ={})
    assert settings.options == {"headers": {"X-Token": "hunter3", "Authorization": "Basic bWU6aHVudGVyMg=="}}
    assert repr(settings) == "StoreSettings('https://host/a')"
    assert "hunter" not in repr(open_store(settings))
    assert resolve_store(
        "https://host/a", {"https": {"headers": {"A": "b"}}, "s3": {"key": "k"}}, environ={}
    ).options == {"headers": {"A": "b"}}
    with pytest.raises(ConfigError, match="https://host/a: the URL of a dataset cannot have a query"):
        resolve_store("https://host/a?sig=hunter2")
    with pytest.raises(ConfigError, match="has no host"):
        resolve_store("https:///a")
    with pytest.raises(ConfigError, match=r"http has no option 'header' \(did you mean 'headers'\?\)"):
        resolve_store("https://host/a", {"header": {}})


def test_proxies_and_certificates() -> None:
    environ = {"https_proxy": "http://proxy:1", "no_proxy": "localhost", "http_proxy": "http://other:2"}
    assert resolve_store("https://host/a", environ=environ).options == {
        "proxy": "http://proxy:1",
        "no_proxy": "localhost",
    }
    assert resolve_store("http://host/a", environ=environ).options["proxy"] == "http://other:2"
    assert resolve_store("https://host/a", {"verify": False}, environ={}).options == {"verify": False}
    with pytest.raises(ConfigError, match="cannot read the certificates"):
        open_store(resolve_store("https://host/a", {"verify": "/missing.pem"}, environ={})).read("x")


def test_a_certificate_that_nobody_vouches_for_is_told_at_once(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody")])
    now = datetime.now(timezone.utc)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1)).sign(key, SHA256())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "server.pem").write_bytes(made.public_bytes(Encoding.PEM) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    num_asked = 0

    def serve(listener: socket.socket) -> None:
        nonlocal num_asked
        with suppress(OSError):  # the client hangs up, and then the test does
            while True:
                connection, _ = listener.accept()
                num_asked += 1
                with suppress(ssl.SSLError), connection:
                    context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with pytest.raises(RequestRefusedError, match="certificate of the server is not trusted: pass verify="):
            open_store(f"https://127.0.0.1:{listener.getsockname()[1]}").read("x")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert num_asked <= 2  # for the bytes and, as that was refused, for what it is
