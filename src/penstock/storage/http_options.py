"""Options of every store that speaks HTTP: proxy and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.storage.options import first_set, without_none

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECTION_NAMES = {"verify": "verify", "proxy": "proxy"}


def resolve_connection(endpoint: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather proxy and certificates from options and environment."""
    is_plain = endpoint.startswith("http://")
    # Upper-case HTTP_PROXY is left alone: on a web server anybody may set it.
    names = ("http_proxy",) if is_plain else ("https_proxy", "HTTPS_PROXY")
    proxy = options.get("proxy") or first_set(environ, *names, "all_proxy", "ALL_PROXY")
    verify = options.get("verify", first_set(environ, "AWS_CA_BUNDLE", "SSL_CERT_FILE"))
    return without_none(
        {
            "proxy": proxy,
            "no_proxy": first_set(environ, "no_proxy", "NO_PROXY") if proxy else None,
            "verify": None if verify is True else verify,
        }
    )


def connection_config(endpoint: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return obstore's options for them."""
    verify = options.get("verify")
    return without_none(
        {
            "allow_http": endpoint.startswith("http://"),
            "allow_invalid_certificates": True if verify is False else None,
            "root_certificate": read_certificates(verify) if isinstance(verify, str) else None,
            "proxy_url": options.get("proxy"),
            "proxy_excludes": options.get("no_proxy"),
        }
    )


def read_certificates(path: str) -> bytes:
    """Read a file of certificates."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the certificates in {path}: {error.strerror}") from error
