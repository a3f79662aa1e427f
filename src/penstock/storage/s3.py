"""`s3://bucket/prefix`: Amazon S3 and everything that speaks its protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.storage.aws import credential_provider, find_credentials
from penstock.storage.object import Cloud, bucket_and_prefix, object_family
from penstock.storage.options import (
    CONNECTION_NAMES,
    connection_config,
    first_set,
    is_true,
    resolve_connection,
    take_options,
    without_none,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.base import StoreSettings
    from penstock.storage.object_client import ClientTuning

# Every name that users know for an option: s3fs's, boto3's, obstore's, and ours.
_NAMES = {
    "key": "access_key_id",
    "access_key_id": "access_key_id",
    "aws_access_key_id": "access_key_id",
    "username": "access_key_id",
    "secret": "secret_access_key",
    "secret_access_key": "secret_access_key",
    "aws_secret_access_key": "secret_access_key",
    "password": "secret_access_key",
    "token": "session_token",
    "session_token": "session_token",
    "aws_session_token": "session_token",
    "anon": "anonymous",
    "anonymous": "anonymous",
    "skip_signature": "anonymous",
    "endpoint_url": "endpoint",
    "endpoint": "endpoint",
    "region": "region",
    "region_name": "region",
    "profile": "profile",
    "profile_name": "profile",
    "requester_pays": "requester_pays",
    "acl": "acl",
    "virtual_hosted": "virtual_hosted",
    "instance_credentials": "instance_credentials",
    **CONNECTION_NAMES,
}
_SWITCHES = ("anonymous", "requester_pays", "virtual_hosted", "instance_credentials")


def resolve_s3(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Gather endpoint, region and credentials: what the user gave first, then the environment, then profile files."""
    bucket_and_prefix(url)
    nested = options.get("client_kwargs") or {}
    taken = take_options("s3", {**{k: v for k, v in options.items() if k != "client_kwargs"}, **nested}, _NAMES)
    for switch in _SWITCHES:
        if switch in taken:
            taken[switch] = is_true(switch, taken[switch])
    if "requester_pays" not in taken:
        buckets = environ.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(",")
        taken["requester_pays"] = bucket_and_prefix(url)[0] in [bucket.strip() for bucket in buckets]
    found = find_credentials(taken, environ)
    endpoint = (
        taken.get("endpoint")
        or first_set(environ, "S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        or found.pop("endpoint", None)
    )
    region = taken.get("region") or first_set(environ, "AWS_REGION", "AWS_DEFAULT_REGION") or found.pop("region", None)
    return without_none(
        {
            "acl": taken.get("acl") or first_set(environ, "S3_CANNED_ACL"),
            "requester_pays": taken["requester_pays"] or None,
            "virtual_hosted": taken.get("virtual_hosted"),
            **found,
            "endpoint": endpoint,
            "region": region or "us-east-1",
            **resolve_connection(endpoint or "https://", taken, environ),
        }
    )


def connect_s3(
    settings: StoreSettings,
    tuning: ClientTuning,
    *,
    bucket: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
) -> Any:
    """Make the client of a bucket, at AWS or wherever the settings say."""
    from obstore.store import S3Store

    options = settings.options
    region = region or options["region"]
    endpoint = endpoint or options.get("endpoint") or _aws_endpoint(region)
    headers = {"x-amz-acl": options["acl"]} if tuning.writes and options.get("acl") else {}
    is_anonymous = bool(tuning.is_anonymous or options.get("anonymous"))
    signing: Any = {}
    if not is_anonymous:
        provider = credential_provider(options)
        signing = options["role"] if provider is None else {"credential_provider": provider}
    return S3Store(
        bucket or bucket_and_prefix(settings.url)[0],
        # All is said that the client might else look up in the environment of whatever process this is.
        endpoint=endpoint,
        region=region,
        skip_signature=is_anonymous,
        request_payer=bool(options.get("requester_pays")),
        virtual_hosted_style_request=bool(options.get("virtual_hosted")),
        client_options=tuning.client_options(default_headers=headers, **connection_config(endpoint, options)),
        retry_config=tuning.retry_config(),
        **signing,
    )


def _aws_endpoint(region: str) -> str:
    return f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


cloud = Cloud(
    connect=connect_s3,
    may_try_anonymous=lambda options: not options.get("anonymous") and not options.get("requester_pays"),
)
family = object_family(cloud, resolve_s3)
