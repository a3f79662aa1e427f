"""Azurite, the emulator of Azure blobs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.servers.process import find_program, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACCOUNT = "devstoreaccount1"
# The key that every Azurite has, from its documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class AzureServer:
    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.endpoint}

    def make_container(self, name: str, *, is_public: bool = False) -> None:
        sign_and_put(f"{self.endpoint}/{name}?restype=container", is_public=is_public)


@contextmanager
def run_azurite(folder: Path) -> Iterator[AzureServer]:
    port = free_port()
    command = [
        find_program("azurite-blob"),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", str(folder)),
        *("--skipApiVersionCheck", "--silent", "--disableTelemetry"),
    ]
    with running(command, port, folder):
        yield AzureServer(f"http://127.0.0.1:{port}/{ACCOUNT}")


def sign_and_put(url: str, *, is_public: bool) -> None:
    """Make a container: the one thing that obstore has no call for."""
    import base64
    import hashlib
    import hmac
    import urllib.request
    from email.utils import formatdate
    from urllib.parse import urlsplit

    path = urlsplit(url).path
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    if is_public:
        headers["x-ms-blob-public-access"] = "container"
    named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{named}/{ACCOUNT}{path}\nrestype:container"
    signature = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)) as response:
        assert response.status == 201
