"""The indexes that lie beside files of lines, which tell where some of their rows begin."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from penstock.errors import DataError, StoreError
from penstock.formats.lines.format import places_in
from penstock.index.catalog import MAX_INDEX_BYTES
from penstock.index.files_json import STORED_NAME, load_files

if TYPE_CHECKING:
    from penstock.formats.content import RowPlace
    from penstock.index.files_json import IndexedFile
    from penstock.sources.files.found import FoundFile
    from penstock.storage.base import Store

_log = logging.getLogger("penstock.sources")

# Smaller files are not looked up: an index would hardly name more than their first row.
_LARGE_BYTES = 4 << 20


class StoredIndexes:
    """The indexes that `penstock index --store` left beside files: each is read once, when it is first asked for."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[Store, dict[str, IndexedFile]]] = {}

    def places_in(self, file: FoundFile, form: str) -> list[RowPlace]:
        """Return the places in a file of a format, if an index knows it in this version."""
        if file.info.num_bytes < _LARGE_BYTES:
            return []
        if id(file.store) not in self._files:
            self._files[id(file.store)] = file.store, _read_index(file.store)
        found = self._files[id(file.store)][1].get(file.info.key)
        version = file.info.version
        if found is None or version is None or (found.num_bytes, found.version) != (file.info.num_bytes, version):
            return []
        if (found.layout.format, found.layout.compression) != (form, file.compression):
            return []
        try:
            return places_in(found)
        except DataError as error:
            _log.warning("%s is not used: %s", STORED_NAME, error)
            return []

    def __reduce__(self) -> tuple[type[StoredIndexes], tuple[()]]:
        return StoredIndexes, ()  # whoever gets it reads them where it is


def _read_index(store: Store) -> dict[str, IndexedFile]:
    try:
        if store.stat(STORED_NAME).num_bytes > MAX_INDEX_BYTES:
            return {}
        document = json.loads(bytes(store.read(STORED_NAME)))
        return {file.name: file for file in load_files(document, STORED_NAME)} if isinstance(document, dict) else {}
    except StoreError:
        return {}
    except (DataError, ValueError) as error:
        _log.warning("%s is not used: %s", STORED_NAME, error)
        return {}
