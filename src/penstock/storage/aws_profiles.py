"""The profile files of AWS: `~/.aws/credentials` and `~/.aws/config`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.storage.options import first_set, without_none

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    def has_keys(self) -> bool:
        """Return whether there is a pair of keys, and nothing that goes before it."""
        return "aws_access_key_id" in self.values and not self.needs_boto3

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
