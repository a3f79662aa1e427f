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
from tests.servers.script import Answer, Request, ScriptedServer, run_script, whole

from penstock.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, RequestRefusedError
from penstock.storage.base import Store, open_store, resolve_store
from penstock.storage.http import HttpHeaderStore, Network, redirect_target
from penstock.storage.retry import RetryPolicy
from penstock.testing.stores import LargeObjectContract, StoreReadContract
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.nginx import WebServer

    from penstock.storage.base import Store


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


def test_a_certificate_without_an_authority_is_told_at_once(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "example")])
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


ONCE = RetryPolicy(attempts=1, stall_s=60, patience_s=60)


CREDENTIALS = ("x-api-key", "authorization", "cookie", "x-token")


WAYS: list[tuple[str, dict[str, str]]] = [
    ("", {"X-Api-Key": "hunter2"}),
    ("", {"Authorization": "Bearer hunter2"}),
    ("", {"Cookie": "session=hunter2"}),
    ("me:hunter2@", {}),
    ("me:hunter2@", {"X-Token": "hunter2", "Cookie": "session=hunter2"}),
]


def store_of(url: str, login: str, headers: dict[str, str]) -> Store:
    return open_store(resolve_store(url.replace("://", f"://{login}"), {"headers": headers}, environ={}), retry=ONCE)


def credentials_in(requests: list[Request]) -> list[str]:
    return [name for request in requests for name in CREDENTIALS if name in request.headers]


@pytest.fixture
def other() -> Iterator[ScriptedServer]:
    with run_script(lambda _: whole(b"0123456789")) as server:
        yield server


@pytest.mark.parametrize(("login", "headers"), WAYS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("status", [302, 307])
def test_another_host_sees_no_credentials(
    other: ScriptedServer, login: str, headers: dict[str, str], host: str, status: int
) -> None:
    target = other.url.replace("127.0.0.1", host)
    with run_script(lambda request: Answer(status, b"", {"Location": target + request.path})) as server:
        store = store_of(server.url, login, headers)
        assert store.read("x") == b"0123456789"
        assert store.stat("x").num_bytes == 10
        assert bytes(store.read_piece("x", Span(0, 10))[0]) == b"0123456789"
    assert credentials_in(server.requests)
    assert len(other.requests) == 3
    assert not credentials_in(other.requests)
    assert not [request for request in other.requests if "hunter2" in str(request)]


@pytest.mark.parametrize(("login", "headers"), WAYS)
def test_the_same_host_under_another_name_is_another(login: str, headers: dict[str, str]) -> None:
    def answer(request: Request) -> Answer:
        port = server.url.rpartition(":")[2]
        elsewhere = Answer(302, b"", {"Location": f"http://localhost:{port}/x"})
        return elsewhere if request.headers["host"].startswith("127.") else whole(b"0123456789")

    with run_script(answer) as server:
        assert store_of(server.url, login, headers).read("x") == b"0123456789"
    assert [bool(credentials_in([request])) for request in server.requests] == [True, False]


@pytest.mark.parametrize(("login", "headers"), WAYS)
def test_another_path_of_the_same_host_sees_them(login: str, headers: dict[str, str]) -> None:
    def answer(request: Request) -> Answer:
        return whole(b"0123456789") if request.path == "/there" else Answer(301, b"", {"Location": "/there"})

    with run_script(answer) as server:
        assert store_of(server.url, login, headers).read("x") == b"0123456789"
    assert all(credentials_in([request]) for request in server.requests)


@pytest.mark.parametrize("location", ["/round", "file:///etc/passwd", "ftp://host/x", "http://[half", ""])
def test_redirects_that_lead_nowhere(location: str) -> None:
    with run_script(lambda _: Answer(302, b"", {"Location": location} if location else {})) as server:
        with pytest.raises(RequestRefusedError, match="the server redirects"):
            store_of(server.url, "", {"X-Api-Key": "hunter2"}).read("x")
    assert len(server.requests) <= 10


def test_nothing_goes_from_tls_to_plain_text() -> None:
    assert redirect_target("x", "https://a/x", "//b/y") == "https://b/y"
    assert redirect_target("x", "http://a/x", "https://b/y") == "https://b/y"
    with pytest.raises(RequestRefusedError, match=r"x: the server redirects to http://b/y, which is not encrypted"):
        redirect_target("x", "https://a/x", "http://me:hunter2@b/y?sig=hunter3")


@pytest.mark.parametrize("headers", [{"X": "a\r\nb"}, {"X": "日本"}, {"X": 7}, {"a b": "c"}, {"": "c"}, {7: "c"}])
def test_headers_that_cannot_be_sent(headers: dict[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="header") as caught:
        resolve_store("https://host/a", {"headers": headers}, environ={})
    assert not any(str(value) in str(caught.value) for value in headers.values())


def test_a_proxy_is_asked_with_its_own_credentials() -> None:
    with run_script(lambda _: whole(b"0123456789")) as proxy:
        options = {"headers": {"X-Api-Key": "hunter2"}, "proxy": proxy.url.replace("://", "://me:hunter3@")}
        store = open_store(resolve_store("http://far.example:8080/a", options, environ={}), retry=ONCE)
        assert store.read("x") == b"0123456789"
        assert "hunter" not in repr(store)
    (request,) = proxy.requests
    assert request.path == "http://far.example:8080/a/x"
    assert request.headers["proxy-authorization"] == "Basic bWU6aHVudGVyMw=="
    near = Network("http://proxy:1", "localhost, .near.example")
    assert near.target("http://a.near.example/x?y=z") == ("/x?y=z", {})
    assert near.target("http://far.example/x") == ("http://far.example:80/x", {})


def test_a_connection_that_the_server_has_left_is_made_anew() -> None:
    body = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-2/3\r\nContent-Length: 3\r\n\r\nabc"

    def serve(listener: socket.socket) -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(body)  # it does not say that it leaves

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        store = store_of(f"http://127.0.0.1:{listener.getsockname()[1]}", "", {"X-Api-Key": "hunter2"})
        for _ in range(3):
            assert store.read("x") == b"abc"
        thread.join()
