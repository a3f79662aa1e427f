"""Who logs in to an SFTP server and how: from the URL, the options, the environment and the user's SSH files."""

from __future__ import annotations

import getpass
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import AccessDeniedError, ConfigError
from penstock.extras import require
from penstock.storage.base import shown_url, split_url
from penstock.storage.options import first_set, take_options, without_none
from penstock.storage.url_names import unescaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
_OPTIONS = (*_ENVIRONMENT, "port")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftpLogin:
    """All that it takes to reach a server, with nothing left to the environment of whoever connects."""

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
    given = take_options("an SFTP store", options, {name: name for name in _OPTIONS})
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    in_url = _from_url(url)
    config = _from_ssh_config(home, in_url["host"])
    login = {**config, **_from_environment(environ), **given, **in_url}
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


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return without_none({option: first_set(environ, *names) for option, names in _ENVIRONMENT.items()})


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
    """Return who is unknown, and how to make it known: whoever answers there could be anybody."""

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
    """Lend the keys of the agent of whoever asked for this store, which need not be that of this process."""

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
