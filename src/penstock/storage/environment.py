"""The environment of a process that opens stores for others: their settings say all, so nothing else may."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "GCS_", "S3_", "OCI_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_KEPT = ("AWS_EC2_METADATA_DISABLED",)


def neutral_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out what network clients would read from the environment behind the back of `StoreSettings`."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name.startswith(_PREFIXES) or name.lower() in _PROXIES)
    }
