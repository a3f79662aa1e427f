"""obstore clients of this process: made on first use, shared by equal settings, never used after a fork."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.base import StoreSettings

_CONNECT_S = 10.0

_clients: dict[str, Any] = {}
_anonymous: set[str] = set()
_lock = threading.Lock()
_first_user: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTuning:
    """Times of a client, and what it does by itself: it tries again only where we cannot (parts of an upload)."""

    stall_s: float
    timeout_s: float
    retries: int = 0
    is_anonymous: bool = False
    writes: bool = False

    def client_options(self, **more: Any) -> Any:
        """Give obstore's options for connections."""
        return {
            "connect_timeout": _duration(min(_CONNECT_S, self.timeout_s)),
            "read_timeout": _duration(self.stall_s),
            "timeout": _duration(self.timeout_s),
            "user_agent": "penstock",
            **more,
        }

    def retry_config(self) -> Any:
        """Give obstore's options for trying again."""
        from datetime import timedelta

        return {"max_retries": self.retries, "retry_timeout": timedelta(seconds=self.timeout_s)}


def get_client(
    settings: StoreSettings, tuning: ClientTuning, make: Callable[[StoreSettings, ClientTuning], Any]
) -> Any:
    """Give the client for these settings, making it on first use."""
    check_process()
    name = json.dumps([_name(settings), asdict(tuning)], sort_keys=True)
    with _lock:
        client = _clients.get(name)
        if client is None:
            client = _clients[name] = make(settings, tuning)
    return client


def was_let_in(settings: StoreSettings) -> bool:
    """Say whether this store answered to nobody in particular after it had refused our credentials."""
    return _name(settings) in _anonymous


def let_in(settings: StoreSettings) -> None:
    """Take note that it did."""
    _anonymous.add(_name(settings))


def check_process() -> None:
    """Raise in a process forked from one that has used obstore: any call there would wait for ever."""
    global _first_user
    if _first_user is None:
        _first_user = os.getpid()
    elif _first_user != os.getpid():
        raise StoreError(
            f"process {os.getpid()} was forked from {_first_user}, which had already used a network store; its client"
            " does not survive a fork. Start processes with spawn or forkserver, open stores in them only, or read"
            " through a dataset, whose fetcher is a process of its own"
        )


def _name(settings: StoreSettings) -> str:
    return json.dumps([settings.url, settings.options], sort_keys=True)


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
