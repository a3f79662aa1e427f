"""Objects that lie beside the shards of a stream, such as videos."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, ObjectNotFoundError, PenstockError
from penstock.index.paths import resolve_inside
from penstock.storage.base import shown_url, url_scheme

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.cache.cache import Cache
    from penstock.data.open_streams import OpenedStreams

log = logging.getLogger("penstock.data")


def fetch_object(
    opened: OpenedStreams, url: str, local: str | None, remotes: Sequence[str | None], *, ahead: bool
) -> Path:
    """Bring an object that lies below the remote of one of the streams, and say where it is."""
    for files, remote in zip(opened.files, remotes, strict=True):
        below = "" if remote is None else f"{remote.rstrip('/')}/"
        if files is None or (url_scheme(url) is not None and not (below and url.startswith(below))):
            continue
        key = url.removeprefix(below)
        if files.in_place is not None and files.cached is None:
            path = resolve_inside(files.in_place.path, key)
            if not path.is_file():
                raise ObjectNotFoundError(f"{path} is missing, or is no file", path=str(path))
            return path
        if files.cached is not None and opened.table is not None:
            cache = opened.table.cache
            if ahead:
                return _fetch_ahead(cache, files.cached, key, local)
            return cache.fetch_object(files.cached, key, local)
    raise ConfigError(
        f"{shown_url(url)} is not below the remote of any stream: give the key of an object beside the shards"
    )


def _fetch_ahead(cache: Cache, stream: int, key: str, local: str | None) -> Path:
    def fetch() -> None:
        try:
            cache.fetch_object(stream, key, local)
        except PenstockError as error:  # whoever comes for it is told again
            log.warning("fetching %s ahead failed: %s", key, error)

    threading.Thread(target=fetch, name="penstock-ahead", daemon=True).start()
    return resolve_inside(cache.streams[stream].directory, local or key)
