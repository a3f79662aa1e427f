"""Clients of Amazon S3 and all that speaks its protocol, and where their credentials come from.

In this order: options, the environment, roles that the environment names, profile files with plain keys, whatever else
boto3 knows (SSO, roles of profiles, the machine's own role) if it is installed. None found: requests go unsigned,
which is how public buckets are read. The metadata address of a machine is never asked unless boto3 found its role
there or the user said so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import AccessDeniedError, ConfigError
from penstock.extras import require
from penstock.storage.options import first_set, key_pair, without_none

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.storage.base import StoreSettings
    from penstock.storage.object_client import ClientTuning

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
# What makes a profile more than a pair of keys.
_BEYOND_KEYS = ("role_arn", "credential_process", "sso_session", "sso_start_url", "web_identity_token_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One profile: its name, the files that it is looked up in, and what they say."""

    name: str
    config_file: str
    credentials_file: str
    values: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def needs_boto3(self) -> bool:
        """Return whether finding credentials takes more than reading them."""
        return any(name in self.values for name in _BEYOND_KEYS)

    def settings(self) -> dict[str, Any]:
        """Return keys and place."""
        return without_none(
            {
                "access_key_id": self.values["aws_access_key_id"],
                "secret_access_key": self.values.get("aws_secret_access_key"),
                "session_token": self.values.get("aws_session_token"),
                **self.place(),
            }
        )

    def place(self) -> dict[str, Any]:
        """Return what a profile says about where the store is."""
        return without_none({"region": self.values.get("region"), "endpoint": self.values.get("endpoint_url")})


def read_profile(name: str | None, environ: Mapping[str, str]) -> Profile:
    """Read the profile that is asked for, or that the environment names; only the default one may be missing."""
    asked = name or first_set(environ, "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    home = environ.get("HOME", "~")
    config = first_set(environ, "AWS_CONFIG_FILE") or f"{home}/.aws/config"
    credentials = first_set(environ, "AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials"
    files = {"config_file": str(Path(config).expanduser()), "credentials_file": str(Path(credentials).expanduser())}
    values = merge_profile(asked or "default", _read(files["config_file"]), _read(files["credentials_file"]))
    if values is None and asked:
        raise ConfigError(
            f"there is no AWS profile {asked!r} in {config} or {credentials}: run `aws configure` to make one"
        )
    return Profile(name=asked or "default", values=values or {}, **files)


def merge_profile(name: str, config: str, credentials: str) -> dict[str, str] | None:
    """Return what two profile files say about a name; keys in the credentials file win. None: it is in neither."""
    if not config and not credentials:
        return None
    import configparser  # takes a while to load, and most machines in a cloud have no such files

    found = None
    for text, section in ((config, name if name == "default" else f"profile {name}"), (credentials, name)):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text)
        except configparser.Error as error:
            # Its own text would show the line, which may hold a secret.
            raise ConfigError(f"an AWS profile file is not a valid INI file ({type(error).__name__})") from None
        if parser.has_section(section):
            found = {**(found or {}), **dict(parser.items(section))}
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"cannot read AWS profiles from {path}: {error.strerror}") from error


def find_credentials(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the client needs to sign its requests, or to leave them unsigned; JSON values only."""
    if options.get("anonymous"):
        return {"anonymous": True}
    keys = key_pair("AWS", options.get("access_key_id"), options.get("secret_access_key"), options.get("session_token"))
    if keys:
        return keys
    if options.get("instance_credentials"):
        return {"role": {}}
    if "profile" not in options:
        found = _from_environment(environ)
        if found:
            return found
    profile = read_profile(options.get("profile"), environ)
    if "aws_access_key_id" in profile.values and not profile.needs_boto3:
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


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    keys = key_pair("AWS", *(first_set(environ, name) for name in names))
    if not keys and first_set(environ, *_ROLE_SIGNS):
        return {"role": {ours: environ[name] for name, ours in _ROLES.items() if environ.get(name)}}
    return keys


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
        # boto3 renews keys ten minutes before they expire: kept for longer, they would be dead.
        return Boto3CredentialProvider(session, ttl=timedelta(minutes=5))
    except ValueError as error:
        raise AccessDeniedError(
            "boto3 no longer finds the AWS credentials that it found at first: log in again"
        ) from error


# --- Clients --------------------------------------------------------------------------------------------------


def connect_s3(
    settings: StoreSettings,
    tuning: ClientTuning,
    bucket: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
) -> Any:
    """Make the client of a bucket, at AWS or wherever the settings say."""
    from obstore.store import S3Store

    options = settings.options
    region = region or options["region"]
    endpoint = (
        endpoint
        or options.get("endpoint")
        or (f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}")
    )
    headers = {"x-amz-acl": options["acl"]} if tuning.writes and options.get("acl") else {}
    is_anonymous = bool(tuning.is_anonymous or options.get("anonymous"))
    signing: Any = {}
    if not is_anonymous:
        provider = credential_provider(options)
        signing = options["role"] if provider is None else {"credential_provider": provider}
    return S3Store(
        bucket,
        # All is said that the client might else look up in the environment of whatever process this is.
        endpoint=endpoint,
        region=region,
        skip_signature=is_anonymous,
        request_payer=bool(options.get("requester_pays")),
        virtual_hosted_style_request=bool(options.get("virtual_hosted")),
        **tuning.config(endpoint, options, headers),
        **signing,
    )
