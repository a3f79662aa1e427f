"""`oci://bucket@namespace/prefix`: Oracle Cloud, through its S3-compatible door.

That door takes customer secret keys, which the console makes for a user; the key file of `~/.oci/config` signs another
protocol. Region and namespace are taken from wherever they are said.
"""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.storage.aws import connect_s3
from penstock.storage.base import shown_url
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
    from collections.abc import Mapping

    from penstock.storage.base import StoreSettings

_NAMES = option_names("access_key_id key", "secret_access_key secret", "namespace", "region", "config", *CLOUD_NAMES)


def resolve_oci(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather region, namespace and keys: options, then the environment, then `~/.oci/config`."""
    taken = take_options("oci", options, _NAMES)
    file = _config_file(taken.get("config"), environ)
    region = taken.get("region") or first_set(environ, "OCI_REGION", "OCI_CLI_REGION") or file.get("region")
    namespace = (
        taken.get("namespace")
        or bucket_and_prefix(url)[0].partition("@")[2]
        or first_set(environ, "OCI_NAMESPACE", "OCI_CLI_NAMESPACE")
        or file.get("namespace")
    )
    endpoint = taken.get("endpoint") or first_set(environ, "OCI_ENDPOINT_URL")
    if endpoint is None:
        if not (region and namespace):
            raise ConfigError(
                f"{shown_url(url)} does not say which region and namespace: write oci://bucket@namespace/path, and"
                " set OCI_REGION or the region in ~/.oci/config"
            )
        endpoint = f"https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"
    return without_none(
        {
            **_keys(taken, environ, file),
            "endpoint": endpoint,
            "region": region or "us-ashburn-1",
            **resolve_connection(endpoint, taken, environ),
        }
    )


def _keys(options: Mapping[str, Any], environ: Mapping[str, str], file: Mapping[str, str]) -> dict[str, Any]:
    if is_true("anon", options.get("anonymous", False)):
        return {"anonymous": True}
    key = options.get("access_key_id") or first_set(environ, "OCI_ACCESS_KEY_ID") or file.get("access_key_id")
    secret = (
        options.get("secret_access_key") or first_set(environ, "OCI_SECRET_ACCESS_KEY") or file.get("secret_access_key")
    )
    return key_pair("OCI", key, secret) or {"anonymous": True}


def _config_file(path: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the profile of an OCI config file; the usual file may be missing."""
    named = path or first_set(environ, "OCI_CONFIG_FILE", "OCI_CLI_CONFIG_FILE")
    file = Path(named or f"{environ.get('HOME', '~')}/.oci/config").expanduser()
    profile = first_set(environ, "OCI_CONFIG_PROFILE", "OCI_CLI_PROFILE") or "DEFAULT"
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(file.read_text())
        return dict(parser.defaults()) if profile == "DEFAULT" else dict(parser.items(profile))
    except FileNotFoundError:
        if named is None:
            return {}
        raise ConfigError(f"there is no OCI config file {file}") from None
    except (OSError, configparser.Error) as error:
        # The text of the error would show the line, which may hold a secret.
        raise ConfigError(f"cannot read profile {profile!r} in {file} ({type(error).__name__})") from None


def _place(settings: StoreSettings) -> tuple[str, str]:
    bucket, prefix = bucket_and_prefix(settings.url)
    return bucket.partition("@")[0], prefix


family = object_family(Cloud(place=_place, connect=connect_s3), resolve_oci)
