"""What the fetcher does with a store for somebody else: one call, with plain values in and out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import FetcherError
from penstock.storage.base import StoreSettings, check_writable, open_store
from penstock.storage.retry import RetryHooks, RetryPolicy
from penstock.types import Span

if TYPE_CHECKING:
    import threading

    from penstock.storage.base import Store


def run_errand(
    store: dict[str, Any], action: str, arguments: dict[str, Any], is_over: threading.Event
) -> tuple[dict[str, Any], bytes]:
    """Do one thing with a store: give plain values, and bytes if it is bytes that were asked for.

    It is not tried again once `is_over` says that whoever wanted it has left.
    """

    def pause(seconds: float) -> None:
        if is_over.wait(seconds):
            raise FetcherError(f"whoever wanted to {action} has left")

    settings = StoreSettings(store["url"], store["options"])
    opened = open_store(settings, retry=RetryPolicy(**store["retry"]), hooks=RetryHooks(sleep=pause))
    return _act(opened, action, arguments)


def _act(store: Store, action: str, given: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    span = Span(*given["span"]) if given.get("span") is not None else None
    if action == "read":
        return {}, store.read(given["key"], span)
    if action == "read_piece":
        data, info = store.read_piece(given["key"], Span(*given["span"]), given["etag"])
        return {"info": asdict(info)}, bytes(data)
    if action == "stat":
        return {"info": asdict(store.stat(given["key"]))}, b""
    if action == "list":
        return {}, json.dumps([asdict(info) for info in store.list(given["prefix"])]).encode()
    if action == "check":
        check_writable(store)
        return {}, b""
    if action == "upload":
        store.upload(Path(given["path"]), given["key"])
    elif action == "download":
        store.download(given["key"], Path(given["path"]), span)
    elif action == "delete":
        store.delete(given["key"])
    else:
        raise FetcherError(f"a client asked to {action!r} a store, which cannot be done")
    return {}, b""
