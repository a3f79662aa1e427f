"""Two emulators of S3."""

from __future__ import annotations

import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.servers.process import find_program, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class S3Server:
    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        return {"key": "test-key", "secret": "test-secret", "endpoint_url": self.endpoint, "region": "us-east-1"}

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT", headers=_SIGNED)
        with urllib.request.urlopen(request) as response:
            assert response.status == 200


# Emulators look at the form of a signature only.
_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test-key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host,"
    " Signature=0"
}


@contextmanager
def run_moto(folder: Path) -> Iterator[S3Server]:
    port = free_port()
    with running([find_program("moto_server"), "-H", "127.0.0.1", "-p", str(port)], port, folder):
        yield S3Server(f"http://127.0.0.1:{port}")


@contextmanager
def run_ministack(folder: Path) -> Iterator[S3Server]:
    port = free_port()
    environ = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    with running([find_program("ministack")], port, folder, environ=environ):
        yield S3Server(f"http://127.0.0.1:{port}")
