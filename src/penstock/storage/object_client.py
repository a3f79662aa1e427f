"""obstore clients of this process: made on first use, shared by equal settings, never used after a fork."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import RequestRefusedError
from penstock.processes import abandon_in_children
from penstock.storage.retry import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.base import StoreSettings

_CONNECT_S = 10.0
_LONGEST_REQUEST_S = 24 * 3600.0  # silence ends a request, not slowness: a body that trickles is one that comes
_PART_RETRIES = 1000  # as many as the time allows

_clients: dict[tuple[str, ClientTuning], Any] = {}
anonymous: set[str] = set()  # stores that answered to nobody in particular after they had refused our credentials
gates: defaultdict[tuple[Any, ...], Gate] = defaultdict(Gate)  # of buckets and hosts
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTuning:
    """Times of a client, and what it does by itself: it tries again only where we cannot (parts of an upload)."""

    stall_s: float  # longest silence, from the request to the answer and between two bytes of it
    retries_for_s: float = 0.0
    is_anonymous: bool = False
    writes: bool = False

    def client_options(self, **more: Any) -> Any:
        """Return obstore's options for connections."""
        return {
            "connect_timeout": _duration(min(_CONNECT_S, self.stall_s)),
            "read_timeout": _duration(self.stall_s),
            "timeout": _duration(_LONGEST_REQUEST_S),
            "user_agent": "penstock",
            **more,
        }

    def retry_config(self) -> Any:
        """Return obstore's options for trying again."""
        from datetime import timedelta

        max_retries = _PART_RETRIES if self.retries_for_s else 0
        pauses = {"init_backoff": timedelta(seconds=1), "max_backoff": timedelta(seconds=15), "base": 2}
        return {"max_retries": max_retries, "retry_timeout": timedelta(seconds=self.retries_for_s), "backoff": pauses}


def name_of(settings: StoreSettings) -> str:
    """Name a store with all that it is opened with. The name holds secrets: it stays in this process."""
    return json.dumps([settings.url, settings.options], sort_keys=True)


def get_client(name: str, tuning: ClientTuning, make: Callable[[ClientTuning], Any]) -> Any:
    """Return the client of a store by its name, making it on first use."""
    check_process()
    with _lock:
        client = _clients.get((name, tuning))
        if client is None:
            client = _clients[name, tuning] = make(tuning)
    return client


class _FirstUser:
    """Which process used obstore first, of this one and those that it was forked from."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.is_ancestor = False
        abandon_in_children(self)

    def after_fork_in_child(self) -> None:
        self.is_ancestor = self.pid is not None
        abandon_in_children(self)


_first_user = _FirstUser()


def check_process() -> None:
    """Raise in a process forked from one that has used obstore: any call there would wait for ever."""
    if _first_user.is_ancestor:
        raise RequestRefusedError(
            f"process {os.getpid()} was forked from process {_first_user.pid}, which had already used a network"
            " store, and the connections of that store do not survive a fork. Start processes with spawn or"
            " forkserver, open stores only in the child processes, or read through a dataset, whose fetcher is a"
            " separate process"
        )
    _first_user.pid = os.getpid()


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
