"""The settings of a stream as every process understands them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cachedir.layout import user_cache_dir
from penstock.codecs.digest import check_hashes
from penstock.storage.base import StoreSettings, url_scheme

if TYPE_CHECKING:
    from penstock.wire.settings import CachedStream


def settled(stream: CachedStream) -> CachedStream:
    """Give the same stream for any process, checked: paths that no longer depend on where it stands."""
    check_hashes(stream.validate_hash)
    store = stream.store
    if url_scheme(store.url) is None:
        store = StoreSettings(_absolute(store.url), store.options)
    directory = Path(os.path.realpath(os.path.expanduser(stream.directory)))  # noqa: PTH111
    is_private = directory.is_relative_to(os.path.realpath(user_cache_dir()))
    return replace(stream, directory=directory, is_private=is_private, store=store)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
