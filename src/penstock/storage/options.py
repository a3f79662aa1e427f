"""What users call the options of a store, and what we make of it; proxy and certificates of those that speak HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, meant

if TYPE_CHECKING:
    from collections.abc import Iterable

CONNECTION_NAMES = ("verify", "proxy")
CLOUD_NAMES = ("anonymous anon skip_signature", "endpoint endpoint_url", *CONNECTION_NAMES)  # of every object store
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def own_options(scheme: str, options: Mapping[str, Any], schemes: Iterable[str]) -> dict[str, Any]:
    """Return the options that are meant for a scheme: those keyed by it, or all of them if they are flat."""
    by_scheme = set(options) & set(schemes)
    if not options or not all(isinstance(options[name], Mapping) for name in by_scheme):
        return dict(options)
    if by_scheme != set(options) and by_scheme:
        flat = ", ".join(sorted(set(options) - by_scheme))
        raise ConfigError(
            f"storage_options are partly grouped by scheme ({', '.join(sorted(by_scheme))}) and partly not"
            f" ({flat}): choose one of the two"
        )
    if not by_scheme:
        return dict(options)
    return dict(options.get(scheme, {}))


def option_names(*names: str) -> dict[str, str]:
    """Return our name for each that users know: of those between spaces, the first is ours."""
    return {name: each[0] for each in map(str.split, names) for name in each}


def take_options(store: str, options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return options under the one name that we use for each; `names` maps every accepted name to it.

    Unset ones (None) are left out. An unknown one is an error, never ignored: it may have been meant to protect.
    """
    taken: dict[str, Any] = {}
    for name, value in options.items():
        if name not in names:
            raise ConfigError(
                f"{store} has no option {name!r}{meant(name, names)}: use one of {', '.join(sorted(names))}"
            )
        ours = names[name]
        if value is not None:
            if taken.get(ours, value) != value:
                raise ConfigError(f"{store}: option {name!r} contradicts another name of the same option")
            taken[ours] = value
    return taken


def first_set(environ: Mapping[str, str], *names: str) -> str | None:
    """Return the first of these variables that is set and not empty."""
    return next((environ[name] for name in names if environ.get(name)), None)


def is_true(name: str, value: Any) -> bool:
    """Understand a switch as users write it in code and in the environment."""
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ConfigError(f"{name}={value!r} must be true or false")
    return text in _TRUE


def key_pair(whose: str, key: str | None, secret: str | None, token: str | None = None) -> dict[str, Any]:
    """Return a pair of keys as options, empty if there is none; one of the two alone is an error."""
    if bool(key) != bool(secret):
        raise ConfigError(f"only one of the {whose} access key and secret key is set: set both or neither")
    return without_none({"access_key_id": key, "secret_access_key": secret, "session_token": token}) if key else {}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is not set."""
    return {name: value for name, value in options.items() if value is not None}


def resolve_connection(endpoint: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather proxy and certificates from options and environment."""
    is_plain = endpoint.startswith("http://")
    # Upper-case HTTP_PROXY is left alone: on a web server any client may set it.
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
