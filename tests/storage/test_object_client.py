"""What errors of the client mean, and how much of what others sent is shown."""

from __future__ import annotations

import socket
import ssl
import threading
import traceback
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.servers.script import Answer, run_script

from penstock.errors import AccessDeniedError, RequestRefusedError
from penstock.storage.base import Store, open_store, resolve_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def open_bucket(scheme: str, server: str) -> Store:
    """Open a place on a server of this machine, as a web server or as S3."""
    if scheme == "http":
        return open_store(resolve_store(server, environ={}))
    options = {"key": "k", "secret": "s", "endpoint_url": server, "region": "us-east-1"}
    return open_store(resolve_store("s3://bucket", options, environ={}))


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("letters", [b"a", b"://a", b"a?"])
def test_an_answer_of_300_kb_ends_in_a_short_error(scheme: str, letters: bytes) -> None:
    """It used to freeze the process for minutes, without any other thread."""
    with run_script(lambda _: Answer(400, letters * (300_000 // len(letters)))) as server:
        with pytest.raises(RequestRefusedError, match="the server answered 400") as caught:
            open_bucket(scheme, server.url).read("x")
    assert len(str(caught.value)) < 100
    assert len("".join(traceback.format_exception(caught.value))) < 50_000


def test_clocks_that_differ_are_told_so() -> None:
    """It is not the credentials that must be checked."""
    body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>"
    with run_script(lambda _: Answer(403, body)) as server:
        with pytest.raises(AccessDeniedError, match="TooSkewed.. The clocks of this machine and of the st") as caught:
            open_bucket("s3", server.url).read("x")
    assert "credentials" not in str(caught.value)
    assert caught.value.facts["code"] == "RequestTimeTooSkewed"


@contextmanager
def encrypted(folder: Path, host: str) -> Iterator[str]:
    """Listen with a certificate of a host, which `folder / "trusted.pem"` vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "example")])
    begin = datetime.now(timezone.utc) - timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin + timedelta(days=9))
    signed = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False).sign(key, SHA256())
    (folder / "trusted.pem").write_bytes(signed.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(signed.public_bytes(Encoding.PEM) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):  # the client hangs up, and then the test does
            while True:
                connection, _ = listener.accept()
                with suppress(ssl.SSLError, OSError), connection:
                    context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("headers", [{}, {"X-Api-Key": "k"}])
@pytest.mark.parametrize(
    ("host", "trusts", "why"),
    [
        ("other.example", True, "is for another host name: check the host"),
        ("localhost", False, "is not trusted: pass verify= in storage_options"),
    ],
)
def test_what_is_wrong_with_a_certificate(
    tmp_path: Path, host: str, trusts: bool, why: str, headers: dict[str, str]
) -> None:
    """Only one that is not trusted is helped by `verify=`; and none is by trying again."""
    with encrypted(tmp_path, host) as url:
        options = {"headers": headers, **({"verify": str(tmp_path / "trusted.pem")} if trusts else {})}
        with pytest.raises(RequestRefusedError, match=f"/x: the certificate of the server {why}") as caught:
            open_store(resolve_store(url, options, environ={})).read("x")
    assert ("verify=" in str(caught.value)) == (not trusts)
