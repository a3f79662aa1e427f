"""How the environment, profile files and options become settings of S3."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import AccessDeniedError, ConfigError
from penstock.storage.base import resolve_store
from penstock.storage.s3 import resolve_s3

if TYPE_CHECKING:
    from pathlib import Path

URL = "s3://bucket/path"
KEYS = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK"}
PAIR = {"access_key_id": "AK", "secret_access_key": "SK"}


def resolve(options: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> dict[str, Any]:
    return resolve_s3(URL, options or {}, {"HOME": "/nowhere", **(environ or {})})


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ({}, KEYS, {**PAIR, "region": "us-east-1"}),
        ({}, {**KEYS, "AWS_SESSION_TOKEN": "T"}, {**PAIR, "session_token": "T", "region": "us-east-1"}),
        ({}, {**KEYS, "AWS_DEFAULT_REGION": "eu-1"}, {**PAIR, "region": "eu-1"}),
        ({}, {**KEYS, "AWS_DEFAULT_REGION": "eu-1", "AWS_REGION": "eu-2"}, {**PAIR, "region": "eu-2"}),
        ({"key": "AK", "secret": "SK", "token": "T"}, {}, {**PAIR, "session_token": "T", "region": "us-east-1"}),
        ({"key": "AK", "secret": "SK"}, {"AWS_SESSION_TOKEN": "of others"}, {**PAIR, "region": "us-east-1"}),
        ({"key": "AK", "secret": "SK", "client_kwargs": {"region_name": "eu-1"}}, KEYS, {**PAIR, "region": "eu-1"}),
        (
            {"client_kwargs": {"endpoint_url": "http://h", "aws_access_key_id": "AK", "aws_secret_access_key": "SK"}},
            {},
            {**PAIR, "endpoint": "http://h", "region": "us-east-1"},
        ),
        ({"anon": True}, KEYS, {"anonymous": True, "region": "us-east-1"}),
        ({}, {}, {"anonymous": True, "region": "us-east-1"}),
        ({"instance_credentials": True}, {}, {"role": {}, "region": "us-east-1"}),
        (
            {},
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "arn"},
            {"role": {"web_identity_token_file": "/t", "role_arn": "arn"}, "region": "us-east-1"},
        ),
        (
            {},
            {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2"},
            {"role": {"container_credentials_relative_uri": "/v2"}, "region": "us-east-1"},
        ),
        ({}, {**KEYS, "S3_CANNED_ACL": "private"}, {**PAIR, "acl": "private", "region": "us-east-1"}),
        ({"requester_pays": True}, KEYS, {**PAIR, "requester_pays": True, "region": "us-east-1"}),
        (
            {},
            {**KEYS, "MOSAICML_STREAMING_AWS_REQUESTER_PAYS": "other, bucket"},
            {**PAIR, "requester_pays": True, "region": "us-east-1"},
        ),
        ({}, {**KEYS, "MOSAICML_STREAMING_AWS_REQUESTER_PAYS": "other"}, {**PAIR, "region": "us-east-1"}),
    ],
)
def test_sources(options: dict[str, Any], environ: dict[str, str], expected: dict[str, Any]) -> None:
    found = resolve(options, environ)
    assert found == expected
    assert json.loads(json.dumps(found)) == found


def test_the_order_of_endpoints() -> None:
    environ = {**KEYS, "AWS_ENDPOINT_URL": "http://c", "AWS_ENDPOINT_URL_S3": "http://b", "S3_ENDPOINT_URL": "http://a"}
    for expected in ("http://a", "http://b", "http://c"):
        assert resolve(environ=environ)["endpoint"] == expected
        del environ[next(name for name, value in environ.items() if value == expected)]
    assert resolve({"endpoint_url": "http://o"}, environ)["endpoint"] == "http://o"


def test_profiles(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = AK\naws_secret_access_key = SK\n"
        "[work]\naws_access_key_id = WK\naws_secret_access_key = WS\naws_session_token = WT\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[profile work]\nregion = eu-3\nendpoint_url = http://work\n[profile process]\ncredential_process = false\n"
    )
    home = {"HOME": str(tmp_path)}
    work = {
        "access_key_id": "WK",
        "secret_access_key": "WS",
        "session_token": "WT",
        "region": "eu-3",
        "endpoint": "http://work",
    }
    assert resolve(environ=home) == {**PAIR, "region": "us-east-1"}
    assert resolve(environ={**home, "AWS_PROFILE": "work"}) == work
    assert resolve({"profile": "work"}, {**home, **KEYS}) == work
    assert resolve(environ={**home, **KEYS, "AWS_PROFILE": "work"}) == {**PAIR, "region": "us-east-1"}
    files = {
        "AWS_CONFIG_FILE": str(tmp_path / ".aws" / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / ".aws" / "credentials"),
    }
    assert resolve({"profile": "work"}, files) == work
    with pytest.raises(ConfigError, match="there is no AWS profile 'play'"):
        resolve({"profile": "play"}, home)


def test_what_only_boto3_understands(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"Version": 1, "AccessKeyId": "PK", "SecretAccessKey": "PS", "SessionToken": "PT"}')
    (tmp_path / "config").write_text(f"[profile process]\ncredential_process = cat {keys}\nregion = eu-3\n")
    environ = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "process"}
    found = resolve(environ=environ)
    assert found["region"] == "eu-3"
    assert found["boto3"]["profile"] == "process"
    assert "PS" not in json.dumps(found)

    from penstock.storage.aws import credential_provider

    provider = credential_provider(found)
    assert provider is not None
    given = provider()
    assert (given["access_key_id"], given["secret_access_key"], given["token"]) == ("PK", "PS", "PT")
    # boto3 may renew keys as late as ten minutes before they expire.
    assert given["expires_at"] < datetime.now(timezone.utc) + timedelta(minutes=10)

    nowhere = str(tmp_path / "gone")
    with pytest.raises(AccessDeniedError, match="no longer finds"):
        credential_provider({"boto3": {"profile": None, "config_file": nowhere, "credentials_file": nowhere}})


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        ({"key": "AK"}, {}, "only one of the AWS access key and secret key"),
        ({}, {"AWS_SECRET_ACCESS_KEY": "SK"}, "only one of the AWS access key and secret key"),
        ({"keys": "AK"}, {}, r"s3 has no option 'keys' \(did you mean 'key'\?\)"),
        ({"key": "AK", "access_key_id": "BK", "secret": "SK"}, {}, "contradicts another name"),
        ({"anon": "maybe"}, {}, "anonymous='maybe' must be true or false"),
    ],
)
def test_mistakes(options: dict[str, Any], environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(options, environ)


def test_a_broken_profile_file_shows_no_line(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("hunter2\n")
    with pytest.raises(ConfigError) as caught:
        resolve(environ={"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_options_by_scheme() -> None:
    options = {"s3": {"key": "AK", "secret": "SK"}, "gs": {"token": "anon"}}
    assert resolve_store(URL, options, environ={}).options == {**PAIR, "region": "us-east-1"}
    assert resolve_store("gs://bucket", options, environ={}).options == {"anonymous": True}
    with pytest.raises(ConfigError, match=r"by scheme \(s3\) and partly not \(key\)"):
        resolve_store(URL, {"s3": {"key": "AK"}, "key": "AK"}, environ={})
    with pytest.raises(ConfigError, match="has no bucket: write s3://bucket/path"):
        resolve_store("s3:///path", environ={})


def test_resolving_imports_no_client() -> None:
    code = (
        "import sys; from penstock.storage.base import resolve_store, open_store;"
        "open_store(resolve_store('s3://b/x', {'key': 'a', 'secret': 'b'}, environ={}));"
        "assert not {'obstore', 'boto3', 'botocore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
