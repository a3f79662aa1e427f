"""Credentials go to the server that they were given for, not to where it sends us on."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.servers.script import Answer, Request, ScriptedServer, run_script, whole

from penstock.errors import ConfigError, RequestRefusedError
from penstock.storage.base import open_store, resolve_store
from penstock.storage.http import Network, redirect_target
from penstock.storage.retry import RetryPolicy
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.base import Store

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
