"""Copies of a repository's files on this machine, for a source that is not to stream them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.blocks.worker_threads import WorkerThreads
from penstock.cachedir.layout import user_cache_dir
from penstock.errors import ObjectNotFoundError
from penstock.sources.files.found import FoundFile, FoundFiles
from penstock.storage.base import check_key
from penstock.storage.local import LocalStore

if TYPE_CHECKING:
    import os

_AT_ONCE = 4


def copy_folder(cache_dir: str | os.PathLike[str] | None, dataset_name: str, commit: str) -> Path:
    """Return the folder that keeps the files of a commit: they never change."""
    root = Path(cache_dir).expanduser().absolute() if cache_dir is not None else user_cache_dir() / "hub"
    return root / "datasets" / check_key(dataset_name) / check_key(commit)


def bring_copies(files: FoundFiles, folder: Path) -> FoundFiles:
    """Download the files that are not there yet, whole; they keep their names."""
    here = LocalStore(folder)
    threads = WorkerThreads(min(_AT_ONCE, len(files)), "penstock-download")
    try:
        copies = [threads.submit(_bring, file, here) for file in files]
        return FoundFiles(each.result() for each in copies)
    finally:
        threads.shutdown()


def _bring(file: FoundFile, here: LocalStore) -> FoundFile:
    key, path = check_key(file.info.key), here.root / file.info.key
    with suppress(ObjectNotFoundError):
        info = here.stat(key)
        if info.num_bytes == file.info.num_bytes:
            return FoundFile(file.url, here, info, str(path), origin=file.info)
    file.store.download(key, path)
    return FoundFile(file.url, here, here.stat(key), str(path), origin=file.info)
