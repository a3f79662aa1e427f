"""The files that a source means, as a store has them now."""

from __future__ import annotations

import hashlib
import json
from os.path import commonprefix
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, LostIndexError, ObjectNotFoundError, RequestRefusedError
from penstock.index.paths import INDEX_NAME, WHAT_IS_READ, is_shard_name
from penstock.scan.detect import kind_of_name
from penstock.scan.patterns import fits, has_magic, has_magic_part, is_beside, is_hidden, literal_prefix
from penstock.storage.base import shown_url, url_scheme
from penstock.storage.many import stat_many
from penstock.storage.url_names import join_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.storage.base import ObjectInfo, Store

_FEW_NAMES = 32  # so many are asked for one by one; for more a list is quicker


class Lister:
    """Finds the files of a source in its store."""

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url
        self._can_list = url_scheme(url) not in ("http", "https")
        self._found: dict[str, dict[str, ObjectInfo]] = {}  # what was listed, by prefix

    def find(self, patterns: Sequence[str], wanted: str | None = None) -> list[ObjectInfo]:
        """Return the files that some names, globs and folders mean, in that order, each sorted by name.

        Of a folder it is the files of the format that is wanted or, if none is said, those whose names tell one.
        """
        found: dict[str, ObjectInfo] = {}
        literal = self._stat_all(patterns)
        for pattern in patterns:
            for info in self._of_pattern(pattern, literal.get(pattern), wanted):
                found.setdefault(info.key, info)
        for name in found:
            if not is_shard_name(name):
                raise ConfigError(
                    f"{self._where(name)!r} cannot be read in place: penstock does not read index.json, names that"
                    " begin with a dot, and names with control characters. Rename the file, or name other files"
                )
        return list(found.values())

    def _of_pattern(self, pattern: str, literal: ObjectInfo | None, wanted: str | None) -> list[ObjectInfo]:
        if literal is not None:
            return [literal]
        if not self._can_list:
            raise self._cannot_list(pattern)
        below = self._list(f"{pattern.rstrip('/')}/" if pattern else "")
        if below:  # a folder of that very name comes before a glob
            return self._of_folder(pattern, below, wanted)
        if not pattern:
            raise self._no_dataset("")
        if not has_magic(pattern):
            raise ObjectNotFoundError(f"there is no file or folder {self._where(pattern)}", key=pattern)
        matching = [info for name, info in self._list(literal_prefix(pattern)).items() if fits(pattern, name)]
        matching = matching or self._of_literal_folder(pattern)
        if not matching:
            raise ObjectNotFoundError(
                f"no file matches {self._where(pattern)}: `*` stays within a folder, `**/` also goes into folders",
                key=pattern,
            )
        return matching

    def _of_literal_folder(self, pattern: str) -> list[ObjectInfo]:
        """Look for a glob in a folder whose own name could be one."""
        parts = pattern.split("/")
        for count in range(len(parts) - 1, 0, -1):
            folder, rest = "/".join([*parts[:count], ""]), "/".join(parts[count:])
            below = self._list(folder) if has_magic(folder) and has_magic(rest) else {}
            if below:
                return [info for name, info in below.items() if fits(rest, name.removeprefix(folder))]
        return []

    def _of_folder(self, pattern: str, below: dict[str, ObjectInfo], wanted: str | None) -> list[ObjectInfo]:
        begin = len(pattern.rstrip("/")) + 1 if pattern else 0
        seen = {name: info for name, info in below.items() if not is_hidden(name[begin:], also_underscore=True)}
        kinds = {name: kind_of_name(name) for name in seen}
        told = [info for name, info in seen.items() if kinds[name] is not None and not is_beside(name)]
        if wanted is not None:
            told = [info for name, info in seen.items() if (kind := kinds[name]) and kind.format == wanted]
        if not told:
            self._check_no_shards(pattern, seen)
            told = [info for name, info in seen.items() if not is_beside(name)]
        if not told:
            raise self._no_dataset(pattern)
        return told

    def _check_no_shards(self, pattern: str, seen: Iterable[str]) -> None:
        """Refuse shards of a dataset that has lost its index, or has one in each of its folders."""
        for name in seen:
            last = name.rpartition("/")[2]
            if name == f"{pattern.rstrip('/')}/{INDEX_NAME}".lstrip("/"):
                raise ConfigError(
                    f"{self._where(pattern)} is a dataset with an {INDEX_NAME}, not files of another format: leave out"
                    " format="
                )
            if last == INDEX_NAME or ".mds" in last:
                raise LostIndexError(
                    f"{self._where(pattern)}{INDEX_NAME}: No such file or directory, but there is {name}. Open the"
                    f" folder that has the {INDEX_NAME} of these shards, or make one of several with `penstock merge`",
                    key=pattern,
                )

    # --- What the store says --------------------------------------------------------------------------------

    def _stat_all(self, patterns: Sequence[str]) -> dict[str, ObjectInfo]:
        """Find names that are files, whatever else they might mean."""
        names = [pattern for pattern in patterns if pattern]
        if self._can_list and len(names) > _FEW_NAMES:
            listed = self._list(commonprefix(names))  # noqa: RUF071  by characters, as stores list
            return {name: listed[name] for name in names if name in listed}
        found = dict(zip(names, stat_many(self._store, names), strict=True))
        for name, info in found.items():
            if info is None and not self._can_list and not has_magic(f"https://host/{name}"):
                self._store.stat(name)  # which says what is wrong
        return {name: info for name, info in found.items() if info is not None}

    def _list(self, prefix: str) -> dict[str, ObjectInfo]:
        if prefix not in self._found:
            try:
                listed = self._store.list(prefix)
                self._found[prefix] = {info.key: info for info in listed if info.key and not info.key.endswith("/")}
            except RequestRefusedError as error:
                raise self._cannot_list(prefix) from error
        return self._found[prefix]

    def _cannot_list(self, pattern: str) -> RequestRefusedError:
        return RequestRefusedError(
            f"{self._where(pattern)} cannot be listed, so folders and globs do not work there: pass a list of files"
        )

    def _no_dataset(self, pattern: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(
            f"there is no dataset in {self._where(pattern)}: it has neither an index.json, which a"
            f" writer makes when it finishes, nor files with data. {WHAT_IS_READ}",
            key=pattern,
        )

    def _where(self, name: str) -> str:
        root = shown_url(self._url)
        return f"{root.rstrip('/')}/{name}" if has_magic_part(name, root) else join_url(root, name)


def listing_digest(objects: Sequence[ObjectInfo], asked: object) -> str:
    """Name a listing: the same names, sizes, tags and times, found for the same question, need no scan again."""
    lines = [[info.key, info.num_bytes, info.etag, info.modified_ns] for info in objects]
    # The 1 stands for indexes that were read once before they were kept: earlier ones are looked at again.
    return hashlib.sha256(json.dumps([1, asked, lines], sort_keys=True).encode()).hexdigest()
