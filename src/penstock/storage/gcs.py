"""`gs://bucket/prefix` and `gcs://…`: Google Cloud Storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.storage.aws import connect_s3
from penstock.storage.object import Cloud, bucket_and_prefix, object_family
from penstock.storage.options import (
    CLOUD_NAMES,
    first_set,
    is_true,
    key_pair,
    option_names,
    resolve_connection,
    take_options,
    without_none,
)

if TYPE_CHECKING:
    from penstock.storage.base import StoreSettings
    from penstock.storage.object_client import ClientTuning

_NAMES = option_names(
    "token service_account_key",
    "bearer_token access_token",
    "access_key_id key",
    "secret_access_key secret",
    "project",  # gcsfs wants it, we have no use for it
    *("instance_credentials", *CLOUD_NAMES),
)
_ENDPOINT = "https://storage.googleapis.com"
_FIRMWARE = Path("/sys/class/dmi/id")


def resolve_gcs(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather endpoint and credentials: options, HMAC keys, a service account, default credentials; else anonymous."""
    bucket_and_prefix(url)
    taken = take_options("gs", options, _NAMES)
    emulator = first_set(environ, "STORAGE_EMULATOR_HOST")
    if emulator is not None and "://" not in emulator:
        emulator = f"http://{emulator}"
    endpoint = taken.get("endpoint") or emulator
    return without_none(
        {
            **_credentials(taken, environ),
            "endpoint": endpoint,
            **resolve_connection(endpoint or _ENDPOINT, taken, environ),
        }
    )


def _credentials(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    token = options.get("token")
    if is_true("anon", options.get("anonymous", False)) or token == "anon":  # noqa: S105
        return {"anonymous": True}
    if "bearer_token" in options:
        return {"bearer_token": options["bearer_token"]}
    keys = (options.get("access_key_id"), options.get("secret_access_key"))
    if keys == (None, None) and token is None:
        keys = (first_set(environ, "GCS_KEY"), first_set(environ, "GCS_SECRET"))
    if any(keys):
        return key_pair("GCS", *keys)
    if isinstance(token, Mapping):
        return {"service_account_key": json.dumps(dict(token))}
    if is_true("instance_credentials", options.get("instance_credentials", False)):
        return {}
    if token not in (None, "cloud", "google_default"):
        return _from_file(str(token))
    return _default_credentials(environ, must_be_there=token is not None)


def _default_credentials(environ: Mapping[str, str], *, must_be_there: bool) -> dict[str, Any]:
    inline = first_set(environ, "GOOGLE_SERVICE_ACCOUNT_KEY")
    if inline:
        return {"service_account_key": inline}
    named = first_set(
        environ, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"
    )
    if named:
        return _from_file(named)
    folder = first_set(environ, "CLOUDSDK_CONFIG") or f"{environ.get('HOME', '~')}/.config/gcloud"
    usual = Path(folder).expanduser() / "application_default_credentials.json"
    if usual.is_file():
        return _from_file(str(usual))
    if must_be_there or (_is_at_google() and environ.get("NO_GCE_CHECK", "").lower() != "true"):
        return {}  # the client asks the machine for its own account
    return {"anonymous": True}


def _is_at_google() -> bool:
    """Return whether the firmware of this machine says that it is one of Google's; no network is asked."""
    for name in ("sys_vendor", "product_name", "board_vendor"):
        with suppress(OSError):  # not every system tells
            if "Google" in (_FIRMWARE / name).read_text():
                return True
    return False


def _from_file(path: str) -> dict[str, Any]:
    """Understand a credentials file; the key of a service account is carried along, as paths may not be."""
    try:
        text = Path(path).expanduser().read_text()
        kind = json.loads(text).get("type")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {path} as a Google credentials file ({type(error).__name__})") from None
    if kind == "service_account":
        return {"service_account_key": text}
    if kind == "authorized_user":
        return {"application_credentials": str(Path(path).expanduser().absolute())}
    raise ConfigError(
        f"{path} holds Google credentials of type {kind!r}, which penstock cannot use: use a service account, run"
        " `gcloud auth application-default login`, or pass bearer_token in storage_options"
    )


def connect_gcs(settings: StoreSettings, tuning: ClientTuning, bucket: str) -> Any:
    """Make the client of a bucket; HMAC keys are keys of Google's S3-compatible door."""
    from obstore.store import GCSStore

    options = settings.options
    endpoint = options.get("endpoint") or _ENDPOINT
    if "access_key_id" in options:
        return connect_s3(settings, tuning, bucket, endpoint=endpoint, region="auto")
    names = ("service_account_key", "application_credentials", "bearer_token")
    config: Any = {name: options[name] for name in names if name in options}
    if options.get("endpoint"):
        config["base_url"] = endpoint
    if tuning.is_anonymous or options.get("anonymous"):
        config = {name: value for name, value in config.items() if name == "base_url"} | {"skip_signature": True}
    return GCSStore(bucket, **tuning.config(endpoint, options), **config)


family = object_family(Cloud(connect=connect_gcs), resolve_gcs)
