"""SFTP: the contract on a real sshd, who may log in, and connections that break."""

from __future__ import annotations

import multiprocessing
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.servers.cutting import forwarding
from tests.servers.process import free_port
from tests.servers.sshd import SshServer, host_line, make_key, running_agent, running_sshd

from penstock.errors import AccessDeniedError, ConfigError, StoreError
from penstock.storage import sftp
from penstock.storage.base import open_store, resolve_store
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.sftp import SftpLogin, SftpStore, root_of
from penstock.testing.stores import StoreContract
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.base import Store


def hang_up() -> None:
    """Close the idle connections of this process, so that no server waits for a word on them."""
    servers = sftp.connections._servers.forget() or {}
    for idle in servers.values():
        while (connection := idle.take()) is not None:
            connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as it:
        yield it
        hang_up()


QUICK = RetryPolicy(attempts=4, base_s=0.001, stall_s=60, patience_s=0.05)


def store_of(
    server: SshServer,
    folder: Path | str,
    *,
    port: int | None = None,
    retry: RetryPolicy = QUICK,
    hooks: RetryHooks | None = None,
    **options: object,
) -> SftpStore:
    url = server.url(folder, port)
    settings = resolve_store(url, {**server.options, **options}, environ={"HOME": "/nowhere"})
    store = open_store(settings, retry=retry, hooks=hooks)
    assert isinstance(store, SftpStore)
    return store


class TestSftpStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _serve(self, server: SshServer) -> None:
        self.server = server

    def make_store(self, folder: Path) -> Store:
        return store_of(self.server, folder)


def test_lost_connections_go_on_at_the_byte(server: SshServer, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "x").write_bytes(data)
    lost: list[StoreError] = []
    with forwarding(server.port, [500_000, 1_000_000]) as forwarder:
        server.know(forwarder.port)
        store = store_of(server, tmp_path, port=forwarder.port, hooks=RetryHooks(on_retry=lost.append))
        piece, info = store.read_piece("x", Span(7, 2_999_990))
        assert bytes(piece) == data[7:2_999_990]
        assert info.num_bytes == len(data)
        assert len(lost) == forwarder.num_cut == 2
        store.download("x", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == data
        hang_up()


def test_a_silent_server_is_left(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(1_000_000))
    with forwarding(server.port, [300_000], stalls=True) as forwarder:
        server.know(forwarder.port)
        patience = RetryPolicy(attempts=20, base_s=0.001, stall_s=1, patience_s=0.05)
        store = store_of(server, tmp_path, port=forwarder.port, retry=patience)
        assert store.read("x") == bytes(1_000_000)
        assert forwarder.num_cut == 1
        hang_up()


def test_an_upload_starts_again(server: SshServer, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(random.Random(2).randbytes(2_000_000))
    with forwarding(server.port, [4_000]) as forwarder:
        server.know(forwarder.port)
        store = store_of(server, tmp_path / "store", port=forwarder.port)
        store.upload(source, "a/x")
        assert forwarder.num_cut == 1
        assert (tmp_path / "store/a/x").read_bytes() == source.read_bytes()
        assert [info.key for info in store.list()] == ["a/x"]
        hang_up()


def test_no_server_there(server: SshServer, tmp_path: Path) -> None:
    lost: list[StoreError] = []
    store = store_of(server, tmp_path, port=free_port(), hooks=RetryHooks(on_retry=lost.append))
    with pytest.raises(StoreError, match="onnect"):
        store.read("x")
    assert len(lost) >= QUICK.attempts - 1


def test_an_unknown_host_is_refused(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("")
    with pytest.raises(AccessDeniedError, match=rf"SHA256:\S+ .*ssh-keyscan -p {server.port} 127.0.0.1"):
        store_of(server, tmp_path, known_hosts=str(tmp_path / "known")).read("x")


def test_a_host_with_another_key_is_refused(server: SshServer, tmp_path: Path) -> None:
    make_key(tmp_path / "host_key")
    (tmp_path / "known").write_text(host_line(tmp_path, server.port))
    with pytest.raises(AccessDeniedError, match="another host key than the one in known_hosts"):
        store_of(server, tmp_path, known_hosts=str(tmp_path / "known")).read("x")


def test_a_stranger_is_not_let_in(server: SshServer, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    with pytest.raises(AccessDeniedError, match="refused all 1 ways") as caught:
        store_of(server, tmp_path, key_filename=str(tmp_path / "key")).read("x")
    assert isinstance(caught.value, PermissionError)
    with pytest.raises(AccessDeniedError, match="refused all 2 ways") as caught:
        store_of(server, tmp_path, key_filename=str(tmp_path / "key"), password="hunter2").read("x")
    assert "hunter2" not in str(caught.value)


def test_keys_that_cannot_be_used(server: SshServer, tmp_path: Path) -> None:
    make_key(tmp_path / "locked", "open sesame")
    (tmp_path / "nonsense").write_text("no key")
    with pytest.raises(AccessDeniedError, match="is encrypted"):
        store_of(server, tmp_path, key_filename=str(tmp_path / "locked")).read("x")
    with pytest.raises(AccessDeniedError, match="cannot read") as caught:
        store_of(server, tmp_path, key_filename=str(tmp_path / "locked"), passphrase="abracadabra").read("x")
    assert "abracadabra" not in str(caught.value)
    with pytest.raises(AccessDeniedError, match="refused all"):  # unlocked, but a stranger's
        store_of(server, tmp_path, key_filename=str(tmp_path / "locked"), passphrase="open sesame").read("x")
    with pytest.raises(AccessDeniedError, match="cannot read"):
        store_of(server, tmp_path, key_filename=str(tmp_path / "nonsense")).read("x")
    with pytest.raises(ConfigError, match="there is no SSH key"):
        store_of(server, tmp_path, key_filename=str(tmp_path / "missing")).read("x")


def test_the_agent_lets_in(server: SshServer, tmp_path: Path) -> None:
    with running_agent(server.folder / "user_key") as agent_socket:
        make_key(tmp_path / "locked", "open sesame")
        (tmp_path / "x").write_bytes(b"1")
        store = store_of(server, tmp_path, key_filename=str(tmp_path / "locked"), agent_socket=agent_socket)
        assert store.read("x") == b"1"


def test_no_permission_on_the_server(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    with running_sshd(tmp_path, read_only=True) as server:
        store = store_of(server, tmp_path)
        assert store.read("x") == b"1"
        with pytest.raises(AccessDeniedError, match="denies access to sftp://"):
            store.upload(tmp_path / "x", "y")
        with pytest.raises(AccessDeniedError, match="denies access to sftp://"):
            store.delete("x")
        hang_up()


def test_a_range_far_into_a_large_file(server: SshServer, tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.seek(5 << 30)
        file.write(b"the end")
    piece, info = store_of(server, tmp_path).read_piece("x", Span((5 << 30) - 2, (5 << 30) + 3))
    assert (bytes(piece), info.num_bytes) == (b"\0\0the", (5 << 30) + 7)


def test_many_threads_share_few_connections(server: SshServer, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(400_000)
    (tmp_path / "x").write_bytes(data)
    store = store_of(server, tmp_path, retry=replace(QUICK, patience_s=30))  # logging in takes a while each
    spans = [Span(at, at + 10_000) for at in range(0, len(data), 10_000)]
    with ThreadPoolExecutor(20) as threads:
        pieces = list(threads.map(lambda span: bytes(store.read_piece("x", span)[0]), spans))
    assert b"".join(pieces) == data


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_connects_anew(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1234")
    store = store_of(server, tmp_path)
    assert store.read("x") == b"1234"
    process = multiprocessing.get_context("fork").Process(target=copy_x, args=(store, tmp_path / "child"))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert (tmp_path / "child").read_bytes() == b"1234"
    assert store.read("x", Span(1, 3)) == b"23"


def copy_x(store: SftpStore, path: Path) -> None:
    path.write_bytes(store.read("x"))


HOME = {"HOME": "/nowhere", "USER": "me"}


def test_what_a_url_says() -> None:
    settings = resolve_store("sftp://you:p%40ss@host:2222/data", environ=HOME)
    store = open_store(settings)
    assert isinstance(store, SftpStore)
    login = store.login
    assert (login.host, login.port, login.username, login.password, store.root) == (
        "host", 2222, "you", "p@ss", "/data",
    )  # fmt: skip
    for text in (repr(store), repr(login), repr(settings), login.url):
        assert "ss" not in text.replace("passphrase", "")
    login = store_login("sftp://host/data")
    assert (login.port, login.username, login.password, login.key_filename) == (22, "me", None, ())


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("sftp://host", "/"),
        ("sftp://host/a%20b/c/", "/a b/c"),
        ("sftp://host//a", "/a"),
        ("sftp://host/~/a", "a"),
        ("sftp://host/./a/b", "a/b"),
        ("sftp://host/~", "."),
    ],
)
def test_folders(url: str, root: str) -> None:
    assert root_of(url) == root


def test_urls_that_cannot_be() -> None:
    for url, match in (
        ("sftp:///path", "has no host"),
        ("sftp://host:port/path", "not a number"),
        ("sftp://a:secret@host/path?x=1", "query"),
    ):
        with pytest.raises(ConfigError, match=match) as caught:
            resolve_store(url, environ=HOME)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="no option 'pasword' .did you mean 'password'"):
        resolve_store("sftp://host/x", {"pasword": "x"}, environ=HOME)


def store_login(url: str, options: dict[str, object] | None = None, environ: dict[str, str] = HOME) -> SftpLogin:
    store = open_store(resolve_store(url, options, environ=environ))
    assert isinstance(store, SftpStore)
    return store.login


def test_what_the_environment_says() -> None:
    environ = {
        **HOME,
        "COMPOSER_SFTP_KEY_FILE": "/keys/mosaic",
        "SFTP_PRIVATE_KEY_PATH": "/keys/other",
        "COMPOSER_SFTP_KNOWN_HOSTS_FILE": "~/hosts",
        "SFTP_USERNAME": "user",
        "SSH_AUTH_SOCK": "/run/agent",
    }
    login = store_login("sftp://host/x", environ=environ)
    assert login.key_filename == ("/keys/mosaic",)
    assert login.known_hosts == ("/nowhere/hosts",)
    assert (login.username, login.agent_socket) == ("user", "/run/agent")
    login = store_login("sftp://you@host/x", {"key_filename": "/mine", "port": 3}, environ)
    assert (login.username, login.key_filename, login.port) == ("you", ("/mine",), 3)


def test_what_the_ssh_files_say(tmp_path: Path) -> None:
    folder = tmp_path / ".ssh"
    folder.mkdir()
    environ = {"HOME": str(tmp_path), "USER": "me"}
    for name in ("id_rsa", "id_ed25519", "known_hosts"):
        (folder / name).write_text("")
    login = store_login("sftp://host/x", environ=environ)
    assert login.key_filename == (str(folder / "id_ed25519"), str(folder / "id_rsa"))
    assert login.known_hosts[0] == str(folder / "known_hosts")
    (folder / "config").write_text(
        "Host near\n HostName far.example\n User them\n Port 99\n IdentityFile ~/.ssh/near_key\n"
        "Host behind\n ProxyJump near\n"
    )
    login = store_login("sftp://near/x", environ=environ)
    assert (login.host, login.username, login.port) == ("far.example", "them", 99)
    assert login.key_filename[0].endswith(".ssh/near_key")
    assert store_login("sftp://you@near:5/x", environ=environ).username == "you"
    with pytest.raises(ConfigError, match="through proxyjump"):
        store_login("sftp://behind/x", environ=environ)
