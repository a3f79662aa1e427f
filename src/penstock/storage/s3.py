"""`s3://bucket/prefix`: Amazon S3 and everything that speaks its protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.storage.aws import connect_s3, find_credentials
from penstock.storage.object import Cloud, bucket_and_prefix, object_family
from penstock.storage.options import (
    CLOUD_NAMES,
    first_set,
    is_true,
    option_names,
    resolve_connection,
    take_options,
    without_none,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


# Every name that users know for an option: s3fs's, boto3's, obstore's, and ours.
_NAMES = option_names(
    "access_key_id key aws_access_key_id username",
    "secret_access_key secret aws_secret_access_key password",
    "session_token token aws_session_token",
    "region region_name",
    "profile profile_name",
    *("requester_pays", "acl", "virtual_hosted", "instance_credentials", *CLOUD_NAMES),
)
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


cloud = Cloud(
    connect=connect_s3,
    may_try_anonymous=lambda options: not options.get("anonymous") and not options.get("requester_pays"),
)
family = object_family(cloud, resolve_s3)
