"""All ranks must read the same data: nodes that list a store at different moments could see different files.

Ranks compare what they opened through the key-value store of the job, that of torch.distributed or of JAX, where there
is one. Nobody takes part in a collective: a rank that reads a dataset alone would wait for ever.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import ObjectChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("penstock.data")
# How long the first pass waits for ranks that have not opened the dataset yet. One that comes later is told itself.
_PATIENCE_S = 10.0
_ASK_EVERY_S = 0.05
_asked: Counter[str] = Counter()  # how often this process opened the same data: they may have been written again


class JobStore(Protocol):
    """Where ranks leave notes for each other."""

    rank: int
    num_ranks: int

    def set_first(self, key: str, value: str) -> str:
        """Set a value unless there is one, and give the one that is there."""
        ...

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        ...

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all of these were set."""
        ...


class Agreement:
    """What this rank opened, compared with what the others did."""

    def __init__(self, places: Sequence[str], found: str) -> None:
        """Take where the data are, which is the same on all ranks, and what was found there."""
        question = hashlib.sha256(json.dumps(list(places)).encode()).hexdigest()[:16]
        _asked[question] += 1
        self._places, self._found = places, found
        self._base = f"penstock/{question}/{_asked[question]}"
        self._has_told = self._is_resolved = False

    def tell(self, num_ranks: int) -> None:
        """Send the others what was found, and raise if one of them found something else; waits for nobody."""
        store = None if self._is_resolved or num_ranks == 1 else find_job_store()
        if store is None or store.num_ranks != num_ranks:
            return
        if not self._has_told:
            if store.set_first(f"{self._base}/found", self._found) != self._found:
                store.set(f"{self._base}/differs", str(store.rank))
                raise self._differ()
            store.set(f"{self._base}/rank-{store.rank}", "same")
            self._has_told = True
        self._check(store)

    def resolve(self, num_ranks: int) -> None:
        """Wait until all have told what they found, though not for ever, and raise if they differ."""
        self.tell(num_ranks)
        store = find_job_store() if self._has_told and not self._is_resolved else None
        end = time.monotonic() + _PATIENCE_S
        while store is not None and not self._is_resolved and time.monotonic() < end:
            time.sleep(_ASK_EVERY_S)
            self._check(store)
        if store is not None and not self._is_resolved:
            _log.info(
                "not all ranks have opened this dataset yet, so penstock cannot check that they all see the same files"
            )
            self._is_resolved = True

    def _check(self, store: JobStore) -> None:
        if store.has([f"{self._base}/differs"]):
            raise self._differ()
        self._is_resolved = store.has([f"{self._base}/rank-{rank}" for rank in range(store.num_ranks)])

    def _differ(self) -> ObjectChangedError:
        return ObjectChangedError(
            f"the ranks of this job found different data in {', '.join(self._places)}: files were added or changed"
            " while the job was starting. Start it again when all are there, or make the index first (penstock index)"
        )


def find_job_store() -> JobStore | None:
    """Return the key-value store of the job, if this process is part of one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _TorchStore(distributed)
    jax = sys.modules.get("jax._src.distributed")
    client = None if jax is None else getattr(jax.global_state, "client", None)
    return None if jax is None or client is None else _JaxStore(jax.global_state, client)


class _TorchStore:
    def __init__(self, distributed: Any) -> None:
        self.rank, self.num_ranks = int(distributed.get_rank()), int(distributed.get_world_size())
        self._store = distributed.distributed_c10d._get_default_store()

    def set_first(self, key: str, value: str) -> str:
        found: bytes = self._store.compare_set(key, "", value)
        return found.decode()

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def has(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))


class _JaxStore:
    _AT_ONCE_MS = 1
    _ANSWER_MS = 10_000

    def __init__(self, state: Any, client: Any) -> None:
        self.rank, self.num_ranks = int(state.process_id), int(state.num_processes)
        self._client = client

    def set_first(self, key: str, value: str) -> str:
        try:
            self._client.key_value_set(key, value)
        except Exception:  # noqa: BLE001  jaxlib's own, of no class that can be named: somebody was first
            return str(self._client.blocking_key_value_get(key, self._ANSWER_MS))
        return value

    def set(self, key: str, value: str) -> None:
        self.set_first(key, value)

    def has(self, keys: Sequence[str]) -> bool:
        try:
            for key in keys:
                self._client.blocking_key_value_get(key, self._AT_ONCE_MS)
        except Exception:  # noqa: BLE001  as above: nobody has set it
            return False
        return True
