"""Files of a Databricks workspace, through databricks-sdk: volumes of Unity Catalog, and the older DBFS.

They are `dbfs:/Volumes/catalog/schema/volume/path` and `dbfs:/path`.
"""

from __future__ import annotations

import base64
import posixpath
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias
from urllib.parse import quote

from penstock._version import __version__
from penstock.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.extras import require
from penstock.files import open_file
from penstock.processes import PerProcess
from penstock.storage.base import ObjectInfo, StoreFamily, check_key, redacted, safe_cause, shown_url, whole_seconds
from penstock.storage.options import option_names, take_options
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.storage.streams import ReadsBodies, ResponseBody, hidden_part, total_bytes

if TYPE_CHECKING:
    import builtins
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

    from penstock.types import Span

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
_CHUNK_BYTES = 1 << 16
_DBFS_READ_BYTES = 1 << 20  # the most that DBFS gives or takes at once


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What a file is: its size, and when it was changed, in milliseconds."""

    num_bytes: int
    changed_ms: int

    def info(self, key: str) -> ObjectInfo:
        """Describe it with a tag of the version. Whole seconds: that is what all answers tell."""
        tag = f"{self.changed_ms // 1000:x}-{self.num_bytes:x}"
        return ObjectInfo(key, self.num_bytes, tag, whole_seconds(self.changed_ms / 1000))


class VolumeFiles:
    """Files of Unity Catalog volumes, `/Volumes/catalog/schema/volume/…`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def status(self, path: str) -> FileStatus:
        """Ask for the headers of a file."""
        found = self._client.files.get_metadata(path)
        return FileStatus(int(found.content_length), _milliseconds(found.last_modified))

    def read(self, path: str, span: Span) -> tuple[FileStatus, Generator[bytes, None, None]]:
        """Read by the REST call behind the SDK's own download, which takes no ranges."""
        errors = _errors()
        try:
            found = self._client.api_client.do(
                "GET",
                f"/api/2.0/fs/files{quote(path)}",
                headers={"Accept": "application/octet-stream", "Range": f"bytes={span.begin}-{span.end - 1}"},
                response_headers=["content-length", "content-range", "last-modified"],
                raw=True,
            )
        except (errors.NotFound, errors.PermissionDenied, errors.Unauthenticated):
            raise
        except errors.DatabricksError:
            status = self.status(path)
            if status.num_bytes > span.begin:
                raise
            return status, nothing()  # it was refused because the file ends before the range begins
        total = total_bytes(found["content-range"])
        if total is None:
            found["contents"].close()
            raise RequestRefusedError(f"{path}: the workspace cannot send ranges of files")
        status = FileStatus(total, _milliseconds(found["last-modified"]))
        return status, _stream(found["contents"])

    def put(self, file: BinaryIO, path: str) -> None:
        """Upload, in parts if it is large; the file appears when all is there."""
        self._client.files.create_directory(posixpath.dirname(path))
        self._client.files.upload(path, file, overwrite=True)

    def entries(self, folder: str) -> Iterator[tuple[str, FileStatus | None]]:
        """List a folder, page by page."""
        for entry in self._client.files.list_directory_contents(folder):
            if entry.is_directory:
                yield entry.name, None
            else:
                yield entry.name, FileStatus(entry.file_size, entry.last_modified)

    def delete(self, path: str) -> None:
        """Remove a file."""
        self._client.files.delete(path)


class DbfsFiles:
    """Files of the older DBFS, which comes and goes in blocks of at most 1 MB: slow."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def status(self, path: str) -> FileStatus:
        """Ask what is there."""
        found = self._client.dbfs.get_status(path)
        if found.is_dir:
            raise ObjectNotFoundError(f"dbfs:{path} is a folder, not a file")
        return FileStatus(found.file_size, found.modification_time)

    def read(self, path: str, span: Span) -> tuple[FileStatus, Generator[bytes, None, None]]:
        """Read block by block."""
        status = self.status(path)
        return status, self._blocks(path, span.begin, min(span.end, status.num_bytes))

    def put(self, file: BinaryIO, path: str) -> None:
        """Write under another name and move: DBFS shows a file while it is written, and cannot replace one at once."""
        with hidden_part(path, self._client.dbfs.delete) as part:
            self._client.dbfs.upload(part, file, overwrite=True)
            with suppress(_errors().NotFound):
                self._client.dbfs.get_status(path)
                self._client.dbfs.delete(path)
            self._client.dbfs.move(part, path)

    def entries(self, folder: str) -> Iterator[tuple[str, FileStatus | None]]:
        """List a folder."""
        for entry in self._client.api_client.do("GET", "/api/2.0/dbfs/list", query={"path": folder}).get("files", ()):
            name = posixpath.basename(entry["path"])
            status = FileStatus(entry["file_size"], entry.get("modification_time", 0))
            yield name, None if entry["is_dir"] else status

    def delete(self, path: str) -> None:
        """Remove a file; DBFS itself does not mind if there is none."""
        self.status(path)
        self._client.dbfs.delete(path)

    def _blocks(self, path: str, begin: int, end: int) -> Generator[bytes, None, None]:
        for offset in range(begin, end, _DBFS_READ_BYTES):
            found = self._client.dbfs.read(path, offset=offset, length=min(_DBFS_READ_BYTES, end - offset))
            yield base64.b64decode(found.data or "")


# Clients of this process, by login and patience; the SDK's is shared by threads, and not by processes.
_clients: PerProcess[dict[Any, Any]] = PerProcess(dict)
_connecting = PerProcess(threading.Lock)


def get_client(login: Mapping[str, Any], patience_s: float) -> Any:
    """Return this process's client of a workspace."""
    name, known = (patience_s, *sorted(login.items())), _clients.get()
    with _connecting.get():
        if name not in known:
            known[name] = _connect(login, patience_s)
        return known[name]


def _connect(login: Mapping[str, Any], patience_s: float) -> Any:
    sdk = require("databricks.sdk", extra="databricks", purpose="reading dbfs:/ URLs")
    # One second of the SDK's own attempts: ours follow, and they know at which byte to go on.
    settings = {"http_timeout_seconds": patience_s, "retry_timeout_seconds": 1, "product": "penstock"}
    try:
        return sdk.WorkspaceClient(config=sdk.core.Config(**settings, product_version=__version__, **login))
    except ValueError as error:
        raise AccessDeniedError(
            "cannot log in to Databricks: pass host and token in storage_options, set DATABRICKS_HOST and"
            f" DATABRICKS_TOKEN, or name a profile ({str(error).partition('. Config:')[0]})"
        ) from error


def _stream(contents: Any) -> Generator[bytes, None, None]:
    contents.set_chunk_size(_CHUNK_BYTES)
    with contents as stream:
        while data := stream.read(_CHUNK_BYTES):
            yield data


def _milliseconds(date: str) -> int:
    return int(parsedate_to_datetime(date).timestamp() * 1000)


def nothing() -> Generator[bytes, None, None]:
    """Yield no bytes."""
    yield from ()


def _errors() -> Any:
    return require("databricks.sdk.errors", extra="databricks", purpose="reading dbfs:/ URLs")


@contextmanager
def translated_errors(what: str) -> Iterator[None]:
    """Turn what the SDK raises about `what` into errors of ours."""
    errors = _errors()
    requests = require("requests", extra="databricks", purpose=f"opening {what}")
    try:
        yield
    except PenstockError:
        raise  # some of ours are errors of the operating system too
    except errors.NotFound as error:
        raise ObjectNotFoundError(f"there is no file {what}") from error
    except (errors.PermissionDenied, errors.Unauthenticated) as error:
        said = redacted(str(error))
        raise AccessDeniedError(f"no access to {what}: {said}. Check the token and its permissions") from safe_cause(
            error
        )
    except errors.BadRequest as error:
        raise RequestRefusedError(f"{what}: {redacted(str(error))}") from safe_cause(error)
    except (TimeoutError, requests.Timeout) as error:
        reason = redacted(str(error.__cause__ or error))
        raise StoreTimeoutError(f"{what}: the workspace did not answer in time ({reason})") from safe_cause(error)
    except (errors.DatabricksError, requests.RequestException, OSError) as error:
        raise StoreError(f"{what}: {redacted(str(error))}") from safe_cause(error)
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"{what}: cannot understand the answer of the workspace ({redacted(str(error))})") from error


FileApi: TypeAlias = VolumeFiles | DbfsFiles  # what goes wrong comes out as the SDK raises it


@dataclass(frozen=True, slots=True)
class DatabricksStore(ReadsBodies["FileApi"]):
    """The files below a folder of a workspace, which its login may read."""

    root: str
    login: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hooks: RetryHooks = field(default_factory=RetryHooks, repr=False, compare=False)

    def upload(self, path: Path, key: str) -> None:
        """Put a file into the workspace."""

        def put(api: FileApi) -> None:
            with open_file(path) as file:
                api.put(file, self._path(key))

        self._ask(key, put)

    def delete(self, key: str) -> None:
        """Remove a file."""
        self._ask(key, lambda api: api.delete(self._path(key)))

    def _path(self, key: str) -> str:
        return posixpath.join(self.root, check_key(key))

    def _shown(self, key: str = "") -> str:
        return f"dbfs:{posixpath.join(self.root, key)}"

    @contextmanager
    def _session(self, key: str) -> Iterator[FileApi]:
        with translated_errors(self._shown(key)):
            client = get_client(self.login, self.retry.stall_s)
            yield VolumeFiles(client) if self.root.startswith("/Volumes/") else DbfsFiles(client)

    def _describe(self, session: FileApi, key: str) -> ObjectInfo:
        return session.status(self._path(key)).info(key)

    @contextmanager
    def _open(self, key: str, span: Span) -> Iterator[ResponseBody]:
        path = self._path(key)
        with self._session(key) as api:
            status, chunks = api.read(path, span) if len(span) else (api.status(path), nothing())
            with closing(chunks):
                yield ResponseBody(status.info(key), chunks)

    def _walk(self, session: FileApi, prefix: str) -> Iterator[ObjectInfo]:
        """Visit the folders that may hold keys with this prefix."""
        folders = [""]
        while folders:
            folder = folders.pop()
            for name, status in self._entries(session, folder):
                key = f"{folder}{name}"
                if status is not None:
                    yield status.info(key)
                elif f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                    folders.append(f"{key}/")

    def _entries(self, api: FileApi, folder: str) -> builtins.list[tuple[str, FileStatus | None]]:
        """List a folder; one that is not there has no entries, as the root before the first upload."""
        path = posixpath.join(self.root, folder).rstrip("/") or "/"
        try:
            with translated_errors(f"dbfs:{path}"):
                return [*api.entries(path)]
        except ObjectNotFoundError:
            return []


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
    taken = take_options("dbfs", options, option_names(*_ENVIRONMENT))
    if taken:
        return taken
    return {name: environ[variable] for name, variable in _ENVIRONMENT.items() if environ.get(variable)}


family = StoreFamily(
    open=lambda settings, retry, hooks: DatabricksStore(root_of(settings.url), settings.options, retry, hooks),
    resolve=resolve_databricks,
)
