"""Large arrays, and large indexes, made once on each node: one process writes the file, the others map it."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._version import __version__
from penstock.cachedir.layout import stripe_name, stripe_of, user_cache_dir
from penstock.cachedir.ledger import boot_id
from penstock.cachedir.lock import lock_within
from penstock.errors import LockTimeoutError
from penstock.files import atomic_write, make_folders
from penstock.index.model import Index, ShardColumns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

log = logging.getLogger("penstock.cache")

# Smaller arrays are quicker computed than found.
_MIN_VALUES = 1 << 20
# The epochs of a few jobs at once; who comes back to an older one computes it again.
_MAX_FILES = 16
# The order of a trillion samples takes minutes. A process that has waited so long computes it as well.
_PATIENCE_S = 600.0
# Of an index of some hundred shards. Smaller ones are parsed in a moment.
_LARGE_BYTES = 1 << 17
# Of the datasets that a machine reads by turns, mixes of many streams included; each takes as much as its index.
_MAX_INDEXES = 256
# Of rows that filters let pass.
_MOST_VIEWS = 256


def keep_index(name: str, num_bytes: int, parse: Callable[[], Index]) -> Index:
    """Return the index of a name that stands for its very bytes, and of so many bytes, parsing it only if it is new."""
    if num_bytes < _LARGE_BYTES:
        return parse()
    data = keep_in_files(
        f"{__version__}-{name}", lambda: parse().columns.dump(), min_values=0, kind="index", max_files=_MAX_INDEXES
    )
    return Index(ShardColumns.load(data))


def keep_in_files(
    name: str,
    compute: Callable[[], npt.NDArray[Any]],
    *,
    min_values: int = _MIN_VALUES,
    kind: str = "order",
    max_files: int = _MAX_FILES,
) -> npt.NDArray[Any]:
    """Return the array of a name, from its file if there is one; computed by one process while others wait for it.

    Of each kind, no more than `max_files` are kept.
    """
    folder = user_cache_dir() / "arrays"
    # Files are not flushed: after a loss of power they may hold zeros, so those of another boot are left alone.
    path = folder / f"{kind}-{name}.{(boot_id() or 'any')[:8]}.npy"
    try:
        if path.exists():
            return _map(path)
        make_folders(folder, 0o700)
        lock = lock_within(folder / stripe_name(stripe_of(name)), _PATIENCE_S)
    except (OSError, LockTimeoutError):  # nothing can be kept there, or the process that holds the lock is stopped
        return compute()
    with lock:
        if path.exists():
            return _map(path)
        values = compute()
        return values if len(values) < min_values else _keep(path, values, f"{kind}-*.npy", max_files)


def found_once(fingerprint: str | None, find: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the rows that are found by reading all; of data with a fingerprint, one process of the node reads them."""
    if fingerprint is None:
        return find()
    name = hashlib.blake2b(fingerprint.encode(), digest_size=16).hexdigest()
    return keep_in_files(name, find, min_values=0, kind="kept", max_files=_MOST_VIEWS)


def _keep(path: Path, values: npt.NDArray[Any], all_like_it: str, max_files: int) -> npt.NDArray[Any]:
    try:
        with atomic_write(path) as part, part.open("wb") as file:
            np.save(file, values, allow_pickle=False)
    except OSError as error:
        log.warning("cannot save %s in %s: %s", path.stem, path.parent, error)
        return values
    for old in sorted(path.parent.glob(all_like_it), key=lambda path: path.stat().st_mtime)[:-max_files]:
        old.unlink(missing_ok=True)
    return _map(path)


def _map(path: Path) -> npt.NDArray[Any]:
    # The file may be removed at once to make room: what is mapped stays.
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped
