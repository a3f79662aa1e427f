"""The two file systems of a Databricks workspace, through databricks-sdk: volumes of Unity Catalog, and DBFS."""

from __future__ import annotations

import base64
import posixpath
import secrets
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import quote

from penstock._version import __version__
from penstock.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PenstockError,
    RequestRefusedError,
    StoreError,
    StoreTimeoutError,
)
from penstock.extras import require
from penstock.files import PART_SUFFIX
from penstock.outside_text import Bounded
from penstock.processes import PerProcess
from penstock.storage.base import redacted, safe_cause

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from penstock.types import Span

_CHUNK_BYTES = 1 << 16
_DBFS_READ_BYTES = 1 << 20  # the most that DBFS gives or takes at once
_TOTAL = Bounded(r"bytes (?:\d+-\d+|\*)/(\d+)", 64)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What a file is: its absolute path, its size, and when it was changed, in milliseconds."""

    path: str
    num_bytes: int
    changed_ms: int

    @property
    def etag(self) -> str:
        """Return a tag of the version. Whole seconds: that is what all answers tell."""
        return f"{self.changed_ms // 1000:x}-{self.num_bytes:x}"


class FileApi(Protocol):
    """What a store needs of a file system. What goes wrong comes out as the SDK raises it."""

    def status(self, path: str) -> FileStatus:
        """Describe a file; a folder is not one."""
        ...

    def read(self, path: str, span: Span) -> tuple[FileStatus, Generator[bytes, None, None]]:
        """Return what a file has of a range that is not empty."""
        ...

    def put(self, file: BinaryIO, path: str) -> None:
        """Write a file over whatever is there, making the folders on the way."""
        ...

    def entries(self, folder: str) -> Iterator[tuple[str, FileStatus | None]]:
        """List a folder: names, with None for folders."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file."""
        ...


class VolumeFiles:
    """Files of Unity Catalog volumes, `/Volumes/catalog/schema/volume/…`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def status(self, path: str) -> FileStatus:
        """Ask for the headers of a file."""
        found = self._client.files.get_metadata(path)
        return FileStatus(path, int(found.content_length), _milliseconds(found.last_modified))

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
        total = _TOTAL.fullmatch(found["content-range"] or "")
        if total is None:
            found["contents"].close()
            raise RequestRefusedError(f"{path}: the workspace cannot send ranges of files")
        status = FileStatus(path, int(total.group(1)), _milliseconds(found["last-modified"]))
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
                yield entry.name, FileStatus(entry.path, entry.file_size, entry.last_modified)

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
        return FileStatus(path, found.file_size, found.modification_time)

    def read(self, path: str, span: Span) -> tuple[FileStatus, Generator[bytes, None, None]]:
        """Read block by block."""
        status = self.status(path)
        return status, self._blocks(path, span.begin, min(span.end, status.num_bytes))

    def put(self, file: BinaryIO, path: str) -> None:
        """Write under another name and move: DBFS shows a file while it is written, and cannot replace one at once."""
        folder, name = posixpath.split(path)
        part = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}{PART_SUFFIX}")
        try:
            self._client.dbfs.upload(part, file, overwrite=True)
            with suppress(_errors().NotFound):
                self._client.dbfs.get_status(path)
                self._client.dbfs.delete(path)
            self._client.dbfs.move(part, path)
        except BaseException:
            with suppress(Exception):  # the connection may be what failed; hidden names are never listed
                self._client.dbfs.delete(part)
            raise

    def entries(self, folder: str) -> Iterator[tuple[str, FileStatus | None]]:
        """List a folder."""
        for entry in self._client.api_client.do("GET", "/api/2.0/dbfs/list", query={"path": folder}).get("files", ()):
            name = posixpath.basename(entry["path"])
            status = FileStatus(entry["path"], entry["file_size"], entry.get("modification_time", 0))
            yield name, None if entry["is_dir"] else status

    def delete(self, path: str) -> None:
        """Remove a file; DBFS itself does not mind if there is none."""
        self.status(path)
        self._client.dbfs.delete(path)

    def _blocks(self, path: str, begin: int, end: int) -> Generator[bytes, None, None]:
        for offset in range(begin, end, _DBFS_READ_BYTES):
            found = self._client.dbfs.read(path, offset=offset, length=min(_DBFS_READ_BYTES, end - offset))
            yield base64.b64decode(found.data or "")


class _Clients:
    """Clients of this process; the SDK's is shared by threads, and not by processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Any, Any] = {}

    def get(self, login: Mapping[str, Any], patience_s: float) -> Any:
        name = (patience_s, *sorted(login.items()))
        with self._lock:
            if name not in self._known:
                self._known[name] = _connect(login, patience_s)
            return self._known[name]


_clients = PerProcess(_Clients)


def get_client(login: Mapping[str, Any], patience_s: float) -> Any:
    """Return this process's client of a workspace."""
    return _clients.get().get(login, patience_s)


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
