"""Files of a Databricks workspace: `dbfs:/Volumes/catalog/schema/volume/path`, and `dbfs:/path` of the older DBFS."""

from __future__ import annotations

import posixpath
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import ConfigError, ObjectNotFoundError
from penstock.files import PART_SUFFIX, open_file
from penstock.storage.base import ObjectInfo, StoreFamily, check_key, shown_url, whole_seconds
from penstock.storage.databricks_api import DbfsFiles, VolumeFiles, get_client, nothing, translated_errors
from penstock.storage.options import take_options
from penstock.storage.retry import RetryHooks, RetryPolicy, retrying
from penstock.storage.streams import ReadsBodies, ResponseBody

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from penstock.storage.databricks_api import FileApi, FileStatus
    from penstock.types import Span

T = TypeVar("T")

# Options by the SDK's own names, and the variables that it takes them from.
_ENVIRONMENT = {
    "host": "DATABRICKS_HOST",
    "token": "DATABRICKS_TOKEN",
    "profile": "DATABRICKS_CONFIG_PROFILE",
    "config_file": "DATABRICKS_CONFIG_FILE",
    "client_id": "DATABRICKS_CLIENT_ID",
    "client_secret": "DATABRICKS_CLIENT_SECRET",
    "username": "DATABRICKS_USERNAME",
    "password": "DATABRICKS_PASSWORD",
    "auth_type": "DATABRICKS_AUTH_TYPE",
    "azure_workspace_resource_id": "DATABRICKS_AZURE_RESOURCE_ID",
    "azure_client_id": "ARM_CLIENT_ID",
    "azure_client_secret": "ARM_CLIENT_SECRET",
    "azure_tenant_id": "ARM_TENANT_ID",
}


@dataclass(frozen=True, slots=True)
class DatabricksStore(ReadsBodies):
    """The files below a folder of a workspace, which its login may read."""

    root: str
    login: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hooks: RetryHooks = field(default_factory=RetryHooks, repr=False, compare=False)

    def stat(self, key: str) -> ObjectInfo:
        """Describe a file."""
        path = self._path(key)
        return self._ask(path, lambda: _describe(key, self._api().status(path)))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files whose paths below the folder begin with a prefix, sorted."""
        found = self._ask(self.root, lambda: self._walk(prefix))
        return iter(sorted(found, key=lambda info: info.key))

    def upload(self, path: Path, key: str) -> None:
        """Put a file into the workspace."""
        target = self._path(key)

        def put() -> None:
            with open_file(path) as file:
                self._api().put(file, target)

        self._ask(target, put)

    def delete(self, key: str) -> None:
        """Remove a file."""
        path = self._path(key)
        self._ask(path, lambda: self._api().delete(path))

    def _path(self, key: str) -> str:
        return posixpath.join(self.root, check_key(key))

    def _api(self) -> FileApi:
        client = get_client(self.login, self.retry.stall_s)
        return VolumeFiles(client) if self.root.startswith("/Volumes/") else DbfsFiles(client)

    def _ask(self, path: str, action: Callable[[], T]) -> T:
        def attempt() -> T:
            with translated_errors(f"dbfs:{path}"):
                return action()

        return retrying(attempt, self.retry, self.hooks, f"dbfs:{path}")

    @contextmanager
    def _open(self, key: str, span: Span) -> Iterator[ResponseBody]:
        path = self._path(key)
        with translated_errors(f"dbfs:{path}"):
            api = self._api()
            status, chunks = api.read(path, span) if len(span) else (api.status(path), nothing())
            with closing(chunks):
                yield ResponseBody(_describe(key, status), chunks)

    def _walk(self, prefix: str) -> builtins.list[ObjectInfo]:
        """Visit the folders that may hold keys with this prefix."""
        api = self._api()
        found = []
        folders = [""]
        while folders:
            folder = folders.pop()
            for name, status in self._entries(api, folder):
                key = f"{folder}{name}"
                if status is None:
                    below = f"{key}/"
                    folders += [below] if below.startswith(prefix) or prefix.startswith(below) else []
                elif key.startswith(prefix) and not key.endswith(PART_SUFFIX):
                    found.append(_describe(key, status))
        return found

    def _entries(self, api: FileApi, folder: str) -> builtins.list[tuple[str, FileStatus | None]]:
        """List a folder; one that is not there has no entries, as the root before the first upload."""
        path = posixpath.join(self.root, folder).rstrip("/") or "/"
        try:
            with translated_errors(f"dbfs:{path}"):
                return [*api.entries(path)]
        except ObjectNotFoundError:
            return []


def _describe(key: str, status: FileStatus) -> ObjectInfo:
    return ObjectInfo(key, status.num_bytes, status.etag, whole_seconds(status.changed_ms / 1000))


def root_of(url: str) -> str:
    """Return the absolute path that a URL names."""
    root = "/" + url.partition(":")[2].strip("/")
    parts = root.split("/")
    if any(part in (".", "..") for part in parts) or "" in parts[1:-1]:
        raise ConfigError(f"{shown_url(url)} is not a path in a workspace")
    if parts[1] == "Volumes" and len(parts) < 5:
        raise ConfigError(f"{shown_url(url)} names no volume: write dbfs:/Volumes/catalog/schema/volume/path")
    return root


def resolve_databricks(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Find the login: what the user gave, or else what the SDK's own variables say.

    They are not mixed: the SDK refuses a token of the environment beside a client of the options.
    """
    root_of(url)
    taken = take_options("dbfs", options, {name: name for name in _ENVIRONMENT})
    if taken:
        return taken
    return {name: environ[variable] for name, variable in _ENVIRONMENT.items() if environ.get(variable)}


family = StoreFamily(
    open=lambda settings, retry, hooks: DatabricksStore(root_of(settings.url), settings.options, retry, hooks),
    resolve=resolve_databricks,
)
