"""`az://`, `azure://`, `azure-dl://container/prefix` and `abfs[s]://container@account.host/prefix`: Azure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import ConfigError
from penstock.storage.base import shown_url
from penstock.storage.object import Cloud, bucket_and_prefix, object_family
from penstock.storage.options import (
    CLOUD_NAMES,
    CONNECTION_NAMES,
    first_set,
    is_true,
    option_names,
    resolve_connection,
    take_options,
    without_none,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import StoreSettings
    from penstock.storage.object_client import ClientTuning

_NAMES = option_names(
    "sas_key sas_token",
    "token bearer_token",
    "endpoint account_url",
    *("account_name", "account_key", "credential", "connection_string", "tenant_id", "client_id", "client_secret"),
    *("use_azure_cli", "instance_credentials", *CLOUD_NAMES),
)
_VARIABLES = {
    "account_name": ("AZURE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
    "account_key": (
        "AZURE_ACCOUNT_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_KEY",
    ),
    "sas_key": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    "connection_string": ("AZURE_STORAGE_CONNECTION_STRING",),
    "tenant_id": ("AZURE_TENANT_ID", "AZURE_STORAGE_TENANT_ID"),
    "client_id": ("AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_ID"),
    "client_secret": ("AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET"),
    "federated_token_file": ("AZURE_FEDERATED_TOKEN_FILE",),
    "authority_host": ("AZURE_AUTHORITY_HOST",),
    "msi_endpoint": ("IDENTITY_ENDPOINT", "MSI_ENDPOINT"),
    "endpoint": ("AZURE_STORAGE_ENDPOINT",),
}
_PROOFS = ("account_key", "sas_key", "token", "client_secret", "federated_token_file", "msi_endpoint")


def resolve_azure(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather account, endpoint and proof of identity: the URL and the options first, then the environment."""
    _, account, _ = _split(url)
    taken = _understood(take_options("az", options, _NAMES))
    if account:
        taken["account_name"] = account
    has_proof = any(name in taken for name in _PROOFS) or any(
        taken.get(name) for name in ("anonymous", "use_azure_cli", "instance_credentials")
    )
    for name, variables in _VARIABLES.items():
        if name not in taken and not (has_proof and name in (*_PROOFS, "connection_string")):
            value = first_set(environ, *variables)
            if value is not None:
                taken[name] = value
    taken = _understood(taken)
    if "account_name" not in taken:
        raise ConfigError(
            f"{shown_url(url)} does not say which storage account: set AZURE_ACCOUNT_NAME, pass account_name in"
            " storage_options, or write abfss://container@account.dfs.core.windows.net/path"
        )
    has_identity = taken.pop("instance_credentials", False) or any(name in taken for name in _PROOFS)
    if not has_identity and not taken.get("use_azure_cli"):
        taken["anonymous"] = True
    endpoint = taken.get("endpoint") or f"https://{taken['account_name']}.blob.core.windows.net"
    connection = resolve_connection(endpoint, taken, environ)
    return {
        **without_none({name: value for name, value in taken.items() if name not in CONNECTION_NAMES}),
        **connection,
    }


def _understood(options: dict[str, Any]) -> dict[str, Any]:
    """Replace options that stand for others by these."""
    options = dict(options)
    for switch in ("anonymous", "use_azure_cli", "instance_credentials"):
        if switch in options and not is_true(switch, options[switch]):
            del options[switch]
    credential = options.pop("credential", None)
    if credential is not None:
        options["sas_key" if "sig=" in str(credential) else "account_key"] = str(credential)
    text = options.pop("connection_string", None)
    return {**parse_connection_string(text), **options} if text else options


def parse_connection_string(text: str) -> dict[str, str]:
    """Understand `AccountName=…;AccountKey=…;…`."""
    pairs = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    known = {
        "account_name": pairs.get("AccountName"),
        "account_key": pairs.get("AccountKey"),
        "sas_key": pairs.get("SharedAccessSignature"),
        "endpoint": pairs.get("BlobEndpoint"),
    }
    if not any(known.values()):
        raise ConfigError("the Azure connection string names no account: copy the whole string from the portal")
    if known["endpoint"] and not known["account_name"]:
        known["account_name"] = (urlsplit(known["endpoint"]).hostname or "").partition(".")[0]
    return without_none(known)


def _split(url: str) -> tuple[str, str | None, str]:
    """Return container, account if the URL names it, and prefix."""
    place, prefix = bucket_and_prefix(url)
    container, _, host = place.partition("@")
    if not container:
        raise ConfigError(f"{shown_url(url)!r} has no container")
    return container, host.partition(".")[0] or None, prefix


def _place(settings: StoreSettings) -> tuple[str, str]:
    container, _, prefix = _split(settings.url)
    return container, prefix


def connect_azure(settings: StoreSettings, tuning: ClientTuning, container: str) -> Any:
    """Make the client of a container."""
    from obstore.store import AzureStore

    options = settings.options
    endpoint = options.get("endpoint") or f"https://{options['account_name']}.blob.core.windows.net"
    own = ("proxy", "no_proxy", "verify", "anonymous", "endpoint")
    config: Any = {name: value for name, value in options.items() if name not in own}
    if tuning.is_anonymous or options.get("anonymous"):
        config = {"account_name": options["account_name"], "skip_signature": True}
    return AzureStore(container, endpoint=endpoint, **tuning.config(endpoint, options), **config)


family = object_family(Cloud(place=_place, connect=connect_azure), resolve_azure)
