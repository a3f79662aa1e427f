"""Files of a machine that speaks SFTP: `sftp://user@host:port/path`, through paramiko.

Who logs in, and how, is in the URL, the options, the environment and the user's SSH files.
"""

from __future__ import annotations

import getpass
import posixpath
import socket
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    PenstockError,
    StoreError,
    StoreTimeoutError,
)
from penstock.extras import require
from penstock.files import open_file
from penstock.storage.base import ObjectInfo, StoreFamily, check_key, shown_url, split_url, whole_seconds
from penstock.storage.options import first_set, option_names, take_options, without_none
from penstock.storage.pool import ConnectionPool
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.streams import ReadsBodies, ResponseBody, hidden_part
from penstock.storage.url_names import unescaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from penstock.types import Span

_WINDOW_BYTES = 8 << 20  # asked for at once; as much is in memory
_CHUNK_BYTES = 1 << 20
_MAX_CONNECTIONS = 8  # sshd refuses some of more than ten that log in at the same time
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")

# The first name that is set wins. The COMPOSER_ ones are those of MosaicML's libraries.
_ENVIRONMENT = {
    "key_filename": ("COMPOSER_SFTP_KEY_FILE", "SFTP_PRIVATE_KEY_PATH"),
    "passphrase": ("SFTP_PRIVATE_KEY_PASSWORD",),
    "known_hosts": ("COMPOSER_SFTP_KNOWN_HOSTS_FILE",),
    "username": ("SFTP_USERNAME",),
    "password": ("SFTP_PASSWORD",),
    "agent_socket": ("SSH_AUTH_SOCK",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SftpLogin:
    """All that it takes to reach a server, with nothing left to the environment of the process that connects."""

    host: str
    username: str
    port: int = 22
    password: str | None = field(default=None, repr=False)
    key_filename: tuple[str, ...] = ()
    passphrase: str | None = field(default=None, repr=False)
    known_hosts: tuple[str, ...] = ()
    agent_socket: str | None = None

    @property
    def url(self) -> str:
        """The server as a URL, without secrets."""
        return f"sftp://{self.username}@{self.host}:{self.port}"

    def connect(self, patience_s: float) -> Any:
        """Open an SSH connection to a server whose key is known, as a user whom it lets in."""
        paramiko = require("paramiko", extra="sftp", purpose=f"reading {self.url}")
        client = paramiko.SSHClient()
        for name in self.known_hosts:
            client.load_system_host_keys(name)
        client.set_missing_host_key_policy(_refuse_unknown_host(paramiko, self))
        try:
            client.connect(
                self.host,
                self.port,
                self.username,
                timeout=patience_s,
                banner_timeout=patience_s,
                auth_timeout=patience_s,
                channel_timeout=patience_s,
                auth_strategy=_make_strategy(paramiko, self, patience_s),
            )
        except BaseException:
            client.close()
            raise
        return client


def resolve_login(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `SftpLogin`: the URL counts before the options, environment and SSH files."""
    given = take_options("an SFTP store", options, option_names(*_ENVIRONMENT, "port"))
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    in_url = _from_url(url)
    config = _from_ssh_config(home, in_url["host"])
    found = without_none({option: first_set(environ, *names) for option, names in _ENVIRONMENT.items()})
    login = {**config, **found, **given, **in_url}
    login["host"] = config.get("host", in_url["host"])
    login["port"] = int(login.get("port", 22))
    login.setdefault("username", environ.get("USER") or getpass.getuser())
    login["key_filename"] = _paths(login.get("key_filename"), home) or _existing(home / ".ssh", _DEFAULT_KEYS)
    login["known_hosts"] = _paths(login.get("known_hosts"), home) or [
        *_existing(home / ".ssh", ("known_hosts",)),
        *_existing(Path("/etc/ssh"), ("ssh_known_hosts",)),
    ]
    return login


def login_of(options: Mapping[str, Any]) -> SftpLogin:
    """Make a login of what `resolve_login` said."""
    files = {name: tuple(options.get(name) or ()) for name in ("key_filename", "known_hosts")}
    return SftpLogin(**{**options, **files})


def root_of(url: str) -> str:
    """Return the folder that a URL names: from the root of the server, or from the user's home after `/~/`."""
    path = unescaped(urlsplit(url).path)
    if path in ("/~", "/."):
        return "."
    if path.startswith(("/~/", "/./")):
        return path[3:].strip("/") or "."
    return "/" + path.strip("/")


def _from_url(url: str) -> dict[str, Any]:
    parts = split_url(url)
    if not parts.hostname:
        raise ConfigError(f"{shown_url(url)} has no host: write sftp://user@host:port/path")
    if parts.query or parts.fragment:
        raise ConfigError(f"{shown_url(url)} has a query or a fragment, which SFTP does not have")
    return without_none(
        {
            "host": parts.hostname,
            "port": parts.port,
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
        }
    )


def _from_ssh_config(home: Path, host: str) -> dict[str, Any]:
    """Look a host up in the user's SSH configuration, if there is one."""
    path = home / ".ssh" / "config"
    if not path.is_file():
        return {}
    paramiko = require("paramiko", extra="sftp", purpose="reading the SSH configuration")
    try:
        found = paramiko.SSHConfig.from_path(str(path)).lookup(host)
    except paramiko.SSHException as error:
        raise ConfigError(f"cannot understand {path}: {error}") from error
    for word in ("proxyjump", "proxycommand"):
        if found.get(word, "none").lower() != "none":
            raise ConfigError(
                f"{path} connects to {host} through {word}, which penstock does not support: open a tunnel with ssh -L"
            )
    said: dict[str, Any] = {"host": found["hostname"]}
    if "user" in found:
        said["username"] = found["user"]
    if "port" in found:
        said["port"] = int(found["port"])
    if "identityfile" in found:
        said["key_filename"] = list(found["identityfile"])
    return said


def _paths(value: Any, home: Path) -> list[str]:
    names = [value] if isinstance(value, (str, Path)) else list(value or ())
    return [str(home / str(name).removeprefix("~/")) if str(name).startswith("~/") else str(name) for name in names]


def _existing(folder: Path, names: tuple[str, ...]) -> list[str]:
    return [str(folder / name) for name in names if (folder / name).is_file()]


def _refuse_unknown_host(paramiko: Any, login: SftpLogin) -> Any:
    """Return who is unknown, and how to make it known: any machine could answer there."""

    class Refuse(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:  # noqa: ARG002
            files = " or ".join(login.known_hosts) or "~/.ssh/known_hosts (which does not exist)"
            raise AccessDeniedError(
                f"the host key of {login.host} port {login.port} is not in {files}. If its fingerprint really is"
                f" {key.fingerprint} ({key.get_name()}), add it with: ssh-keyscan -p {login.port} {login.host} >>"
                " ~/.ssh/known_hosts",
                host=login.host,
            )

    return Refuse()


def _make_strategy(paramiko: Any, login: SftpLogin, patience_s: float) -> Any:
    """Try the keys in files, then those of the agent, then the password."""
    auth = require("paramiko.auth_strategy", extra="sftp", purpose=f"logging in to {login.url}")

    class Strategy(auth.AuthStrategy):  # type: ignore[misc, name-defined]
        def get_sources(self) -> Iterator[Any]:
            for path in login.key_filename:
                key = _load_key(paramiko, login, path)
                if key is not None:
                    yield auth.InMemoryPrivateKey(login.username, key)
            with _agent_keys(paramiko, login, patience_s) as keys:
                yield from (auth.InMemoryPrivateKey(login.username, key) for key in keys)
            if login.password is not None:
                yield auth.Password(login.username, lambda: login.password)

    return Strategy(ssh_config=None)


def _load_key(paramiko: Any, login: SftpLogin, path: str) -> Any:
    try:
        return paramiko.PKey.from_path(path, login.passphrase.encode() if login.passphrase else None)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no SSH key {path}") from error
    except PermissionError as error:
        raise AccessDeniedError(f"no permission to read the SSH key {path}") from error
    except (paramiko.PasswordRequiredException, TypeError) as error:  # TypeError is what the layer below says
        if login.agent_socket or login.password:
            return None  # the agent holds it unlocked, or it is not the way in
        raise AccessDeniedError(f"the SSH key {path} is encrypted: pass its passphrase, or use an SSH agent") from error
    except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError) as error:
        raise AccessDeniedError(f"cannot read the SSH key {path}: {error}") from error


@contextmanager
def _agent_keys(paramiko: Any, login: SftpLogin, patience_s: float) -> Iterator[tuple[Any, ...]]:
    """Lend the keys of the agent of the user of this store, which need not be that of this process."""

    class Agent(paramiko.agent.AgentSSH):  # type: ignore[misc]
        def ask(self, connection: socket.socket) -> tuple[Any, ...]:
            self._connect(connection)
            keys: tuple[Any, ...] = self.get_keys()
            return keys

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience_s)
        try:
            connection.connect(login.agent_socket or "")
            keys = Agent().ask(connection)
        except (OSError, paramiko.SSHException):
            keys = ()  # an agent that has gone is as good as none
        yield keys


class SftpConnection:
    """One SSH connection with one SFTP session on it."""

    def __init__(self, login: SftpLogin, patience_s: float) -> None:
        self._client = login.connect(patience_s)
        try:
            self.sftp = self._client.open_sftp()
        except BaseException:
            self._client.close()
            raise

    def is_open(self) -> bool:
        """Return whether the server is still there, as far as this side knows."""
        transport = self._client.get_transport()
        return transport is not None and transport.is_active()

    def close(self) -> None:
        """End the connection."""
        self._client.close()


connections: ConnectionPool[SftpConnection] = ConnectionPool(_MAX_CONNECTIONS)


@dataclass(frozen=True, slots=True)
class SftpStore(ReadsBodies[Any]):
    """The files below a folder of a server.

    SFTP tells the time of a change in whole seconds: of two files of one size, written in one second, it cannot say
    that they differ.
    """

    login: SftpLogin
    root: str
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hooks: RetryHooks = field(default_factory=RetryHooks, repr=False, compare=False)

    def upload(self, path: Path, key: str) -> None:
        """Copy a file to the server, under another name until it is whole."""

        def put(sftp: Any) -> None:
            with open_file(path) as file:
                _put(sftp, file, self._path(key))

        self._ask(key, put)

    def delete(self, key: str) -> None:
        """Remove a file."""
        self._ask(key, lambda sftp: sftp.remove(self._path(key)))

    def _path(self, key: str) -> str:
        return posixpath.join(self.root, check_key(key))

    def _shown(self, key: str = "") -> str:
        return f"{self.login.url}{posixpath.join(self.root, key) if key else self.root}"

    @contextmanager
    def _session(self, key: str) -> Iterator[Any]:
        url, patience_s = self._shown(key), self.retry.stall_s
        with (
            _connection_errors(url),
            connections.lease(
                self.login, lambda: SftpConnection(self.login, patience_s), timeout_s=self.retry.patience_s
            ) as connection,
            _answers(url),
        ):
            connection.sftp.get_channel().settimeout(patience_s)
            yield connection.sftp

    def _describe(self, session: Any, key: str) -> ObjectInfo:
        return _describe(key, self._shown(key), session.stat(self._path(key)))

    def _walk(self, session: Any, prefix: str) -> Iterator[ObjectInfo]:  # noqa: ARG002
        return _walk(session, self.root)

    @contextmanager
    def _open(self, key: str, span: Span) -> Iterator[ResponseBody]:
        with self._session(key) as sftp, sftp.open(self._path(key), "rb") as file:
            info = _describe(key, self._shown(key), file.stat())
            yield ResponseBody(info, _chunks(file, span.begin, min(span.end, info.num_bytes)))


family = StoreFamily(
    open=lambda settings, retry, hooks: SftpStore(login_of(settings.options), root_of(settings.url), retry, hooks),
    resolve=resolve_login,
)


def _put(sftp: Any, file: BinaryIO, target: str) -> None:
    _make_folders(sftp, posixpath.dirname(target))
    with hidden_part(target, sftp.remove) as part:
        sftp.putfo(file, part)  # compares the sizes when it is done
        _replace(sftp, part, target)


def _chunks(file: Any, begin: int, end: int) -> Iterator[bytes]:
    """Read a range in order, with many requests under way: one at a time would wait for the network each time."""
    _silence_requests(file)
    for start in range(begin, end, _WINDOW_BYTES):
        stop = min(start + _WINDOW_BYTES, end)
        yield from file.readv([(at, min(_CHUNK_BYTES, stop - at)) for at in range(start, stop, _CHUNK_BYTES)])


def _silence_requests(file: Any) -> None:
    """Keep the thread that sends paramiko's requests from printing that the connection is lost: the reader will say so.

    Where another version of paramiko does it otherwise, it prints; nothing else depends on this.
    """
    if not hasattr(file, "_prefetch_thread"):
        return
    send = file._prefetch_thread

    def send_silently(*args: Any) -> None:
        with suppress(Exception):
            send(*args)

    file._prefetch_thread = send_silently


def _describe(key: str, url: str, status: Any) -> ObjectInfo:
    if not stat.S_ISREG(status.st_mode):
        raise ObjectNotFoundError(f"{url} is not a file", key=key)
    tag = f"{int(status.st_mtime):x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, tag, whole_seconds(status.st_mtime))


def _walk(sftp: Any, root: str) -> Iterator[ObjectInfo]:
    """Yield the files below a folder, in no order. Links to files count as files, links to folders are left out."""
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = sftp.listdir_attr(posixpath.join(root, folder) if folder else root)
        except FileNotFoundError:
            continue  # the root need not exist before the first upload, and others may remove folders
        for entry in entries:
            key = posixpath.join(folder, entry.filename)
            if stat.S_ISLNK(entry.st_mode):
                entry = _follow(sftp, posixpath.join(root, key)) or entry
            if stat.S_ISDIR(entry.st_mode):
                folders.append(key)
            elif stat.S_ISREG(entry.st_mode):
                yield _describe(key, key, entry)


def _follow(sftp: Any, path: str) -> Any:
    """Return what a link to a file points to."""
    try:
        status = sftp.stat(path)
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _make_folders(sftp: Any, folder: str) -> None:
    missing = []
    while folder not in ("", "/", "."):
        try:
            sftp.stat(folder)
            break
        except FileNotFoundError:
            missing.append(folder)
            folder = posixpath.dirname(folder)
    for name in reversed(missing):
        try:
            sftp.mkdir(name)
        except OSError:
            sftp.stat(name)  # another writer made it meanwhile, or this says what is wrong


def _replace(sftp: Any, part: str, target: str) -> None:
    """Rename over what is there: at once where the server can, else with a moment without the file."""
    try:
        sftp.posix_rename(part, target)
    except OSError:
        if stat.S_ISDIR(_mode(sftp, target)):
            raise
        with suppress(FileNotFoundError):
            sftp.remove(target)
        sftp.rename(part, target)


def _mode(sftp: Any, path: str) -> int:
    try:
        return int(sftp.stat(path).st_mode)
    except FileNotFoundError:
        return 0


@contextmanager
def _answers(url: str) -> Iterator[None]:
    """Turn the answers of a healthy server into errors of ours."""
    try:
        yield
    except PenstockError:
        raise  # some of ours are errors of the operating system too
    except FileNotFoundError as error:
        raise ObjectNotFoundError(f"there is no file {url}", url=url) from error
    except PermissionError as error:
        raise AccessDeniedError(f"the server denies access to {url}", url=url) from error


@contextmanager
def _connection_errors(url: str) -> Iterator[None]:
    """Turn what may happen to a connection into errors of ours."""
    paramiko = require("paramiko", extra="sftp", purpose=f"opening {url}")
    try:
        yield
    except PenstockError:
        raise
    except paramiko.BadHostKeyException as error:
        raise AccessDeniedError(
            f"the server of {url} has another host key than the one in known_hosts: another machine may be intercepting"
            " the connection. If the server was reinstalled, remove its old key with ssh-keygen -R and add the"
            " new one",
            url=url,
        ) from error
    except paramiko.AuthenticationException as error:
        raise _login_error(paramiko, url, error) from error
    except TimeoutError as error:
        raise StoreTimeoutError(f"{url}: the server did not answer in time", url=url) from error
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise StoreError(f"{url}: {str(error) or 'the connection was lost'}", url=url) from error


def _login_error(paramiko: Any, url: str, error: Exception) -> StoreError:
    tries = [attempt.result for attempt in getattr(error, "result", ())]
    broken = [result for result in tries if not isinstance(result, paramiko.AuthenticationException)]
    if broken:
        return StoreError(f"{url}: the connection was lost while logging in: {broken[0]}", url=url)
    return AccessDeniedError(
        f"{url}: the server refused all {len(tries)} ways to log in (key files, the keys of the agent, the"
        " password): name a key with the option key_filename or with COMPOSER_SFTP_KEY_FILE, or start an SSH"
        " agent",
        url=url,
    )
