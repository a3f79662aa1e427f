"""A real sshd on a free port of this machine, with keys of its own and no others."""

from __future__ import annotations

import getpass
import os
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers.process import find_program, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/pid
AuthorizedKeysFile {folder}/user_key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
Subsystem sftp internal-sftp {flags}
"""


@dataclass(frozen=True)
class SshServer:
    folder: Path
    port: int
    username: str

    @property
    def options(self) -> dict[str, Any]:
        """What a client needs: no file of the user who runs the tests is looked at."""
        return {
            "key_filename": [str(self.folder / "user_key")],
            "known_hosts": [str(self.folder / "known_hosts")],
        }

    def url(self, path: Path | str, port: int | None = None) -> str:
        return f"sftp://{self.username}@127.0.0.1:{port or self.port}{path}"

    def know(self, port: int) -> None:
        """Let clients know the server at another port too, where something forwards to it."""
        with (self.folder / "known_hosts").open("a") as file:
            file.write(host_line(self.folder, port))


def host_line(folder: Path, port: int) -> str:
    return f"[127.0.0.1]:{port} {' '.join((folder / 'host_key.pub').read_text().split()[:2])}\n"


def make_key(path: Path, passphrase: str = "") -> None:
    run = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(run, check=True, stdin=subprocess.DEVNULL)


@contextmanager
def running_sshd(folder: Path, *, read_only: bool = False) -> Iterator[SshServer]:
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it will not start as root without
    for name in ("host_key", "user_key"):
        make_key(folder / name)
    port = free_port()
    flags = "-R" if read_only else ""
    (folder / "sshd_config").write_text(CONFIG.format(port=port, folder=folder, flags=flags))
    (folder / "known_hosts").write_text(host_line(folder, port))
    command = [find_program("sshd"), "-D", "-e", "-f", str(folder / "sshd_config")]
    with running(command, port, folder):
        yield SshServer(folder, port, getpass.getuser())


@contextmanager
def running_agent(key: Path) -> Iterator[str]:
    """Run an ssh-agent that holds a key, and give the name of its socket."""
    with tempfile.TemporaryDirectory(prefix="agent") as folder:  # names of sockets must be short
        name = f"{folder}/socket"
        with subprocess.Popen(["ssh-agent", "-D", "-a", name], stdout=subprocess.DEVNULL) as agent:
            try:
                _add_key(key, name)
                yield name
            finally:
                agent.terminate()


def _add_key(key: Path, name: str) -> None:
    for _ in range(200):
        if Path(name).exists():
            break
        time.sleep(0.02)
    run = ["ssh-add", "-q", str(key)]
    subprocess.run(run, check=True, stdin=subprocess.DEVNULL, env={**os.environ, "SSH_AUTH_SOCK": name})
