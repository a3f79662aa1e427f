"""Where AWS credentials come from.

In this order: options, the environment, roles that the environment names, profile files with plain keys, whatever else
boto3 knows (SSO, roles of profiles, the machine's own role) if it is installed. Nobody found: requests go unsigned,
which is how public buckets are read. The metadata address of a machine is never asked unless boto3 found its role
there or the user said so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import AccessDeniedError, ConfigError
from penstock.extras import require
from penstock.storage.aws_profiles import Profile, read_profile
from penstock.storage.options import first_set, without_none

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Variables by which containers and pods name their role, and the client's settings for them.
_ROLES = {
    "AWS_WEB_IDENTITY_TOKEN_FILE": "web_identity_token_file",
    "AWS_ROLE_ARN": "role_arn",
    "AWS_ROLE_SESSION_NAME": "role_session_name",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container_credentials_relative_uri",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container_credentials_full_uri",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "container_authorization_token_file",
    "AWS_ENDPOINT_URL_STS": "sts_endpoint",
}
_ROLE_SIGNS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def find_credentials(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the client needs to sign its requests, or to leave them unsigned; JSON values only."""
    if options.get("anonymous"):
        return {"anonymous": True}
    keys = _pair(
        options.get("access_key_id"), options.get("secret_access_key"), options.get("session_token"), "the options"
    )
    if keys is not None:
        return keys
    if options.get("instance_credentials"):
        return {"role": {}}
    if "profile" not in options:
        found = _from_environment(environ)
        if found is not None:
            return found
    profile = read_profile(options.get("profile"), environ)
    if profile.has_keys:
        return profile.settings()
    if profile.needs_boto3:
        require("boto3", extra="aws", purpose=f"profile {profile.name!r}, which is not just a pair of keys,")
    return {**profile.place(), **_from_boto3(profile)}


def credential_provider(options: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return a function that the client asks for keys, also again when they expire; None: the client finds its role."""
    if "role" in options:
        return None
    if "boto3" in options:
        return _boto3_provider(_session(options["boto3"]))
    return lambda: {
        "access_key_id": options["access_key_id"],
        "secret_access_key": options["secret_access_key"],
        "token": options.get("session_token"),
        "expires_at": None,
    }


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any] | None:
    keys = _pair(
        first_set(environ, "AWS_ACCESS_KEY_ID"),
        first_set(environ, "AWS_SECRET_ACCESS_KEY"),
        first_set(environ, "AWS_SESSION_TOKEN"),
        "the environment variables",
    )
    if keys is None and first_set(environ, *_ROLE_SIGNS):
        return {"role": {ours: environ[name] for name, ours in _ROLES.items() if environ.get(name)}}
    return keys


def _pair(key: str | None, secret: str | None, token: str | None, where: str) -> dict[str, Any] | None:
    if key is None and secret is None:
        return None
    if key is None or secret is None:
        raise ConfigError(f"{where} have only one of the AWS access key and secret key: set both or neither")
    return without_none({"access_key_id": key, "secret_access_key": secret, "session_token": token})


def _from_boto3(profile: Profile) -> dict[str, Any]:
    """Let boto3 look, if it is there; it looks again in the process that opens the store, as keys expire."""
    place = {"profile": profile.name, "config_file": profile.config_file, "credentials_file": profile.credentials_file}
    try:
        # Naming the default profile would make it an error that there is none.
        found = _session({**place, "profile": None if profile.name == "default" else profile.name}).get_credentials()
    except ImportError:
        found = None
    except Exception as error:  # of any of the many sources that botocore asks
        raise AccessDeniedError(f"AWS profile {profile.name!r} gives no credentials: {error}") from error
    if found is None:
        return {"anonymous": True}
    if found.method == "iam-role":
        return {"role": {}}
    return {"boto3": place}


def _session(place: Mapping[str, Any]) -> Any:
    from botocore.session import Session

    session = Session(profile=place["profile"])
    session.set_config_variable("config_file", place["config_file"])
    session.set_config_variable("credentials_file", place["credentials_file"])
    return session


def _boto3_provider(session: Any) -> Callable[[], Any]:
    from datetime import timedelta

    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        # boto3 renews keys ten minutes before they expire: whoever kept them for longer would sign with dead ones.
        return Boto3CredentialProvider(session, ttl=timedelta(minutes=5))
    except ValueError as error:
        raise AccessDeniedError(
            "boto3 no longer finds the AWS credentials that it found at first: log in again"
        ) from error
