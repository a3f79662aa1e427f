"""Where AWS credentials come from: options, environment, profile files; else nobody in particular."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.storage.options import first_set, without_none

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_credentials(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Give what the client needs to sign its requests, or to leave them unsigned."""
    if options.get("anonymous"):
        return {"anonymous": True}
    keys = _pair(
        options.get("access_key_id"), options.get("secret_access_key"), options.get("session_token"), "the options"
    )
    if keys is None and "profile" not in options:
        keys = _pair(
            first_set(environ, "AWS_ACCESS_KEY_ID"),
            first_set(environ, "AWS_SECRET_ACCESS_KEY"),
            first_set(environ, "AWS_SESSION_TOKEN"),
            "the environment",
        )
    return keys or {"anonymous": True}


def _pair(key: str | None, secret: str | None, token: str | None, where: str) -> dict[str, Any] | None:
    if key is None and secret is None:
        return None
    if key is None or secret is None:
        raise ConfigError(f"{where} hold only one of access key and secret key: give both, or none")
    return without_none({"access_key_id": key, "secret_access_key": secret, "session_token": token})
